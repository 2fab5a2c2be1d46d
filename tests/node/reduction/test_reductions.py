"""Groups reduce: one sum, in one order, for all; all of it or no answer."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
import trio
import trio.testing

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.links.side_messages import say
from ftnode.node.reduction import encoding, exchange, reductions
from ftnode.node.reduction.reductions import Reductions
from ftnode.node.reduction.wire import ReduceReply, ReduceRequest, hear, request_for
from ftnode.protocol.wire.frames import Refusal
from ftnode.protocol.words.errors import LocalError
from ftnode.protocol.words.types import Attempt, Peer
from tests.node.compute.computing import Port
from tests.node.reduction.reducing import (
    ATTEMPT,
    GROUP_CONFIG,
    STAGE,
    WIDE_CONFIG,
    Member,
    Wires,
    group,
    in_order,
    run,
    task,
)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny stage in many chunks, the last of a piece shorter than the others."""
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 256)


async def request(wires: Wires, to: Member, said: ReduceRequest, sender: str = "b") -> trio.SocketStream:
    stream = await wires.open(sender, to.peer.id)
    await say(stream, said)
    return stream


@pytest.mark.parametrize("config", [GROUP_CONFIG, WIDE_CONFIG], ids=lambda config: config.precision)
def test_all_members_get_the_sum_in_the_groups_order_and_learners_too(config: ComputeConfig) -> None:
    async def main(wires: Wires) -> None:
        a, b, c, idle = [wires.member(name) for name in ("a", "b", "c", "idle")]
        learner = wires.member("learner", learner=True)
        a.accumulate(0), b.accumulate(1, 2), c.accumulate(3)
        before = [member.accumulated() for member in (a, b, c)]
        shares = group((b, 2), (idle, 0), (c, 1), (learner, 0), (a, 1))
        members = (a, b, c, idle, learner)
        for member in members:
            member.start(task(shares))
        answers = [await member.answer() for member in members]
        expected = in_order([before[1], before[2], before[0]])
        assert not np.array_equal(expected, in_order(before))  # the order makes a difference that shows
        assert expected.dtype == config.precision
        for member, answer in zip(members, answers):
            assert np.array_equal(member.summed(), expected)
            assert (answer["gradient"], answer["fault"]) == (answers[0]["gradient"], "")
            assert answer["norm_squared"] == pytest.approx(float((expected.astype(float) ** 2).sum()))
        assert [answer["covered"] for answer in answers] == [[[0, 1]], [[1, 1], [2, 1]], [[3, 1]], [], []]
        for member, accumulated in zip((a, b, c), before):
            assert np.array_equal(member.accumulated(), accumulated)
        assert len({member.apply(1) for member in (a, b, c, idle)}) == 1
        assert not wires.struck

    run(main, config)


@pytest.mark.parametrize("encoding", ["exact", "int8"])
def test_what_came_through_a_relay_is_counted_by_who_got_it(encoding: str) -> None:
    """Of three that contribute each gets two parts of its own third and the sums of two others; a learner gets all."""

    async def main(wires: Wires) -> None:
        a, b, c = members = [wires.member(name) for name in ("a", "b", "c")]
        learner = wires.member("learner", learner=True)
        a.relay = learner.relay = "r"
        for number, member in enumerate(members):
            member.accumulate(number)
        for member in (*members, learner):
            member.start(task(group((a, 1), (b, 1), (c, 1), (learner, 0))))
        relayed = [(await member.answer())["relayed"] for member in (*members, learner)]
        whole = relayed[3]["r"]
        assert relayed[1:3] == [{}, {}]
        assert relayed[0].keys() == {"r"} and relayed[0]["r"] == pytest.approx(4 * whole / 3, rel=0.01)
        exact = len(a.memory.view(STAGE))
        assert whole == exact if encoding == "exact" else exact / 2 <= whole < 0.6 * exact  # of bfloat16

    run(main, encoding=encoding)


def test_a_group_agrees_with_one_that_did_it_alone() -> None:
    async def main(wires: Wires) -> None:
        a, b, alone = wires.member("a"), wires.member("b"), wires.member("alone")
        a.accumulate(0), b.accumulate(1), alone.accumulate(0, 1)
        for member in (a, b):
            member.start(task(group((a, 1), (b, 1))))
        hashes = {(await member.answer())["gradient"] for member in (a, b)}
        alone.compute.call("reduce", stage=STAGE, step=1, attempt=list(ATTEMPT))
        assert len(hashes) == 1
        a.apply(1), b.apply(1), alone.apply(1)
        assert np.allclose(a.stage.weights, alone.stage.weights, atol=1e-5)
        assert np.array_equal(a.stage.weights, b.stage.weights)

    run(main)


def test_without_one_of_the_group_nobody_answers_and_a_smaller_group_reduces_what_is_left() -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        before = [a.accumulated(), b.accumulated()]
        dead = Peer("dead", 1)
        for member in (a, b):
            member.start(task(group((a, 1), (dead, 1), (b, 1))))
        await trio.testing.wait_all_tasks_blocked()
        a.accumulate(2)  # the dead's work, done again
        before[0] = a.accumulated()
        for member in (a, b):
            member.start(task(group((a, 2), (b, 1)), view=1))
        for member in (a, b):
            await member.answer()
            assert np.array_equal(member.summed(), in_order(before))
            assert len(member.answers) == 1

    run(main)


@pytest.mark.parametrize("sum_seconds", [0.0, 1000.0])
def test_a_sum_is_given_up_only_after_the_time_that_the_core_lets_it_take(
    sum_seconds: float, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            a, dead = Wires(nursery).member("a"), Peer("dead", 1)
            compute, streams = Port(a.compute), a.reductions._streams
            a.reductions = Reductions("run", a.peer, a.memory, compute, streams, sum_seconds=sum_seconds)
            a.reductions.begin(nursery)
            a.accumulate(0)
            a.start(task(group((a, 1), (dead, 1))))
            with trio.move_on_after(sum_seconds + reductions.GIVE_UP_SECONDS - 1):
                await a.answered.wait()
            assert "is given up" not in caplog.text
            with trio.move_on_after(2):
                await a.answered.wait()
            assert "is given up" in caplog.text and a.answers == []
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_a_stream_that_breaks_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "PAUSE_SECONDS", 0.001)

    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        expected = in_order([a.accumulated(), b.accumulated()])
        opened = 0

        async def cut(stream: trio.SocketStream) -> None:
            """Whatever goes to `a` ends after some bytes, in either direction."""
            nonlocal opened
            opened += 1
            onward, served = trio.socket.socketpair()
            wires.nursery.start_soon(a.reductions.serve, "b", trio.SocketStream(served))
            left = [700 * opened]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(pump, stream, trio.SocketStream(onward), left, nursery.cancel_scope)
                nursery.start_soon(pump, trio.SocketStream(onward), stream, left, nursery.cancel_scope)
            onward.close()

        wires.answers["a"] = cut
        for member in (a, b):
            member.start(task(group((a, 1), (b, 1))))
        for member in (a, b):
            await member.answer()
            assert np.array_equal(member.summed(), expected)
        assert opened > 2

    run(main)


async def pump(
    source: trio.SocketStream, sink: trio.SocketStream, left: list[int], scope: trio.CancelScope
) -> None:  # fmt: skip
    while left[0] > 0 and (data := await source.receive_some(100)):
        left[0] -= len(data)
        await sink.send_all(data)
    scope.cancel()


def test_a_request_before_our_own_task_waits_for_it() -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        members = group((a, 1), (b, 1))
        b.start(task(members))
        await trio.testing.wait_all_tasks_blocked()
        assert not b.answers
        a.start(task(members))
        assert (await a.answer())["gradient"] == (await b.answer())["gradient"]

    run(main)


def test_an_early_request_waits_a_while_only_and_one_per_sender(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reductions, "EARLY_SECONDS", 0.01)
    monkeypatch.setattr(reductions, "EARLY_MAX", 1)

    async def main(wires: Wires) -> None:
        a = wires.member("a")
        said = request_for(task(group((a, 1), (Peer("b", 1), 1))), "run", 1, 0, 0)
        for _ in range(3):
            answer = await hear(await request(wires, a, said))
            assert answer == Refusal("this reduction has not begun here", retry=True)
        monkeypatch.setattr(reductions, "EARLY_SECONDS", 20)
        first = await request(wires, a, said)
        await trio.testing.wait_all_tasks_blocked()
        assert await hear(await request(wires, a, said, sender="c")) == Refusal("too many wait", retry=True)
        await request(wires, a, said)
        assert isinstance(await hear(first), Refusal)
        assert not wires.struck

    run(main)


def test_what_is_not_of_the_reduction_is_refused() -> None:
    async def main(wires: Wires) -> None:
        a = wires.member("a")
        b = Peer("b", 1)
        a.accumulate(0)
        members = group((a, 1), (b, 1))
        a.start(task(members, view=3))
        await trio.testing.wait_all_tasks_blocked()
        for sender, said, words in (
            ("stranger", request_for(task(members, view=3), "run", 1, 0, 0), "not of the group"),
            ("b", request_for(task(members, view=3), "run", 2, 0, 0), "not of the group"),
            ("b", request_for(task(group((a, 1), (b, 2)), view=3), "run", 1, 0, 0), "another group"),
            ("b", request_for(task(members, view=3), "run", 1, 1, 0), "not ours"),
            ("b", request_for(task(members, view=3), "other", 1, 0, 0), "another run"),
            ("b", request_for(task(members, view=2), "run", 1, 0, 0), "of change 3"),
        ):
            answer = await hear(await request(wires, a, said, sender))
            assert isinstance(answer, Refusal) and words in answer.reason
        assert not wires.struck

    run(main)


@pytest.mark.parametrize(
    "bytes_", [b"\xff\xff\xff\xff", b"\x00\x10\x00\x00", b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x02\x91\x91", bytes(4)]
)
def test_a_header_that_is_none_is_an_offence_and_takes_no_memory(bytes_: bytes) -> None:
    async def main(wires: Wires) -> None:
        wires.member("a")
        stream = await wires.open("b", "a")
        await stream.send_all(bytes_)
        assert await stream.receive_some() == b""
        assert len(wires.struck) == 1

    run(main)


@pytest.mark.parametrize(
    "change", [{"stage": 99}, {"have": 1 << 40}, {"have": -1}, {"group": b"short"}, {"view": -1}], ids=str
)
def test_a_request_for_what_cannot_be_is_an_offence(change: dict[str, object]) -> None:
    async def main(wires: Wires) -> None:
        a = wires.member("a")
        a.accumulate(0)
        members = group((a, 1), (Peer("b", 1), 1))
        a.start(task(members))
        await trio.testing.wait_all_tasks_blocked()
        said = request_for(task(members), "run", 1, 0, 0)
        fields = {name: getattr(said, name) for name in said.__slots__}
        stream = await request(wires, a, ReduceRequest(**{**fields, **change}))
        assert await stream.receive_some() == b""
        assert len(wires.struck) == 1

    run(main)


def test_a_member_without_work_that_sends_some_has_no_effect() -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0)
        expected = a.accumulated()
        members = group((a, 1), (b, 0))
        a.start(task(members))
        stream = await request(wires, a, request_for(task(members), "run", 1, 0, 0))
        assert await hear(stream) == ReduceReply(0)
        with suppress(trio.BrokenResourceError):  # it may have heard enough
            await stream.send_all(b"\x7f" * 100)
        b.start(task(members))
        for member in (a, b):
            await member.answer()
            assert np.array_equal(member.summed(), expected)

    run(main)


def test_numbers_that_are_none_are_a_fault_everywhere_and_touch_no_accumulator() -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        b.stage.gradient[7] = float("nan")
        before = a.accumulated()
        for member in (a, b):
            member.start(task(group((a, 1), (b, 1))))
        for member in (a, b):
            assert "squared norm of nan" in (await member.answer())["fault"]
        assert np.array_equal(a.accumulated(), before)

    run(main)


def test_a_count_that_is_not_ours_is_no_reduction() -> None:
    async def main(wires: Wires) -> None:
        a = wires.member("a")
        a.accumulate(0)
        a.start(task(group((a, 2))))
        await a.answered.wait()
        assert "1 visits are accumulated here, not the 2" in str(a.answers[0])
        for wrong in (group((Peer("b", 1), 1)), group((a, 0)), group((a, 1), (a, 1))):
            with pytest.raises(LocalError):
                a.start(task(wrong))

    run(main)


def test_a_slow_member_gets_the_sum_after_the_step_is_over_but_not_after_the_next() -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        learner = wires.member("learner", learner=True)
        a.accumulate(0), b.accumulate(1)
        expected = in_order([a.accumulated(), b.accumulated()])
        members = group((a, 1), (b, 1), (learner, 0))
        for member in (a, b):
            member.start(task(members))
        for member in (a, b):
            await member.answer()
            member.apply(1)
            member.compute.call("discard", keep=None)
            member.reductions.discard(None)
        learner.start(task(members))
        await learner.answer()
        assert np.array_equal(learner.summed(), expected)
        second = Attempt(0, 2)
        for member in (a, b):
            member.accumulate(0 if member is a else 1, step=2, attempt=second)
            member.start(task(members, step=2, attempt=second))
            await trio.testing.wait_all_tasks_blocked()
        learner.start(task(members))
        await trio.testing.wait_all_tasks_blocked()
        assert len(learner.answers) == 1

    run(main)


def test_what_is_given_up_is_never_answered() -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        members = group((a, 1), (b, 1))
        for end in (
            lambda: a.reductions.discard(None),
            lambda: a.reductions.discard(Attempt(0, 2)),
            lambda: a.reductions.replace(STAGE),
            lambda: a.reductions.lost(),
        ):
            a.start(task(members))
            await trio.testing.wait_all_tasks_blocked()
            end()
        b.start(task(members))
        await trio.testing.wait_all_tasks_blocked()
        assert not a.answers and not b.answers
        a.start(task(members))
        a.reductions.discard(ATTEMPT)
        assert (await a.answer())["gradient"] == (await b.answer())["gradient"]

    run(main)


def test_who_has_given_up_does_not_answer_when_the_others_are_done() -> None:
    async def main(wires: Wires) -> None:
        a, b, idle = (wires.member(name) for name in ("a", "b", "idle"))
        a.accumulate(0), b.accumulate(1)
        members = group((a, 1), (b, 1), (idle, 0))
        idle.start(task(members))
        await trio.testing.wait_all_tasks_blocked()
        idle.reductions.give_up(STAGE)
        for member in (a, b):
            member.start(task(members))
        for member in (a, b):
            await member.answer()
        await trio.testing.wait_all_tasks_blocked()
        assert not idle.answers

    run(main)


def test_what_was_reduced_last_is_applied() -> None:
    """A group's sum, then alone what is left after the others are gone; and the other way round."""

    async def main(wires: Wires) -> None:
        a, b, reference = (wires.member(name) for name in ("a", "b", "reference"))
        for member in (a, reference):
            member.accumulate(0)
        b.accumulate(1)
        for member in (a, b):
            member.start(task(group((a, 1), (b, 1))))
        hashes = [(await member.answer())["gradient"] for member in (a, b)]
        alone = {"stage": STAGE, "step": 1, "attempt": list(ATTEMPT)}
        expected = reference.compute.call("reduce", **alone)
        a.reductions.replace(STAGE)
        assert a.compute.call("reduce", **alone) == expected
        assert a.apply(1) == reference.apply(1)
        b.compute.call("reduce", **alone)
        b.start(task(group((b, 1)), view=1))
        assert (await b.answer())["gradient"] not in hashes
        together = b.accumulated()
        assert np.array_equal(b.summed(), together)

    run(main)
