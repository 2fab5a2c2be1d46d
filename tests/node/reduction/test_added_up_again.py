"""The sum that one of three or more made of its piece is added up again, of parts that the others have signed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
import trio
import trio.testing

from ftnode.lab.hostile.lies import SUM_FACTORS
from ftnode.node.reduction import encoding, part_bounds, shown_parts, wire
from ftnode.node.reduction.exchange import Exchange, Noted
from ftnode.node.reduction.part_bounds import PartBounds, SignedParts
from ftnode.node.reduction.part_seals import PartSeals
from ftnode.node.reduction.shown_parts import SHOWN_TIMES, ShownParts
from ftnode.node.reduction.wire import TurnedAway
from ftnode.protocol.manifest.parse import CHECK_TOLERANCE
from ftnode.protocol.words.types import Peer
from tests.node.reduction.reducing import ATTEMPT, STAGE, Member, Wires, group, run, task
from tests.node.reduction.test_checked_parts import do_again, turn_the_sums_of
from tests.node.reduction.test_shown_parts import off, seals_of

COUNTS: Final = {"a": (0, 1), "b": (2, 3), "c": (4, 5)}
OWNER: Final = 1
Then = Callable[["Group"], Awaitable[None]]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 1024)


class Group:
    """a checks b, whose visits all others have done again. All have the sum."""

    def __init__(self, wires: Wires, members: dict[str, Member]) -> None:
        self.wires, self.members = wires, members

    async def seen(self, who: str, *holders: str) -> float | None:
        """How far what b made of its piece is from what is right, as these show its parts; None: they do not, or some
        of it may have been cut off."""
        noted = await self.shown(who, *holders)
        if isinstance(noted, str):
            return None
        piece = self.members["b"].accumulated()[slice(*noted.parts[0])]
        assert noted.others is not None
        may_be = noted.others.may_be_cut_off(float(np.linalg.norm(piece)))
        return None if may_be else off(self.members[who], self.members["b"], noted)

    async def shown(self, who: str, *holders: str, seconds: float = 0.0) -> Noted | str:
        """What b made of its piece; or why nobody shows it."""
        found: list[Noted | str] = []
        done = trio.Event()

        def answered(noted: Noted | str) -> None:
            found.append(noted)
            done.set()

        asker, owner = self.members[who], self.members["b"]
        names = [self.members[name].peer if name in self.members else Peer(name, 1) for name in holders]
        asker.reductions.add_up_again(STAGE, ATTEMPT, owner.peer, 7, names, answered, seconds)
        await done.wait()
        return found[0]

    def exchange(self, name: str) -> Exchange:
        return self.members[name].reductions._exchanges[STAGE]


def in_a_group(then: Then, sums: str = "exact", counts: dict[str, tuple[int, ...]] = COUNTS) -> None:
    async def main(wires: Wires) -> None:
        wires.seals = seals_of
        members = {name: wires.member(name) for name in counts}
        for name, microbatches in counts.items():
            members[name].accumulate(*microbatches)
            if name != "b":
                do_again(members[name], members["b"], *counts["b"])
        shares = group(*((members[name], len(counts[name])) for name in counts))
        for name, member in members.items():
            member.start(replace(task(shares), checked=members["b"].peer if name == "a" else None))
        for member in members.values():
            assert (await member.answer())["fault"] == ""
        await then(Group(wires, members))

    run(main, encoding=sums)


@pytest.mark.parametrize("counts", [
    COUNTS, COUNTS | {"d": (6,)}, COUNTS | {"a": (0,), "c": (1, 4, 5)}, COUNTS | {"c": ()},
], ids=["three", "four", "unequal", "one without work"])  # fmt: skip
@pytest.mark.parametrize("sums", ["exact", "int8", "int4"])
def test_a_sum_that_is_right_is_right(sums: str, counts: dict[str, tuple[int, ...]]) -> None:
    async def then(made: Group) -> None:
        for who, holders in [("a", "b"), ("c", "ba")]:
            away = await made.seen(who, *holders)
            assert away is not None and away <= (1e-5 if sums == "exact" else CHECK_TOLERANCE[sums])
        assert not made.wires.struck

    in_a_group(then, sums, counts)


@pytest.mark.parametrize("sums", ["exact", "int8", "int4"])
@pytest.mark.parametrize("factor", SUM_FACTORS.values(), ids=SUM_FACTORS)
def test_another_sum_is_seen_by_who_checks_and_by_a_third(
    factor: float, sums: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_the_sums_of(OWNER, factor, monkeypatch)
    monkeypatch.setattr(part_bounds, "LARGEST_SUM", float("inf"))  # else what is far too large is refused before

    async def then(made: Group) -> None:
        for who, holders in [("a", "b"), ("c", "ba")]:
            away = await made.seen(who, *holders)
            assert away is not None and (away > CHECK_TOLERANCE[sums] or (sums, factor) == ("int4", 1.5))

    in_a_group(then, sums)


@pytest.mark.parametrize("sums", ["exact", "int8"])
@pytest.mark.parametrize("factor", [1.0, -1.0, 1.5])
def test_each_that_gave_a_part_sees_which_way_and_how_large_the_sum_of_it_is(
    factor: float, sums: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of two: there the other part is whatever it may be."""
    turn_the_sums_of(OWNER, factor, monkeypatch)

    async def then(made: Group) -> None:
        for name in "ac":
            found = {peer.id: seen for peer, seen in made.exchange(name).sums_seen()}
            assert found.keys() == {*COUNTS} - {name}
            piece, own = made.exchange(name)._pieces[OWNER], made.members[name].accumulated()
            whole = made.members[name].summed()[slice(*made.exchange(name)._range(OWNER))]
            part = own[slice(*made.exchange(name)._range(OWNER))]
            right = float(part @ whole) / float(np.linalg.norm(part) * np.linalg.norm(whole))
            assert piece.bytes and abs(found["b"].cosine - right) <= 1e-3 and right * factor > 0.1
            beside = next(seen for peer, seen in found.items() if peer not in (name, "b"))
            assert beside.cosine > 0.1 and 0.7 <= found["b"].size / beside.size / abs(factor) <= 1.4

    in_a_group(then, sums)


def test_of_two_nobody_sees_what_the_other_made() -> None:
    async def then(made: Group) -> None:
        assert made.exchange("a").sums_seen() == [] == made.exchange("b").sums_seen()

    in_a_group(then, counts={"a": (0, 1), "b": (2, 3)})


def test_all_have_the_same_wrong_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that their weights agree, and nobody sees anything without adding the piece up again."""
    turn_the_sums_of(OWNER, -1.0, monkeypatch)

    async def then(made: Group) -> None:
        sums = [member.summed() for member in made.members.values()]
        assert all(np.array_equal(sums[0], other) for other in sums)

    in_a_group(then)


def test_who_shows_the_checker_and_not_the_third_is_seen_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker shows the third what it was shown, and its own part."""
    turn_the_sums_of(OWNER, -1.0, monkeypatch)

    async def then(made: Group) -> None:
        assert await made.seen("a", "b")
        made.exchange("b").parts._signatures.clear()
        assert await made.seen("c", "b") is None
        away = await made.seen("c", "b", "a")
        assert away is not None and away > 1.0

    in_a_group(then)


@pytest.fixture
def another_part_for_b(monkeypatch: pytest.MonkeyPatch) -> None:
    """c gives b's piece its part with the sign turned, and the other pieces what is right."""
    give = Exchange._give

    async def lying(self: Exchange, piece: int, at: int, stream: trio.SocketStream) -> None:
        if self._me.id == "c" and piece == OWNER and at == 0:
            self._pieces[piece].numbers[:] = -self._pieces[piece].numbers
        await give(self, piece, at, stream)

    monkeypatch.setattr(Exchange, "_give", lying)


@pytest.mark.usefixtures("another_part_for_b")
def test_an_owner_is_not_to_blame_for_what_it_was_given() -> None:
    """Whoever gave it has signed it."""

    async def then(made: Group) -> None:
        away = await made.seen("a", "b")
        assert away is not None and away <= 1e-5

    in_a_group(then)


def c_gives(monkeypatch: pytest.MonkeyPatch, times: float, told: float) -> None:
    """To b's piece so many times its part, of which it tells, and signs, so many times the norm."""
    measure = Exchange.measure

    async def lying(self: Exchange) -> None:
        if self._me.id == "c":
            self._pieces[OWNER].numbers[:] *= times
        await measure(self)
        if self._me.id == "c":
            self._norms[OWNER] *= told

    monkeypatch.setattr(Exchange, "measure", lying)


CUT_OFF: Final = pytest.mark.parametrize(("times", "told"), [(1.0, 1e-3), (1e3, 1.0)], ids=["untrue", "too large"])
MORE: Final = COUNTS | {"d": (6,)}


@CUT_OFF
@pytest.mark.parametrize("counts", [COUNTS, MORE, {"c": (4, 5), "b": (2, 3), "a": ()}], ids=["three", "four", "two"])
def test_where_a_part_was_cut_off_nobody_says_anything_of_the_sum(
    counts: dict[str, tuple[int, ...]], times: float, told: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever made the owner do so has signed it, and others see that."""
    c_gives(monkeypatch, times, told)

    async def then(made: Group) -> None:
        assert isinstance(await made.shown("a", "b"), Noted)
        assert await made.seen("a", "b") is None and await made.seen("c", "b", "a") is None

    in_a_group(then, counts=counts)


@CUT_OFF
def test_planted_whoever_cuts_a_part_off_looks_like_a_liar(
    times: float, told: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the work of who gave it, when nobody looks at what that one has signed."""
    monkeypatch.setattr(SignedParts, "may_be_cut_off", lambda self, owners: False)
    c_gives(monkeypatch, times, told)

    async def then(made: Group) -> None:
        away = await made.seen("a", "b")
        assert away is not None and away > CHECK_TOLERANCE["exact"]

    in_a_group(then)


@pytest.mark.parametrize("counts", [COUNTS, MORE, COUNTS | {"c": ()}], ids=["three", "four", "two"])
def test_an_owner_cannot_say_that_it_cut_a_part_off_that_is_within_bounds(
    counts: dict[str, tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts hardly anything of what a gave. What all have signed says that it should have."""
    share = PartBounds.share
    monkeypatch.setattr(
        PartBounds, "share",
        lambda self, k: 1e-3 if self._ours == OWNER and k == 0 else share(self, k),
    )  # fmt: skip
    monkeypatch.setattr(Exchange, "_was_cut_off", lambda self, piece, owner: None)  # what one of two sees of it

    async def then(made: Group) -> None:
        for who, holders in [("a", "b"), ("c", "ba")]:
            away = await made.seen(who, *holders)
            assert away is not None and away > CHECK_TOLERANCE["exact"]

    in_a_group(then, counts=counts)


def test_a_norm_that_was_not_told_is_not_signed_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever gave a part could show another norm than the one by which it was cut off."""
    sign = PartSeals.sign
    monkeypatch.setattr(
        PartSeals, "sign", lambda self, task, piece, digest, norm: sign(self, task, piece, digest, norm / 2)
    )

    async def main(wires: Wires) -> None:
        wires.seals = seals_of
        members = [wires.member(name) for name in COUNTS]
        for member, microbatches in zip(members, COUNTS.values()):
            member.accumulate(*microbatches)
            member.start(task(group(*((Peer(name, 1), len(each)) for name, each in COUNTS.items()))))
        while not wires.struck:
            await trio.lowlevel.checkpoint()
        assert "a signature that is not its own" in wires.struck[0] and not any(each.answers for each in members)

    run(main)


def refuses(made: Group, times: int) -> list[int]:
    """b turns so many streams away, and is honest from then on. How many came."""
    honest, came = made.members["b"], [0]
    made.wires.members.pop("b")

    async def answer(stream: trio.SocketStream) -> None:
        came[0] += 1
        if came[0] > times:
            await honest.reductions.serve(made.members["a"].peer.id, stream)

    made.wires.answers["b"] = answer
    return came


@pytest.mark.parametrize("patient", [True, False])
def test_who_has_time_asks_until_a_line_works_again(patient: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_parts, "PAUSES", (0.0, 0.01, 0.01))

    async def then(made: Group) -> None:
        refuses(made, 12)
        found = await made.shown("a", "b", seconds=20.0 if patient else 0.0)
        assert isinstance(found, Noted) is patient

    in_a_group(then)


def test_who_has_time_does_not_ask_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_parts, "PAUSES", (0.0, 0.01, 0.01))

    async def then(made: Group) -> None:
        came = refuses(made, 10**9)
        found = await made.shown("a", "b", seconds=0.5)
        assert isinstance(found, str) and "did not come in time" in found and came[0] > 3

    in_a_group(then)


def test_nobody_asks_for_parts_of_a_sum_that_another_one_has_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown_parts, "PAUSES", (0.0, 0.01, 0.01))

    async def then(made: Group) -> None:
        came = refuses(made, 10**9)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(made.shown, "a", "b", seconds=60.0))
            while came[0] < 4:
                await trio.lowlevel.checkpoint()
            made.members["a"].reductions.give_up(STAGE)

    in_a_group(then)


def test_an_owner_shows_parts_of_its_piece_while_others_owe_it_theirs() -> None:
    """Its piece is whole, or nobody would ask. And it shows nothing else so early."""

    async def then(made: Group) -> None:
        made.exchange("b").complete = False
        assert await made.seen("a", "b") is not None
        request = wire.part_request_for(made.exchange("a").task, "run", 1, 0, made.members["c"].peer)
        with pytest.raises(TurnedAway, match="not whole here"):
            made.members["b"].reductions._whole(made.members["a"].peer, request)

    in_a_group(then)


def test_what_nobody_has_signed_counts_for_nothing() -> None:
    async def then(made: Group) -> None:
        kept = made.exchange("b").parts._kept
        for place, chunks in kept.items():
            kept[place] = [bytes(len(chunk)) for chunk in chunks]
        assert await made.seen("a", "b") is None
        assert any("has not signed" in reason for reason in made.wires.struck)

    in_a_group(then)


def test_planted_parts_that_nobody_verifies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a liar shows parts by which another sum is right."""
    monkeypatch.setattr(PartSeals, "is_by", lambda self, *given: True)
    turn_the_sums_of(OWNER, 0.0, monkeypatch)

    async def then(made: Group) -> None:
        b = made.exchange("b")
        right = -made.members["b"].accumulated()[slice(*b._range(OWNER))]
        for place, chunks in b.parts._kept.items():  # together they are less by what the owner has itself
            part = right if place[1] == 0 else np.zeros_like(right)
            sizes = np.cumsum([0, *map(len, chunks)])
            b.parts._kept[place] = [part.tobytes()[start:end] for start, end in pairwise(sizes)]
        made.exchange("a").parts._signatures.clear()
        made.exchange("a").parts._kept.clear()
        away = await made.seen("a", "b")
        assert away is not None and away <= 1e-5

    in_a_group(then)


def test_nobody_is_shown_the_same_part_without_end() -> None:
    async def then(made: Group) -> None:
        c, a = made.members["c"], made.members["a"]
        for _ in range(SHOWN_TIMES):
            parts = made.exchange("c").parts
            await parts.fetch(OWNER, a.peer, [made.members["b"].peer])
            parts._signatures.clear()
        with pytest.raises(TurnedAway, match="it was shown before"):
            await made.exchange("c").parts.fetch(OWNER, a.peer, [made.members["b"].peer])
        assert c.peer

    in_a_group(then)


@pytest.mark.parametrize("counts", [COUNTS, MORE, COUNTS | {"c": ()}], ids=["three", "four", "two"])
@pytest.mark.parametrize("sums", ["exact", "int8", "int4"])
def test_no_more_is_kept_than_counts_as_memory(sums: str, counts: dict[str, tuple[int, ...]]) -> None:
    """Twice the gradient as it travels (Manifest.shown_parts_bytes), of who checks; of all others once."""

    async def then(made: Group) -> None:
        for who in made.members.keys() - {"b"}:
            await made.seen(who, "b", "a")
        for name in made.members:
            exchange = made.exchange(name)
            kept = sum(len(chunk) for chunks in exchange.parts._kept.values() for chunk in chunks)
            whole = sum(piece.bytes for piece in exchange._pieces)
            assert kept <= whole * (2 if name == "a" else 1)

    in_a_group(then, sums, counts)


def test_two_holders_keep_nothing() -> None:
    """Each knows all parts."""

    async def then(made: Group) -> None:
        assert await made.seen("a", "b") is None and not made.exchange("b").parts._kept

    in_a_group(then, counts={"a": (0, 1), "b": (2, 3)})


def test_what_is_kept_is_gone_with_the_stage() -> None:
    async def then(made: Group) -> None:
        b, reductions = made.exchange("b"), made.members["b"].reductions
        assert b.parts._kept and b.parts._signatures
        reductions.give_up(STAGE)
        assert not b.parts._kept and not b.parts._signatures
        b.parts.keep(OWNER, 0, 0, b"late")
        b.parts.signed(OWNER, 0, b"late", 1.0)
        assert not b.parts._kept and not b.parts._signatures
        await trio.testing.wait_all_tasks_blocked()
        assert not reductions._ending

    in_a_group(then)


def test_a_sum_that_is_under_way_is_gone_as_soon_as_nothing_touches_the_memory() -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0)
        a.start(task(group((a, 1), (b, 1))))
        await trio.testing.wait_all_tasks_blocked()
        a.reductions.give_up(STAGE)
        assert a.reductions._ending, "the next one has to wait for it"
        await trio.testing.wait_all_tasks_blocked()
        assert not a.reductions._ending

    run(main)


def test_what_is_being_shown_is_shown_to_its_end() -> None:
    async def then(made: Group) -> None:
        b, a = made.exchange("b"), made.members["a"]
        request = wire.part_request_for(b.task, "run", 1, OWNER, a.peer)
        chunks = b.parts._kept[OWNER, 0]
        ours, theirs = trio.socket.socketpair()
        async with trio.open_nursery() as nursery, trio.SocketStream(ours) as stream:
            nursery.start_soon(b.parts.show, made.members["c"].peer, request, trio.SocketStream(theirs))
            while not b.parts._shown:
                await trio.lowlevel.checkpoint()
            b.cancel()
            assert isinstance(await wire.hear(stream), wire.PartReply)
            got = b""
            while len(got) < sum(map(len, chunks)):
                got += await stream.receive_some()
        assert got == b"".join(chunks)
        theirs.close()

    in_a_group(then)


def test_what_is_kept_is_gone_with_the_next_sum() -> None:
    async def then(made: Group) -> None:
        assert isinstance(made.exchange("b").parts, ShownParts) and made.exchange("b").parts._kept
        made.members["b"].start(task(made.exchange("b").task.group, view=1))
        assert not made.exchange("b").parts._kept

    in_a_group(then)
