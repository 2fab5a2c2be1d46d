"""Whoever has a sum stand still is named to the core, and nobody who is only slow or waits for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
import trio
import trio.testing

from ftnode.node.links.side_messages import say
from ftnode.node.reduction import encoding, exchange, reductions
from ftnode.node.reduction.wire import ReduceReply, hear, request_for
from ftnode.protocol.words.effects import Reduce
from ftnode.protocol.words.types import Peer
from tests.node.reduction.reducing import Member, Wires, group, run, task

Told = tuple[set[str], set[str]]
"""Who owes a part, and who a sum."""
NOBODY: Told = (set(), set())
STILL_SECONDS = 0.4


@pytest.fixture(autouse=True)
def small_and_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 256)
    monkeypatch.setattr(exchange, "STILL_SECONDS", STILL_SECONDS)
    monkeypatch.setattr(reductions, "WATCH_SECONDS", 0.02)


class Listening:
    """A member whose core notes what it is told."""

    def __init__(self, member: Member) -> None:
        self.member, self.told, self.changed = member, [NOBODY], trio.Event()

    def start(self, asked: Reduce) -> None:
        def owed(parts: tuple[Peer, ...], sums: tuple[Peer, ...]) -> None:
            self.told.append(({peer.id for peer in parts}, {peer.id for peer in sums}))
            self.changed.set()
            self.changed = trio.Event()

        self.member.answered = trio.Event()
        self.member.reductions.start(asked, lambda answer: self.member.answered.set(), owed)

    async def hears(self, expected: Told) -> None:
        while self.told[-1] != expected:
            await self.changed.wait()


def three(wires: Wires) -> tuple[Listening, Member, Listening]:
    """a and c are honest and have begun; b has not."""
    a, b, c = (wires.member(name) for name in "abc")
    for index, member in enumerate((a, b, c)):
        member.accumulate(index)
    listening = Listening(a), Listening(c)
    for each in listening:
        each.start(task(group((a, 1), (b, 1), (c, 1))))
    return listening[0], b, listening[1]


def test_who_does_not_take_part_is_named_and_may_still_do_it() -> None:
    async def main(wires: Wires) -> None:
        a, b, c = three(wires)
        await a.hears(({"b"}, {"b", "c"}))
        await c.hears(({"b"}, {"a", "b"}))
        b.start(task(group((a.member, 1), (b, 1), (c.member, 1))))
        await a.member.answered.wait()
        await c.member.answered.wait()
        assert all(parts <= {"b"} for parts, _ in a.told + c.told)

    run(main)


def answers_without_a_sum() -> Callable[[trio.SocketStream], Awaitable[None]]:
    """It takes parts and gives no sum."""

    async def answer(stream: trio.SocketStream) -> None:
        await hear(stream)
        await say(stream, ReduceReply(0))
        while await stream.receive_some(4096):
            pass

    return answer


@pytest.mark.parametrize("gives_parts", [False, True])
def test_who_takes_streams_and_gives_nothing_on_them_is_named(gives_parts: bool) -> None:
    async def main(wires: Wires) -> None:
        a, b, c = three(wires)
        del wires.members["b"]
        wires.answers["b"] = answers_without_a_sum()
        asked = task(group((a.member, 1), (b, 1), (c.member, 1)))
        if gives_parts:
            b.start(asked)
            await a.hears((set(), {"b"}))
            await c.hears((set(), {"b"}))
            return
        for piece, owner in ((0, a), (2, c)):
            stream = await wires.open("b", owner.member.peer.id)
            await say(stream, request_for(asked, "run", 1, piece, 0))
            wires.nursery.start_soon(hear, stream)
        await a.hears(({"b"}, {"b", "c"}))

    run(main)


def test_who_is_slow_is_not_named() -> None:
    """Its bytes come a few at a time, for several times as long as one may stand still."""
    clock = trio.testing.MockClock()

    class SlowWires(Wires):
        async def open(self, sender: str, to: str) -> trio.SocketStream:
            served = await super().open(sender, to)
            if "b" not in (sender, to):
                return served
            ours, theirs = trio.socket.socketpair()
            self.nursery.start_soon(self.relay, trio.SocketStream(theirs), served)
            self.nursery.start_soon(self.relay, served, trio.SocketStream(theirs))
            return trio.SocketStream(ours)

        async def relay(self, source: trio.SocketStream, sink: trio.SocketStream) -> None:
            try:
                while data := await source.receive_some(128):
                    await sink.send_all(data)
                    clock.jump(STILL_SECONDS / 40)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

    async def main(nursery: trio.Nursery) -> None:
        a, b, c = three(SlowWires(nursery))
        began = trio.current_time()
        b.start(task(group((a.member, 1), (b, 1), (c.member, 1))))
        await a.member.answered.wait()
        await c.member.answered.wait()
        assert trio.current_time() - began > 2 * STILL_SECONDS, "or it was not slow"
        assert a.told == c.told == [NOBODY]

    async def bounded() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                await main(nursery)
                nursery.cancel_scope.cancel()

    trio.run(bounded, clock=clock)
