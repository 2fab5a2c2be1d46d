"""Who is not of the group takes nothing from those who are."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from ftnode.node.links.side_messages import say
from ftnode.node.reduction import reductions, wire
from ftnode.node.reduction.wire import ReduceRequest, hear
from ftnode.protocol.wire.frames import Refusal
from ftnode.protocol.wire.length_prefix import framed
from ftnode.protocol.words.types import Attempt
from tests.node.reduction.reducing import STAGE, Member, Wires, group, run, task


async def ask(wires: Wires, to: Member, said: ReduceRequest, sender: str) -> trio.SocketStream:
    stream = await wires.open(sender, to.peer.id)
    await say(stream, said)
    return stream


def test_strangers_who_wait_do_not_keep_members_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reductions, "EARLY_MAX", 4)

    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        said = ReduceRequest("run", 1, STAGE, 1, Attempt(9, 9), 99, b"0" * 16, 0, 0)
        for number in range(4):
            await ask(wires, a, said, f"early{number}")
        await trio.testing.wait_all_tasks_blocked()
        for member in (a, b):
            member.start(task(group((a, 1), (b, 1))))
        assert {(await member.answer())["gradient"] for member in (a, b)} == {a.answers[0]["gradient"]}  # type: ignore[index]

    run(main)


@pytest.mark.parametrize("body", [b"\x91" * 1000 + b"\x90", b"\x91" * 4000, b"\xc1", b"\xdd\xff\xff\xff\xff"])
def test_an_answer_that_is_none_is_a_strike_and_the_reduction_goes_on(body: bytes) -> None:
    """A member once ended the process of who asked it, by an answer nested a thousand deep."""

    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)

        async def none(stream: trio.SocketStream) -> None:
            await stream.receive_some(4096)
            await stream.send_all(framed(body))

        wires.lies_twice("b", "a", none)
        for member in (a, b):
            member.start(task(group((a, 1), (b, 1))))
        assert (await a.answer())["gradient"] and len(wires.struck) == 2

    run(main)


def test_an_answer_that_nobody_thought_of_is_a_strike_and_the_reduction_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = 0

    async def odd(stream: trio.SocketStream) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ZeroDivisionError
        return await hear(stream)

    async def main(wires: Wires) -> None:
        monkeypatch.setattr(wire, "hear", odd)
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        for member in (a, b):
            member.start(task(group((a, 1), (b, 1))))
        assert (await a.answer())["gradient"] and len(wires.struck) == 1

    run(main)


def test_only_who_may_waits_for_a_reduction_that_has_not_begun() -> None:
    async def main(wires: Wires) -> None:
        a = wires.member("a")
        a.reductions._allowed = lambda peer_id: peer_id == "b"
        said = ReduceRequest("run", 1, STAGE, 1, Attempt(9, 9), 99, b"0" * 16, 0, 0)
        answer = await hear(await ask(wires, a, said, "stranger"))
        assert isinstance(answer, Refusal) and answer.retry and "no member" in answer.reason
        await ask(wires, a, said, "b")
        await trio.testing.wait_all_tasks_blocked()
        assert list(a.reductions._early) == [("b", STAGE)]

    run(main)
