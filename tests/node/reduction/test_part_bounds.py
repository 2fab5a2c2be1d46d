"""No part of a sum counts for more than the group's own parts let it, and honest sums are what they were (rule 43)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any, Final

import numpy as np
import pytest
import trio

from ftnode.lab.hostile.liar import lying_about_sums
from ftnode.lab.hostile.lies import SUM_FACTORS
from ftnode.node.reduction import encoding, exchange, part_bounds
from ftnode.node.reduction.encoding import Exact, Piece, encoding_of
from ftnode.node.reduction.part_bounds import (
    LARGEST,
    NORM_TOLD_MAX,
    ROUNDING,
    PartBounds,
    squared,
    sum_bound,
    told_norm,
    usual_norms,
)
from ftnode.node.reduction.piece_sum import PieceSum
from tests.node.reduction.reducing import STAGE, Floats, Wires, group, in_order, run, task

NUMBERS: Final = 400
ORDER: Final = "abc"


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 256)


def parts_of(count: int, visits: Sequence[int]) -> list[Floats]:
    """Gradients of a group whose members agree in half of what they have."""
    chance = np.random.default_rng(3)
    common = chance.standard_normal(NUMBERS).astype(np.float32)
    return [
        sum((common + chance.standard_normal(NUMBERS).astype(np.float32) for _ in range(visits[k])), np.float32(0))
        for k in range(count)
    ]  # fmt: skip


def norm(numbers: Floats) -> float:
    return sqrt(squared(numbers))


def summed(
    parts: Sequence[Floats], visits: Sequence[int], ours: int, told: dict[int, float] | None = None
) -> tuple[Floats, PartBounds]:
    """What the owner of a piece makes of these parts. `told`: of norms that are not the true ones."""
    place = memoryview(bytearray(parts[ours].tobytes()))
    bounds = PartBounds(visits, ours, told_norm(norm(parts[ours])), told_norm(norm(parts[ours]) * sqrt(len(parts))))
    for k, part in enumerate(parts):
        bounds.tell(k, (told or {}).get(k, told_norm(norm(part))))
    piece = PieceSum(Piece(place, Exact(4), ()), len(parts), ours, bounds=bounds)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(piece.work)
            for source in set(range(len(parts))) - {ours}:
                nursery.start_soon(give, source)

    async def give(source: int) -> None:
        content = parts[source].tobytes()
        while room := await piece.room(source):
            start = piece.taken(source)
            room[:] = content[start : start + len(room)]
            piece.filled(source)

    trio.run(main)
    return np.frombuffer(place, np.float32), bounds


def away(found: Floats, right: Floats) -> float:
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


SHARES: Final = [(2, 2), (1, 7), (7, 1), (3, 3, 2), (1, 1, 6), (2, 2, 2, 2), (1, 2, 3, 9)]
LIES: Final[dict[str, Callable[[Floats], Floats]]] = {
    "a thousand times as much": lambda part: part * np.float32(1000),
    "turned, and so much": lambda part: part * np.float32(-1000),
    "noise": lambda part: np.random.default_rng(9).standard_normal(len(part)).astype(np.float32) * norm(part) * 100,
    "near the largest float": lambda part: np.full_like(part, 1e16),
}  # fmt: skip


@pytest.mark.parametrize("visits", SHARES, ids=str)
def test_honest_parts_make_the_sum_that_they_make_without_bounds(visits: tuple[int, ...]) -> None:
    parts = parts_of(len(visits), visits)
    for ours in range(len(parts)):
        found, bounds = summed(parts, visits, ours)
        assert np.array_equal(found, in_order(parts)) and bounds.outside == ()
        assert all(seen.counted == 1.0 and seen.size < 4 for seen in bounds.weighed())


@pytest.mark.parametrize("visits", SHARES, ids=str)
@pytest.mark.parametrize("lie", LIES)
def test_one_part_that_is_much_too_large_moves_the_sum_by_no_more_than_an_honest_one(
    lie: str, visits: tuple[int, ...]
) -> None:
    parts = parts_of(len(visits), visits)
    for liar in range(1, len(parts)):
        given = [LIES[lie](part) if k == liar else part for k, part in enumerate(parts)]
        found, bounds = summed(given, visits, 0)
        usual = usual_norms([norm(part) for part in parts], visits, 0, norm(parts[0]) * sqrt(len(parts)))[liar]
        bent = float(np.linalg.norm(found - in_order(parts)))
        assert bounds.outside == (liar,)
        assert bent <= 3 * max(usual, norm(parts[liar])), "what it gave, what stands for it, and as much to move that"


@pytest.mark.parametrize("lie", LIES)
def test_planted_without_bounds_one_part_is_the_whole_sum(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_bounds, "LARGEST", float("inf"))
    parts = parts_of(3, (3, 3, 2))
    found, _ = summed([*parts[:2], LIES[lie](parts[2])], (3, 3, 2), 0)
    assert away(found, in_order(parts)) > 20


def test_a_norm_that_is_told_too_small_is_all_that_counts() -> None:
    parts = parts_of(3, (2, 2, 2))
    given = [*parts[:2], parts[2] * np.float32(1000)]
    found, bounds = summed(given, (2, 2, 2), 0, {2: norm(parts[2])})
    assert np.linalg.norm(found - in_order(parts)) <= (1 + ROUNDING) * norm(parts[2]) * 1.01
    assert bounds.outside == () and bounds.weighed()[2].counted == 0.0 and bounds.weighed()[2].size > 100


def test_planted_a_norm_that_is_told_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_bounds, "ROUNDING", float("inf"))
    parts = parts_of(3, (2, 2, 2))
    found, _ = summed([*parts[:2], parts[2] * np.float32(1000)], (2, 2, 2), 0, {2: norm(parts[2])})
    assert away(found, in_order(parts)) > 100


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_number_that_is_none_still_makes_a_sum_that_is_none(number: float) -> None:
    """The group names poison."""
    parts = parts_of(3, (2, 2, 2))
    parts[1][7] = number
    assert told_norm(norm(parts[1])) == NORM_TOLD_MAX
    for ours in range(3):
        assert not np.isfinite(summed(parts, (2, 2, 2), ours)[0]).all()


def test_where_the_owner_has_no_gradient_at_all_nothing_is_usual() -> None:
    parts = parts_of(2, (2, 2))
    parts[0][:] = 0
    assert np.array_equal(summed(parts, (2, 2), 0)[0], parts[1])
    assert sum_bound([0.0, 0.0], (2, 2), 0, 1) == float("inf")


def test_rows_that_only_one_has_seen_are_usual() -> None:
    """A piece of an embedding: nothing for us, an even share of the gradient for another."""
    found = usual_norms([0.0, 1.0], (2, 2), 0, sqrt(2.0))
    assert found == pytest.approx([1.0, 1.0])


@pytest.mark.parametrize("counts, found", [((1, 1, 1), (3.0, 3.0, 3.0)), ((1, 4, 1), (2.0, 8.0, 2.0))])
def test_what_is_usual_is_the_median_for_so_many_visits(counts: tuple[int, ...], found: tuple[float, ...]) -> None:
    norms = (3.0, 2.0, 900.0) if counts == (1, 1, 1) else (2.0, 4.0, 900.0)
    assert usual_norms(norms, counts, 0, 0.0) == pytest.approx(list(found))


@pytest.mark.parametrize("name", ["int8", "int4"])
def test_encoding_makes_no_part_larger_than_was_told(name: str) -> None:
    for seed in range(50):
        x = np.random.default_rng(seed).standard_normal(300).astype(np.float32)
        x[:: 1 + seed] *= 30
        coded = encoding_of(name, 4)
        decoded = coded.decode(coded.encode(x, bytes([seed] * 16), 0), len(x))
        assert norm(decoded) <= ROUNDING * norm(x)


@pytest.mark.parametrize("lie", SUM_FACTORS)
def test_a_volunteer_that_lies_about_the_finished_sum_does_so(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `ftnode.lab.hostile.liar` is for."""
    monkeypatch.setattr(PieceSum, "_add_up", PieceSum._add_up)  # so that it is honest again afterwards
    lying_about_sums(SUM_FACTORS[lie])
    parts = parts_of(3, (2, 2, 2))
    assert np.allclose(summed(parts, (2, 2, 2), 0)[0], SUM_FACTORS[lie] * in_order(parts))


# -- groups


def reduced(change: Callable[[dict[str, Any]], None] | None = None, sums: str = "exact") -> dict[str, dict[str, Any]]:
    """What each of a group of three is answered, with the digest of its weights after the step where there is one."""
    found: dict[str, dict[str, Any]] = {}

    async def main(wires: Wires) -> None:
        members = {name: wires.member(name) for name in ORDER}
        for microbatches, member in zip([(0, 1), (2,), (3, 4, 5)], members.values()):
            member.accumulate(*microbatches)
        if change is not None:
            change(members)
        shares = group(*zip(members.values(), (2, 1, 3)))
        for member in members.values():
            member.start(task(shares))
        for name, member in members.items():
            with trio.move_on_after(5):
                answer = await member.answer()
                found[name] = {**answer, "weights": "" if answer["fault"] else member.apply(1)}

    run(main, encoding=sums)
    return found


@pytest.mark.parametrize("sums", ["exact", "int8"])
def test_the_weights_of_an_honest_group_are_the_same_to_the_bit_with_and_without_bounds(
    sums: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bounded = {found["weights"] for found in reduced(sums=sums).values()}
    monkeypatch.setattr(exchange, "PartBounds", lambda *_: None)
    free = {found["weights"] for found in reduced(sums=sums).values()}
    assert bounded == free and len(bounded) == 1 and "" not in bounded


def lies(times: float) -> Callable[[dict[str, Any]], None]:
    """b gives so many times as much to the pieces of others."""

    def change(members: dict[str, Any]) -> None:
        b, honest = members["b"], members["b"].reductions

        async def measured(self: Any) -> None:
            place = self.contributors.index(b.peer)
            for k, piece in enumerate(self._pieces):
                if k != place:
                    piece.numbers[:] *= times
            await original(self)

        original = exchange.Exchange.measure

        def start(of_task: Any, answered: Any, owed: Any = lambda parts, sums: None) -> None:
            began(of_task, answered, owed)
            mine = honest._exchanges[STAGE]
            mine.measure = lambda: measured(mine)

        began, honest.start = honest.start, start

    return change


def test_what_one_gives_too_much_of_is_told_and_hardly_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "Exchange", type("Open", (exchange.Exchange,), {}))
    monkeypatch.setattr("ftnode.node.reduction.reductions.Exchange", exchange.Exchange)
    honest, bent = reduced(), reduced(lies(1000.0))
    assert len({found["weights"] for found in bent.values()}) == 1, "all have the same sum"
    assert bent["a"]["norm_squared"] < 4 * honest["a"]["norm_squared"]
    cut = {peer.id: (part.size > LARGEST, part.counted < 0.01) for peer, part in bent["a"]["parts"]}
    assert cut == {"b": (True, True), "c": (False, False)}
    assert all(part.counted == 1.0 for found in honest.values() for _, part in found["parts"])
    monkeypatch.setattr(part_bounds, "LARGEST", float("inf"))
    monkeypatch.setattr(part_bounds, "LARGEST_SUM", float("inf"))
    assert reduced(lies(1000.0))["a"]["norm_squared"] > 1e4 * honest["a"]["norm_squared"], "the bug is a bug"


def bends(times: float) -> Callable[[dict[str, Any]], None]:
    """b gives so many times the sum of its piece."""

    def change(members: dict[str, Any]) -> None:
        members["b"].stage.gradient.mul_(times)

    return change


def test_a_finished_sum_that_is_much_too_large_is_refused_and_its_owner_named() -> None:
    found = reduced(bends(1000.0))
    for name in "ac":
        assert "the sum that b" in found[name]["fault"] and found[name]["giver"].id == "b"
    assert all(not found["fault"] for found in reduced(bends(4.0)).values())


def test_planted_whatever_the_owner_says_is_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(part_bounds, "LARGEST_SUM", float("inf"))
    assert all(not found["fault"] for found in reduced(bends(1000.0)).values())
