"""What one gave to another's piece of a sum, shown to a third by that one, and signed by the first (rule 50)."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
import trio

from ftnode.node.links.side_messages import say
from ftnode.node.reduction import encoding
from ftnode.node.reduction.exchange import Noted
from ftnode.node.reduction.part_seals import PartSeals
from ftnode.node.reduction.sketch import distance
from ftnode.node.reduction.wire import PartReply, hear
from tests.node.reduction.reducing import ATTEMPT, NUMBERS, STAGE, Member, Wires, group, run, task
from tests.node.reduction.test_checked_parts import CHECK_TOLERANCE, LIES, do_again

COUNTS = {"a": (0,), "b": (3, 4), "c": (1,)}


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 1024)


def signature(name: str, data: bytes) -> bytes:
    """As only this peer could make it."""
    return hashlib.blake2b(data, key=name.encode()).digest()


def seals_of(name: str) -> PartSeals:
    return PartSeals("run", lambda data: signature(name, data), lambda by, data, told: told == signature(by, data))


def forged(name: str) -> PartSeals:
    return PartSeals("run", lambda data: signature("x", data), lambda by, data, told: told == signature(by, data))


async def shown(asked: Member, owner: Member, of: Member) -> Noted | str:
    """What `asked` sees of what `of` gave to the piece of `owner`."""
    found: list[Noted | str] = []
    done = trio.Event()

    def answered(noted: Noted | str) -> None:
        found.append(noted)
        done.set()

    asked.reductions.ask_for_part(STAGE, ATTEMPT, owner.peer, of.peer, answered)
    await done.wait()
    return found[0]


def off(asked: Member, of: Member, noted: Noted) -> float:
    answer = asked.compute.call(
        "weigh", stage=STAGE, step=1, attempt=list(ATTEMPT), of=list(of.peer), key=noted.sketch.key, parts=[noted.parts]
    )
    assert answer["fault"] == ""
    return distance(noted.sketch.sums, answer["sums"][0], noted.beside)


def in_a_group(then: Callable[[Wires, Member, Member, Member], Awaitable[None]], sums: str = "exact",
               lie: str = "", checks: bool = True, counts: dict[str, tuple[int, ...]] = COUNTS) -> None:  # fmt: skip
    """a checks b, and c has done b's visits again; all three have the sum. `counts`: the microbatches of each."""

    async def main(wires: Wires) -> None:
        wires.seals = seals_of if checks else wires.seals
        members = {name: wires.member(name) for name in counts}
        a, b, c = members.values()
        for name, microbatches in counts.items():
            members[name].accumulate(*microbatches)
        if lie:
            LIES[lie](b.stage.gradient)
        do_again(c, b, *counts["b"])
        shares = group(*((members[name], len(counts[name])) for name in counts))
        a.start(replace(task(shares), checked=b.peer if checks else None))
        b.start(task(shares))
        c.start(task(shares))
        for member in members.values():
            await member.answer()
        await then(wires, a, b, c)

    run(main, encoding=sums)


@pytest.mark.parametrize("sums", ["exact", "int8", "int4"])
def test_a_third_sees_that_what_was_given_is_right(sums: str) -> None:
    async def then(wires: Wires, a: Member, b: Member, c: Member) -> None:
        noted = await shown(c, a, b)
        assert not isinstance(noted, str), noted
        assert off(c, b, noted) <= (1e-5 if sums == "exact" else CHECK_TOLERANCE[sums])
        ((begin, end),) = noted.parts
        assert begin == 0 and abs(end - NUMBERS[STAGE] / 3) <= 1 and not wires.struck

    in_a_group(then, sums)


@pytest.mark.parametrize("lie", LIES)
def test_a_third_sees_every_lie(lie: str) -> None:
    async def then(wires: Wires, a: Member, b: Member, c: Member) -> None:
        noted = await shown(c, a, b)
        assert not isinstance(noted, str) and off(c, b, noted) > 0.1

    in_a_group(then, lie=lie)


def test_a_third_without_work_of_its_own_sees_it_as_well() -> None:
    async def then(wires: Wires, a: Member, b: Member, c: Member) -> None:
        noted = await shown(c, a, b)
        assert not isinstance(noted, str) and off(c, b, noted) > 0.1

    in_a_group(then, lie=next(iter(LIES)), counts=COUNTS | {"c": ()})


@pytest.mark.parametrize("counts", [COUNTS | {"a": ()}, COUNTS | {"a": (), "c": ()}])
def test_who_has_no_piece_sees_nothing_that_it_could_not_show(counts: dict[str, tuple[int, ...]]) -> None:
    """Else it would be in the wrong, although it is right."""

    async def then(wires: Wires, a: Member, b: Member, c: Member) -> None:
        assert a.reductions.noted(STAGE, ATTEMPT, b.peer) is None

    in_a_group(then, lie=next(iter(LIES)), counts=counts)


def test_in_a_run_without_checks_nothing_is_kept() -> None:
    async def then(wires: Wires, a: Member, b: Member, c: Member) -> None:
        noted = await shown(c, a, b)
        assert isinstance(noted, str) and not wires.struck and not a.reductions._exchanges[STAGE].parts._kept

    in_a_group(then, checks=False)


def changed(a: Member) -> None:
    """It shows something else than it was given."""
    kept = a.reductions._exchanges[STAGE].parts._kept
    for place, chunks in kept.items():
        kept[place] = [bytes(len(chunk)) for chunk in chunks]


def test_what_was_not_signed_counts_for_nothing() -> None:
    async def then(wires: Wires, a: Member, b: Member, c: Member) -> None:
        changed(a)
        noted = await shown(c, a, b)
        assert isinstance(noted, str) and "has not signed" in noted

    in_a_group(then)


def test_planted_signatures_that_nobody_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then who accuses somebody honest can show something that it made up."""
    monkeypatch.setattr(PartSeals, "is_by", lambda self, *given: True)

    async def then(wires: Wires, a: Member, b: Member, c: Member) -> None:
        changed(a)
        noted = await shown(c, a, b)
        assert not isinstance(noted, str) and off(c, b, noted) > 0.1

    in_a_group(then)


def test_a_part_without_its_signature_is_no_part() -> None:
    """Its owner names who owes it, as where nothing came."""

    async def main(wires: Wires) -> None:
        wires.seals = lambda name: forged(name) if name == "b" else seals_of(name)
        members = {name: wires.member(name) for name in COUNTS}
        for name, microbatches in COUNTS.items():
            members[name].accumulate(*microbatches)
        shares = group(*((members[name], len(COUNTS[name])) for name in COUNTS))
        for member in members.values():
            member.start(task(shares))
        with trio.move_on_after(1.0):
            await members["a"].answer()
        assert not members["a"].answers
        assert any("signature" in reason for reason in wires.struck)

    run(main)


def test_nobody_outside_the_group_is_shown_anything() -> None:
    async def then(wires: Wires, a: Member, b: Member, c: Member) -> None:
        stranger = wires.member("d")
        stranger.reductions._exchanges[STAGE] = c.reductions._exchanges[STAGE]
        exchange = stranger.reductions._exchanges[STAGE]
        exchange.parts._streams = stranger.reductions._streams
        noted = await shown(stranger, a, b)
        assert isinstance(noted, str) and "not of the group" in noted

    in_a_group(then)


def test_who_shows_a_part_too_slowly_is_not_listened_to_without_end() -> None:
    """Each chunk may come in time, and all of a large piece after days."""

    async def then(wires: Wires, a: Member, b: Member, c: Member) -> None:
        async def slowly(stream: trio.SocketStream) -> None:
            await hear(stream)
            await say(stream, PartReply(bytes(64), 0.0))
            await trio.sleep_forever()

        wires.answers["a"] = slowly
        del wires.members["a"]
        c.reductions._patience = 0.1
        found = await shown(c, a, b)
        assert isinstance(found, str) and "shows nothing" in found

    in_a_group(then)
