"""Reductions whose streams break at random, and that are begun anew at random: what is answered is always the sum."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import trio
import trio.testing

from ftnode.node.reduction import encoding, exchange
from ftnode.protocol.words.types import Peer
from tests.node.reduction.reducing import STAGE, Member, Wires, encoded_sum, group, task

MEMBERS = ("a", "b", "c", "d", "idle")


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 128)
    monkeypatch.setattr(exchange, "PAUSE_SECONDS", 0.0005)
    monkeypatch.setattr(exchange, "PAUSE_SECONDS_MAX", 0.002)


class BreakingWires(Wires):
    """Every stream has a number of bytes after which it ends, in both directions."""

    def __init__(self, nursery: trio.Nursery, chance: Random, encoding: str) -> None:
        super().__init__(nursery, encoding=encoding)
        self.chance = chance

    async def open(self, sender: str, to: str) -> trio.SocketStream:
        served = await super().open(sender, to)
        ours, theirs = trio.socket.socketpair()
        self.nursery.start_soon(self._relay, trio.SocketStream(theirs), served)
        return trio.SocketStream(ours)

    async def _relay(self, one: trio.SocketStream, other: trio.SocketStream) -> None:
        left = [self.chance.choice((0, 50, 300, 1000, 5000, 1 << 30))]

        async def pump(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            try:
                while left[0] > 0 and (data := await source.receive_some(min(left[0], 512))):
                    left[0] -= len(data)
                    await sink.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass
            nursery.cancel_scope.cancel()

        async with one, other, trio.open_nursery() as nursery:
            nursery.start_soon(pump, one, other)
            nursery.start_soon(pump, other, one)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["exact", "int8", "int4"])
def test_what_is_answered_is_the_sum_of_those_who_were_asked(name: str, seed: int) -> None:
    chance = Random(seed)

    async def main(nursery: trio.Nursery) -> None:
        wires = BreakingWires(nursery, chance, name)
        members: list[Member] = [wires.member(name, learner=name == "idle") for name in MEMBERS]
        workers = members[:-1]
        for index, member in enumerate(workers):
            member.accumulate(index)
        for view in range(8):
            asked = chance.sample(workers, chance.randint(1, len(workers)))
            shares = group(*((member, 1) for member in asked), (members[-1], 0))
            started = chance.sample([*asked, members[-1]], len(asked) + 1)
            complete = view % 2 == 1
            if not complete:  # somebody does not take part, and all are asked anew
                started = started[1:]
            for member in started:
                member.answers.clear()
                member.start(task(shares, view=view))
                for _ in range(chance.randrange(20)):
                    await trio.lowlevel.checkpoint()
            if not complete:
                continue
            expected = encoded_sum([member.accumulated() for member in asked], name)
            hashes = {(await member.answer())["gradient"] for member in started}
            assert len(hashes) == 1
            for member in started:
                assert np.array_equal(member.summed(), expected)
                assert len(member.answers) == 1
        assert not wires.struck

    async def bounded() -> None:
        with trio.fail_after(40):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(bounded)


def test_a_reduction_waits_until_nobody_touches_the_memory_for_the_one_before() -> None:
    async def main(wires: Wires) -> None:
        a = wires.member("a")
        a.accumulate(0)
        alone, dead = group((a, 1)), Peer("dead", 1)
        a.start(task(group((a, 1), (dead, 1))))
        await trio.testing.wait_all_tasks_blocked()
        slow = trio.Event()

        async def writing() -> None:
            with a.reductions._exchanges[STAGE].visit(dead), trio.CancelScope(shield=True):
                await slow.wait()
                a.memory.view(STAGE)[:4] = b"\x7f" * 4

        wires.nursery.start_soon(writing)
        await trio.testing.wait_all_tasks_blocked()
        for view in (1, 2):
            a.start(task(alone, view=view))
            await trio.testing.wait_all_tasks_blocked()
            assert not a.answers
        slow.set()
        await a.answer()
        assert np.array_equal(a.summed(), a.accumulated()) and len(a.answers) == 1

    async def bounded() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await main(Wires(nursery))
                nursery.cancel_scope.cancel()

    trio.run(bounded)
