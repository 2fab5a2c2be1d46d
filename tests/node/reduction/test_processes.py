"""Groups over real p2pds: through their streams, and with a member killed in the middle."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import trio

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.machine.gradient_memory import GradientMemory
from ftnode.node.reduction.reductions import Reductions
from ftnode.node.reduction.wire import REDUCE_PROTOCOL
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.types import Attempt, Peer
from tests.node.links.linked_node import Node, limited, node
from tests.node.reduction.reducing_peer import Gradient

NUMBERS = 1_500_000  # of 4 bytes: more than all buffers on the way hold
Group = tuple[tuple[Peer, int], ...]


class Member:
    """Contributes one number, everywhere the same."""

    def __init__(self, linked: Node, value: float, nursery: trio.Nursery, encoding: str) -> None:
        self.linked = linked
        self.memory = GradientMemory([NUMBERS], 4)
        self.gradient = Gradient(self.memory, value)
        self.reductions = Reductions(
            "run", linked.peer, self.memory, self.gradient, linked.transport, encoding=encoding
        )
        self.reductions.begin(nursery)
        self.done: list[int] = []

    async def serve(self) -> None:
        await self.linked.p2pd.serve(REDUCE_PROTOCOL, self.reductions.serve)

    def start(self, group: Group, view: int = 0) -> trio.Event:
        done = trio.Event()

        def answered(answer: Any) -> None:
            assert not answer["fault"]
            self.done.append(view)
            done.set()

        self.reductions.start(Reduce(0, 1, Attempt(0, 1), view, group), answered)
        return done

    async def own_piece_is_summed(self) -> None:
        exchange = self.reductions._exchanges[0]
        await exchange.opened.wait()
        assert exchange.sum is not None
        while not exchange.sum.whole:
            await exchange.sum.grown.wait()


async def members(stack: AsyncExitStack, folder: Path, values: list[float], encoding: str) -> list[Member]:
    nursery = await stack.enter_async_context(trio.open_nursery())
    stack.callback(nursery.cancel_scope.cancel)
    homes = [folder / str(value) for value in values]
    for home in homes:
        home.mkdir()
    linked = [await stack.enter_async_context(node(home)) for home in homes]
    made = [Member(one, value, nursery, encoding) for one, value in zip(linked, values)]
    for member in made:
        await member.serve()
        for other in linked:
            member.linked.transport.know(other.peer.id, await other.signed())
    return made


def test_a_sum_over_real_streams(tmp_path: Path) -> None:
    async def main() -> None:
        async with AsyncExitStack() as stack:
            found = await members(stack, tmp_path, [1.0, 2.0, 0.5], "exact")
            a, b, learner = found
            group = ((b.linked.peer, 3), (learner.linked.peer, 0), (a.linked.peer, 1))
            for done in [member.start(group) for member in found]:
                await done.wait()
            assert all((member.gradient.numbers == 3.0).all() for member in found)

    limited(main)


@pytest.mark.parametrize(("encoding", "error"), [("exact", 0.0), ("int8", 0.1)])
def test_survivors_of_a_killed_member_never_answer_and_reduce_again_without_it(
    tmp_path: Path, encoding: str, error: float
) -> None:
    (tmp_path / "dead").mkdir()
    argv = [sys.executable, str(Path(__file__).with_name("reducing_peer.py")), str(tmp_path / "dead"), "7"]
    child = subprocess.Popen([*argv, str(NUMBERS), encoding], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None and child.stdout is not None
    dead_id, dead_addresses = json.loads(child.stdout.readline())
    dead = Peer(dead_id, 7)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            a, b = await members(stack, tmp_path, [1.0, 2.0], encoding)
            group: Group = ((a.linked.peer, 1), (dead, 1), (b.linked.peer, 1))
            told = [[a.linked.peer.id, 1, 1, await a.linked.p2pd.addresses()], [dead_id, 7, 1, dead_addresses],
                    [b.linked.peer.id, 1, 1, await b.linked.p2pd.addresses()]]  # fmt: skip
            for member in (a, b):
                member.linked.p2pd.gate.give([PeerAddress(dead_id, tuple(dead_addresses))])
                member.start(group)
            child.stdin.write(json.dumps(told) + "\n")  # type: ignore[union-attr]
            child.stdin.flush()  # type: ignore[union-attr]
            await a.own_piece_is_summed()
            await b.own_piece_is_summed()
            assert (abs(a.gradient.numbers[: NUMBERS // 3] - 7.0) <= error).all()
            child.kill()
            child.wait()
            smaller: Group = ((a.linked.peer, 1), (b.linked.peer, 1))
            assert a.done == b.done == []
            for done in [member.start(smaller, view=1) for member in (a, b)]:
                await done.wait()
            assert a.done == b.done == [1]
            assert (abs(a.gradient.numbers - 3.0) <= error).all()
            assert np.array_equal(a.gradient.numbers, b.gradient.numbers)

    try:
        limited(main)
    finally:
        child.kill()
        child.wait()
