"""Memory that a card has pinned: the card lets go of it before a hole is punched into its file, or zeros are saved.

The card here is a model of one: memory and saves are real, and pinned pages that lose their file are written by the
card alone from then on, as on a real one.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from torch import Tensor

from ftnode.models.faults import Misuse
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.compute.group_gradients import GroupGradients
from ftnode.node.compute.pinned_places import PinnedPlaces
from ftnode.node.compute.snapshots import SnapshotCopies
from ftnode.node.machine.gradient_memory import GradientMap, GradientMemory
from ftnode.node.machine.snapshot_memory import SnapshotMemory
from ftnode.node.ports import ComputeError
from ftnode.node.snapshots.format import KeptSnapshot
from ftnode.node.snapshots.saver import SnapshotSaver
from tests.node.compute.computing import CONFIG
from tests.node.snapshots.saving import Node, settled

STAGE = 1
CPU = torch.device("cpu")


class Card:
    """A fake of CUDA's runtime. `told`: the calls, and the holes that are punched, in order."""

    def __init__(self, register: int = 0, unregister: int = 0) -> None:
        self.told: list[str] = []
        self.pinned: set[int] = set()
        self._register, self._unregister = register, unregister

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> int:
        assert size > 0 and pointer not in self.pinned
        self.told.append("register")
        if self._register == 0:
            self.pinned.add(pointer)
        return self._register

    def cudaHostUnregister(self, pointer: int) -> int:
        assert pointer in self.pinned
        self.told.append("unregister")
        if self._unregister == 0:
            self.pinned.remove(pointer)
        return self._unregister


def address(memory: GradientMap, stage: int) -> int:
    return torch.frombuffer(memory.view(stage), dtype=torch.uint8).data_ptr()


class Holes(SnapshotMemory):
    """Real memory, which notes when a hole is punched, and what the card still had pinned then."""

    card: Card

    def __init__(self, numbers: tuple[int, ...], number_bytes: int) -> None:
        super().__init__(numbers, number_bytes)
        self.orphans: set[int] = set()

    def release(self, stage: int) -> None:
        if stage in self._mapped:
            self.card.told.append("hole")
            if address(self, stage) in self.card.pinned:
                self.orphans.add(stage)
        super().release(stage)


class Pages(PinnedPlaces):
    """Pinned pages that lost their file are the card's alone."""

    _memory: Holes

    def place(self, stage: int) -> Tensor:
        place = super().place(stage)
        return torch.empty_like(place) if stage in self._memory.orphans else place

    def let_go(self, stage: int) -> None:
        super().let_go(stage)
        self._memory.orphans.discard(stage)


class HoleFirst(SnapshotSaver):
    """The planted bug: nobody asks the card."""

    def forgotten(self, stage: int) -> None:
        self._memory.release(stage)


def node_with(card: Card, home: Path, config: ComputeConfig, saver: type[SnapshotSaver] = SnapshotSaver) -> Node:
    node = Node(home, config, every=1)
    old = node.memory
    memory = Holes(old.numbers, old.number_bytes)
    memory.card = card
    node.memory = memory
    node.saver.__class__ = saver
    node.saver._memory = memory
    backend: Any = node.compute.backend
    backend._snapshots = SnapshotCopies(Pages(memory, torch.float32, CPU, card))
    return node


@pytest.fixture
def config(tmp_path: Path) -> ComputeConfig:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 400)
    return replace(CONFIG, data=str(text))


def saved_after_forgetting(node: Node) -> tuple[KeptSnapshot, str]:
    """What is saved of a stage that was forgotten and learnt again, and the hash of the weights that it has then."""
    digest = ""

    async def main() -> None:
        nonlocal digest
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            await settled(node, 4)
            learnt = next(each for each in node.store.kept() if each.stage == STAGE)
            node.held.discard(STAGE)
            node.compute.call("forget", stage=STAGE)
            node.saver.forgotten(STAGE)
            version = learnt.version
            node.compute.call("snapshot_load", stage=STAGE, folder=str(learnt.folder), step=version.step,
                              commit=version.commit, attempt=list(version.attempt))  # fmt: skip
            node.held.add(STAGE)
            digest = node.train(2)["digests"][STAGE]
            await settled(node, 8)
            nursery.cancel_scope.cancel()

    trio.run(main)
    return next(each for each in node.store.kept() if each.stage == STAGE and each.version.step == 2), digest


def test_a_stage_that_was_forgotten_and_learnt_again_saves_what_it_holds(tmp_path: Path, config: ComputeConfig) -> None:
    card = Card()
    kept, digest = saved_after_forgetting(node_with(card, tmp_path, config))
    assert kept.digest == digest
    assert card.told == ["register"] * 4 + ["unregister", "hole", "register"]


def test_planted_bug_a_hole_is_punched_first(tmp_path: Path, config: ComputeConfig) -> None:
    card = Card()
    kept, digest = saved_after_forgetting(node_with(card, tmp_path, config, HoleFirst))
    assert card.told == ["register"] * 4 + ["hole"]
    assert kept.digest != digest, "zeros were saved"


def test_memory_that_stays_pinned_is_not_given_back(tmp_path: Path, config: ComputeConfig) -> None:
    card = Card(unregister=1)
    node = node_with(card, tmp_path, config)
    node.train(1)
    node.compute.call("snapshot_copy", stage=STAGE, step=1)
    assert any(node.memory.view(STAGE))
    node.saver.forgotten(STAGE)
    assert card.told == ["register", "unregister"] and any(node.memory.view(STAGE))


def test_a_process_that_is_gone_has_nothing_pinned(tmp_path: Path, config: ComputeConfig) -> None:
    card = Card()
    node = node_with(card, tmp_path, config)
    node.train(1)
    node.compute.call("snapshot_copy", stage=STAGE, step=1)
    node.saver._post = lambda op, answer, **fields: answer(ComputeError("lost", "it ended"))
    node.saver.forgotten(STAGE)
    assert card.told == ["register", "hole"] and not any(node.memory.view(STAGE))


def test_a_copy_that_was_ordered_meanwhile_keeps_its_memory(tmp_path: Path, config: ComputeConfig) -> None:
    card, orders = Card(), list[tuple[str, Any, dict[str, Any]]]()
    node = node_with(card, tmp_path, config)
    node.saver._post = lambda op, answer, **fields: orders.append((op, answer, fields))

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.saver.forgotten(STAGE)
            node.train(1)
            for op, answer, fields in orders:
                node.post(op, answer, **fields)
            await settled(node, 4)
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert [op for op, _, _ in orders] == ["snapshot_release"] + ["snapshot_copy"] * 4
    assert "hole" not in card.told and len(node.store.kept()) == 4


def test_a_card_that_takes_no_pins_works_as_well() -> None:
    memory, card = GradientMemory((8, 8), 4), Card(register=2)
    places = PinnedPlaces(memory, torch.float32, CPU, card)
    places.place(1).fill_(3.0)
    places.let_go(1)
    assert card.told == ["register"] and memory.view(1).cast("f").tolist() == [3.0] * 8
    places.let_go(0)


def test_a_gradients_memory_is_let_go_of_before_its_hole() -> None:
    card = Card()

    class Watched(GradientMemory):
        def release(self, stage: int) -> None:
            card.told.append("hole")
            assert not card.pinned
            super().release(stage)

    memory = Watched((8, 8), 4)
    group = GroupGradients(memory, PinnedPlaces(memory, torch.float32, CPU, card), None)  # type: ignore[arg-type]
    group.open(STAGE, None, (0, 1), 0)
    assert card.told == ["register"]
    group.forget(STAGE)
    assert card.told == ["register", "unregister", "hole"]
    group.open(STAGE, None, (0, 2), 0)
    assert card.told[-1] == "register"


def test_planted_bug_a_gradient_stays_pinned() -> None:
    memory, card = GradientMemory((8, 8), 4), Card(unregister=1)
    group = GroupGradients(memory, PinnedPlaces(memory, torch.float32, CPU, card), None)  # type: ignore[arg-type]
    group.open(STAGE, None, (0, 1), 0)
    memory.view(STAGE)[:4] = b"abcd"
    with pytest.raises(Misuse, match="the memory of stage 1 stays pinned"):
        group.forget(STAGE)
    assert bytes(memory.view(STAGE)[:4]) == b"abcd"
