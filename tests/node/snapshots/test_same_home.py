"""Nodes of one home share its limit for snapshots: none takes the newest of a stage that another holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from ftnode.node.home.identity import home_directory
from ftnode.node.snapshots.same_home import held_by_others
from tests.node.compute.computing import CONFIG, STAGES
from tests.node.life.volunteers import starting
from tests.node.snapshots.keeping import RUN
from tests.node.snapshots.saving import ALLOWANCE, Node

NEIGHBOUR = """
import json, os, sys, trio
from pathlib import Path
from ftnode.node.owner.join_options import Running, note_running
from ftnode.node.owner.control_socket import ControlServer, socket_path
from ftnode.node.home.identity import take_identity
home, run, answer = Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3])
me = take_identity(home).peer_id
async def state(question):
    return answer
server = ControlServer(socket_path(home, me), {"state": state} if answer is not None else {})
note_running(home, Running(os.getpid(), me, run, ()))
print(me, flush=True)
trio.run(server.run)
"""
"""Holds what it is told to; `null`: does not know the question."""

Start = Callable[..., object]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return home_directory(str(tmp_path / "home"))


@pytest.fixture
def neighbour(home: Path) -> Iterator[Start]:
    with starting(NEIGHBOUR, home) as start:
        yield start


def test_they_say_what_they_hold(home: Path, neighbour: Start) -> None:
    assert held_by_others(home, RUN, STAGES) == frozenset()
    neighbour("cd" * 16, '{"holds": [3]}')
    neighbour(RUN, '{"holds": [1]}')
    neighbour(RUN, '{"holds": []}')
    assert held_by_others(home, RUN, STAGES) == {1}


@pytest.mark.parametrize("answer", ["null", "{}", '{"holds": "all"}'])
def test_who_does_not_say_may_hold_everything(home: Path, neighbour: Start, answer: str) -> None:
    neighbour(RUN, answer)
    assert held_by_others(home, RUN, STAGES) == set(range(STAGES + 1))


@pytest.mark.parametrize(("holds", "stays"), [("[2]", True), ("[]", False)])
def test_at_its_limit_a_node_spares_the_others(
    tmp_path: Path, home: Path, neighbour: Start, holds: str, stays: bool
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question.\n" * 400)
    node = Node(home, replace(CONFIG, data=str(text)))
    neighbour(RUN, f'{{"holds": {holds}}}')

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.saver.run)
            await trio.testing.wait_all_tasks_blocked()
            node.train(1)
            assert await node.saver.keep_now([2]) == "" and await node.saver.keep_now([1]) == ""
            node.held = {1}
            node.saver._allowance = replace(ALLOWANCE, limit_bytes=node.store.bytes_on_disk() + 100)
            node.train(2)
            said = await node.saver.keep_now([1])
            assert ("no room" in said) == stays
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert any(kept.stage == 2 for kept in node.store.kept()) == stays
