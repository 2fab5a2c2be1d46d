"""Memory for the copies of stages that lie on a card: the host has some left whatever is ordered at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.life import snapshot_setup
from ftnode.node.life.snapshot_setup import HOST_RESERVE_BYTES, host_has_room
from tests.node.compute.computing import CONFIG, STAGES
from tests.node.snapshots.saving import Node, settled


@pytest.fixture
def config(tmp_path: Path) -> ComputeConfig:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 400)
    return replace(CONFIG, data=str(text))


class Busy(Node):
    """Its compute has other things to do first: copies are made at `work`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.ordered: list[tuple[int, Callable[[], None]]] = []

    def post(self, op: str, answer: Callable[[Any], None], **fields: Any) -> None:
        self.ordered.append((fields["stage"], partial(super().post, op, answer, **fields)))

    def work(self) -> None:
        while self.ordered:
            self.ordered.pop(0)[1]()


def test_a_copy_that_the_host_has_no_room_for_is_left_out_and_said(tmp_path: Path, config: ComputeConfig) -> None:
    """And one that has its memory already needs none."""
    room = True
    node = Node(tmp_path, config, fits=lambda size: room or not size)

    async def main() -> None:
        nonlocal room
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            room = False
            node.train(1)
            node.train(2)
            assert len(node.said) == STAGES + 1
            assert all("too little free memory for a copy" in line for line in node.said)
            room = True
            node.train(3)
            node.train(4)
            await settled(node, 2 * (STAGES + 1))
            room = False
            node.train(5)
            node.train(6)
            await settled(node, 3 * (STAGES + 1))
            node.saver.forgotten(1)
            node.train(7)
            node.train(8)
            await settled(node, 4 * (STAGES + 1))
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert {each.version.step for each in node.store.kept() if each.stage == 2} == {6, 8}
    assert sum("too little free memory" in line for line in node.said) == STAGES + 2, "of the place that was given back"


def test_what_counts_as_room(monkeypatch: pytest.MonkeyPatch) -> None:
    for available, fits in ((None, True), (HOST_RESERVE_BYTES + 10, True), (HOST_RESERVE_BYTES + 9, False)):
        monkeypatch.setattr(snapshot_setup.host_memory, "available", lambda available=available: available)
        assert host_has_room(10) == fits and host_has_room(0)


def test_copies_that_are_ordered_at_once_fit_together(tmp_path: Path, config: ComputeConfig) -> None:
    """Stages of one commit, and those that a pause keeps; what does not fit is left out and said."""
    node = Busy(tmp_path, config, fits=lambda size: size <= room)
    room = node.memory.missing(0) + node.memory.missing(1)
    stages = range(STAGES + 1)

    async def main() -> None:
        reasons: list[str] = []

        async def keep() -> None:
            reasons.append(await node.saver.keep_now(stages))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            node.train(2)
            assert [stage for stage, _ in node.ordered] == [0, 1]
            assert len(node.said) == 2 and all("too little free memory for a copy" in line for line in node.said)
            node.work()
            await settled(node, 4)
            for stage in stages:
                node.saver.forgotten(stage)
            node.work()
            nursery.start_soon(keep)
            await trio.testing.wait_all_tasks_blocked()
            assert [stage for stage, _ in node.ordered] == [0, 1]
            node.work()
            with trio.fail_after(20):
                while not reasons:
                    await trio.testing.wait_all_tasks_blocked(0.001)
            assert "too little free memory for a copy" in reasons[0]
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert {each.stage for each in node.store.kept()} == {0, 1}
