"""Sums that travel encoded: the same bits for all, whoever dies or lies, and for a step that is done again."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
import trio.testing

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.links.side_messages import say
from ftnode.node.reduction import encoding, exchange
from ftnode.node.reduction.encoding import Blocks
from ftnode.node.reduction.piece_sum import PieceSum
from ftnode.node.reduction.wire import ReduceReply, hear, request_for
from ftnode.protocol.words.types import Attempt, Peer
from tests.node.reduction.reducing import (
    ATTEMPT,
    GROUP_CONFIG,
    WIDE_CONFIG,
    Floats,
    Member,
    Wires,
    encoded_sum,
    group,
    in_order,
    run,
    task,
)
from tests.node.reduction.spoilt_encodings import Hasty, Hoarder, Scaleless

NAMES = ["int8", "int4"]
CHUNK_NUMBERS = 256
STEPS = 3


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tiny stage in many chunks, the last of a piece shorter than the others."""
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 4 * CHUNK_NUMBERS)
    monkeypatch.setattr(exchange, "PAUSE_SECONDS", 0.001)


async def summed(members: list[Member], asked: list[Member], **of: Any) -> list[dict[str, Any]]:
    """The answers to a sum of what `asked` have."""
    for member in members:
        member.start(task(group(*((m, int(m in asked)) for m in members)), **of))
    return [await member.answer() for member in members]


@pytest.mark.parametrize("config", [GROUP_CONFIG, WIDE_CONFIG], ids=lambda config: config.precision)
@pytest.mark.parametrize("name", NAMES)
def test_after_every_step_all_have_the_same_weights(name: str, config: ComputeConfig) -> None:
    async def main(wires: Wires) -> None:
        members = [wires.member(who) for who in ("a", "b", "c", "idle")]
        for step in range(1, STEPS + 1):
            attempt = Attempt(0, step)
            for index, member in enumerate(members[:3]):
                member.accumulate(index, step=step, attempt=attempt)
            parts = [member.accumulated() for member in members[:3]]
            answers = await summed(members, members[:3], step=step, attempt=attempt)
            expected = encoded_sum(parts, name, step)
            near = np.abs(expected - in_order(parts)).max() / np.abs(expected).max()
            assert 0 < near < {"int8": 0.05, "int4": 0.8}[name]
            for member in members:
                assert np.array_equal(member.summed(), expected)
            assert len({answer["gradient"] for answer in answers}) == 1
            norm = float((expected.astype(float) ** 2).sum())
            assert answers[0]["norm_squared"] == pytest.approx(norm), "of what is applied"
            assert len({member.apply(step, attempt) for member in members}) == 1
        assert not wires.struck

    run(main, config, name)


@pytest.mark.parametrize("name", NAMES)
def test_after_a_death_in_the_sum_the_others_have_the_same(name: str) -> None:
    async def main(wires: Wires) -> None:
        a, b, learner = wires.member("a"), wires.member("b"), wires.member("learner", learner=True)
        dead = Peer("dead", 1)
        a.accumulate(0), b.accumulate(1)
        for member in (a, b, learner):
            member.start(task(group((a, 1), (dead, 1), (b, 1), (learner, 0))))
        stream = await wires.open("dead", "a")
        await say(stream, request_for(task(group((a, 1), (dead, 1), (b, 1), (learner, 0))), "run", 1, 0, 0))
        await hear(stream)
        await stream.send_all(encoded(name, 256))
        await trio.testing.wait_all_tasks_blocked()
        assert a.reductions._exchanges[1].sum.done > 0  # type: ignore[union-attr]
        await stream.aclose()
        a.accumulate(2)
        parts = [a.accumulated(), b.accumulated()]
        shares = group((a, 2), (b, 1), (learner, 0))
        for member in (a, b, learner):
            member.start(task(shares, view=1))
        hashes = {(await member.answer())["gradient"] for member in (a, b, learner)}
        assert len(hashes) == 1
        for member in (a, b, learner):
            assert np.array_equal(member.summed(), encoded_sum(parts, name))
        assert a.apply(1) == b.apply(1)
        following = Attempt(1, 2)
        for index, member in enumerate((a, b)):
            member.accumulate(index, step=2, attempt=following)
        assert len({answer["gradient"] for answer in await summed([a, b], [a, b], step=2, attempt=following)}) == 1
        assert a.apply(2, following) == b.apply(2, following), "the dead one has left nothing behind"

    run(main, encoding=name)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_is_done_again_has_the_same_sum(name: str) -> None:
    assert np.array_equal(*done_twice(name))


def test_a_rounding_that_depends_on_the_time_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "Blocks", Hasty)
    assert not np.array_equal(*done_twice("int8"))


def test_a_residual_that_is_not_committed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "Blocks", Hoarder)
    assert not np.array_equal(*done_twice("int4"))


def done_twice(name: str) -> tuple[Floats, Floats]:
    """The sum of a step, and of the same step's next attempt in a later view."""
    found: list[Floats] = []

    async def main(wires: Wires) -> None:
        for attempt in (ATTEMPT, Attempt(2, 1)):
            members = [wires.member(f"{who}{attempt.view}") for who in "abc"]
            for index, member in enumerate(members):
                member.accumulate(index, attempt=attempt)
            await summed(members, members, attempt=attempt, view=attempt.view)
            found.append(members[0].summed())

    run(main, encoding=name)
    return found[0], found[1]


def test_a_decoder_that_ignores_scales_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "Blocks", Scaleless)

    async def main(wires: Wires) -> None:
        members = [wires.member(who) for who in "ab"]
        for index, member in enumerate(members):
            member.accumulate(index)
        await summed(members, members)
        expected = in_order([member.accumulated() for member in members])
        assert not np.abs(members[0].summed() - expected).max() < 0.05 * np.abs(expected).max()

    run(main, encoding="int8")


def test_an_owner_that_keeps_its_exact_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def keeps(self: PieceSum) -> None:
        at = self.done
        total = sum(self._part(k, at).copy() for k in self._order)
        self.content[at : self.piece.end(at)] = self.piece.encode(at, total, -1)
        self.piece.chunk(at)[:] = total
        self.done = self.piece.end(at)

    monkeypatch.setattr(PieceSum, "_add_up", keeps)

    async def main(wires: Wires) -> None:
        members = [wires.member(who) for who in "ab"]
        for index, member in enumerate(members):
            member.accumulate(index)
        assert len({answer["gradient"] for answer in await summed(members, members)}) == 2

    run(main, encoding="int8")


@pytest.mark.parametrize("name", NAMES)
def test_poison_is_named_by_everybody(name: str) -> None:
    async def main(wires: Wires) -> None:
        members = [wires.member(who) for who in "abc"]
        for index, member in enumerate(members):
            member.accumulate(index)
        members[1].stage.gradient[[7, -7]] = float("nan")
        members[2].stage.gradient[[7, -7]] = float("-inf")
        for answer in await summed(members, members):
            assert "squared norm" in answer["fault"]
        assert not wires.struck

    run(main, encoding=name)


def encoded(name: str, count: int, scale: int | None = None) -> bytes:
    """A chunk of zeros; `scale`: bits of its last one."""
    content = bytearray(Blocks(name, 4).encode(np.zeros(count, np.float32), bytes(16), 0))
    if scale is not None:
        at = 2 * (count // encoding.BLOCK - 1)
        content[at : at + 2] = scale.to_bytes(2, "little")
    return bytes(content)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xBF80, 0x0001, 0x8000], ids=hex)
@pytest.mark.parametrize("name", NAMES)
def test_scales_of_a_contributor_that_are_none_are_a_strike_and_the_sum_goes_on(name: str, bits: int) -> None:
    """After a good chunk, which stays: only the bad one is sent again."""

    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        b.stage.gradient[: 2 * CHUNK_NUMBERS] = 0
        parts, members = [a.accumulated(), b.accumulated()], group((a, 1), (b, 1))
        a.start(task(members))
        stream = await wires.open("b", "a")
        await say(stream, request_for(task(members), "run", 1, 0, 0, float(np.linalg.norm(parts[1]))))
        assert await hear(stream) == ReduceReply(0)
        good, bad = encoded(name, CHUNK_NUMBERS), encoded(name, CHUNK_NUMBERS, bits)
        await stream.send_all(good + bad)
        while await stream.receive_some():
            pass
        assert wires.struck == ["a scale that is none in an encoded sum"]
        assert a.reductions._exchanges[1].sum.done == len(good)  # type: ignore[union-attr]
        b.start(task(members))
        assert (await a.answer())["gradient"] == (await b.answer())["gradient"]
        assert np.array_equal(a.summed(), encoded_sum(parts, name)) and len(wires.struck) == 1

    run(main, encoding=name)


@pytest.mark.parametrize("name", NAMES)
def test_scales_of_an_owner_that_are_none_are_a_strike_and_the_sum_goes_on(name: str) -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        parts = [a.accumulated(), b.accumulated()]

        async def infinite(stream: trio.SocketStream) -> None:
            await hear(stream)
            await say(stream, ReduceReply(0))
            await stream.send_all(encoded(name, CHUNK_NUMBERS, 0x7F80))
            while await stream.receive_some(4096):
                pass

        wires.lies_twice("b", "a", infinite)
        for member in (a, b):
            member.start(task(group((a, 1), (b, 1))))
        assert (await a.answer())["gradient"] == (await b.answer())["gradient"]
        assert np.array_equal(a.summed(), encoded_sum(parts, name)) and len(wires.struck) == 2

    run(main, encoding=name)


@pytest.mark.parametrize("name", ["exact", *NAMES])
def test_positions_within_a_chunk_are_an_offence(name: str) -> None:
    async def main(wires: Wires) -> None:
        a = wires.member("a")
        a.accumulate(0)
        b = Peer("b", 1)

        async def answer(stream: trio.SocketStream) -> None:
            await hear(stream)
            await say(stream, ReduceReply(1))
            await stream.receive_some()

        wires.answers["b"] = answer
        members = group((a, 1), (b, 1))
        a.start(task(members))
        stream = await wires.open("b", "a")
        await say(stream, request_for(task(members), "run", 1, 0, 5))
        assert await stream.receive_some() == b""
        await trio.testing.wait_all_tasks_blocked()
        assert {"an answer to a ReduceRequest that is none", "a ReduceRequest for what is not here"} <= {*wires.struck}

    run(main, encoding=name)
