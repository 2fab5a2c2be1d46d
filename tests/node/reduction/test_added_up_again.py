"""The sum that one of three or more made of its piece is added up again, of parts that the others have signed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
import trio

from ftnode.lab.hostile.lies import SUM_FACTORS
from ftnode.node.reduction import encoding, part_bounds
from ftnode.node.reduction.exchange import Exchange, Noted
from ftnode.node.reduction.part_bounds import PartBounds
from ftnode.node.reduction.part_seals import PartSeals
from ftnode.node.reduction.shown_parts import SHOWN_TIMES, ShownParts
from ftnode.node.reduction.wire import TurnedAway
from ftnode.protocol.manifest.parse import CHECK_TOLERANCE
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
        """How far what b made of its piece is from what is right, as these show its parts; None: they do not."""
        found: list[Noted | str] = []
        done = trio.Event()

        def answered(noted: Noted | str) -> None:
            found.append(noted)
            done.set()

        asker, owner = self.members[who], self.members["b"]
        names = [self.members[name].peer for name in holders]
        asker.reductions.add_up_again(STAGE, ATTEMPT, owner.peer, 7, names, answered)
        await done.wait()
        return None if isinstance(found[0], str) else off(asker, owner, found[0])

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


@pytest.fixture
def more_than_was_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """c tells a small norm of its part of b's piece, so that b counts hardly anything of it."""
    told = PartBounds.tell

    def tell(self: PartBounds, contributor: int, norm: float) -> None:
        told(self, contributor, norm / 1000 if contributor == 2 and self._ours == OWNER else norm)

    monkeypatch.setattr(PartBounds, "tell", tell)


@pytest.mark.usefixtures("more_than_was_told")
def test_where_a_part_was_cut_off_nobody_says_anything_of_the_sum() -> None:
    async def then(made: Group) -> None:
        assert made.exchange("b")._cuts_off
        assert await made.seen("a", "b") is None and await made.seen("c", "b", "a") is None

    in_a_group(then)


@pytest.mark.usefixtures("more_than_was_told")
def test_planted_an_owner_that_shows_parts_although_it_cut_one_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it looks like a liar by the word of who told it a small norm."""
    monkeypatch.setattr(Exchange, "_cuts_off", False)

    async def then(made: Group) -> None:
        away = await made.seen("a", "b")
        assert away is not None and away > CHECK_TOLERANCE["exact"]

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
            await parts.fetch(OWNER, a.peer, [made.members["b"].peer], True)
            parts._signatures.clear()
        with pytest.raises(TurnedAway, match="it was shown before"):
            await made.exchange("c").parts.fetch(OWNER, a.peer, [made.members["b"].peer], True)
        assert c.peer

    in_a_group(then)


def test_two_holders_keep_nothing() -> None:
    """Each knows all parts."""

    async def then(made: Group) -> None:
        assert await made.seen("a", "b") is None and not made.exchange("b").parts._kept

    in_a_group(then, counts={"a": (0, 1), "b": (2, 3)})


def test_what_is_kept_is_gone_with_the_next_sum() -> None:
    async def then(made: Group) -> None:
        assert isinstance(made.exchange("b").parts, ShownParts) and made.exchange("b").parts._kept
        made.members["b"].start(task(made.exchange("b").task.group, view=1))
        assert not made.exchange("b").parts._kept

    in_a_group(then)
