"""What another member gave to a sum is noted, and compared with what its visits give when they are done again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any, Final

import numpy as np
import pytest
import torch

from ftnode.lab.hostile.liar import lying_about_sums
from ftnode.lab.hostile.lies import SUM_FACTORS
from ftnode.node.reduction import encoding, part_bounds
from ftnode.node.reduction.piece_sum import PieceSum
from ftnode.node.reduction.sketch import BLOCK, BUCKETS, DISTANCE_MAX, Sketch, distance, relative
from ftnode.protocol.manifest.parse import CHECK_TOLERANCE
from tests.node.reduction.reducing import ATTEMPT, NUMBERS, STAGE, Member, Wires, group, run, task


def drawn(count: int) -> torch.Tensor:
    """As what visits of another step give: other numbers."""
    return torch.from_numpy(np.random.default_rng(2).standard_normal(count))


Lie = Callable[[Any], None]
LIES: Final[dict[str, Lie]] = {
    "ten times as much": lambda gradient: gradient.mul_(10),
    "a hundredth": lambda gradient: gradient.mul_(0.01),
    "half as much again": lambda gradient: gradient.mul_(1.5),
    "turned": lambda gradient: gradient.neg_(),
    "nothing": lambda gradient: gradient.zero_(),
    "noise": lambda gradient: gradient.copy_(gradient[np.random.default_rng(1).permutation(len(gradient))]),
    "of another step": lambda gradient: gradient.copy_(gradient.norm() / len(gradient) ** 0.5 * drawn(len(gradient))),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_BYTES", 1024)


def do_again(member: Member, of: Member, *microbatches: int) -> None:
    """What `accumulate` has of these microbatches, apart."""
    for microbatch in microbatches:
        chance = np.random.default_rng(microbatch + 100)
        for slot in (0, 1):
            numbers = np.frombuffer(member.compute.arena._map.view(slot), member.dtype)
            numbers[:] = chance.standard_normal(len(numbers), member.dtype)
        member.compute.call(
            "recount", stage=STAGE, step=1, attempt=list(ATTEMPT), microbatch=microbatch, visit=STAGE,
            of=list(of.peer), input=1, gradient=0,
        )  # fmt: skip


def weighed(member: Member, of: Member) -> tuple[float, list[tuple[int, int]]]:
    """How far what was given is from what is right, and which numbers were seen."""
    found = member.reductions.noted(STAGE, ATTEMPT, of.peer)
    assert found is not None
    answer = member.compute.call(
        "weigh", stage=STAGE, step=1, attempt=list(ATTEMPT), of=list(of.peer), key=found.sketch.key, parts=[found.parts]
    )
    assert answer["fault"] == ""
    return distance(found.sketch.sums, answer["sums"][0]), found.parts


def checked_by_a(
    names: str, counts: dict[str, tuple[int, ...]], sums: str, lie: Lie | None = None
) -> tuple[float, int]:
    """a checks b in a group of these. How far b is off, and how many numbers a sees of it."""

    found: list[tuple[float, int]] = []

    async def main(wires: Wires) -> None:
        members = {name: wires.member(name) for name in names}
        a, b = members["a"], members["b"]
        for name, microbatches in counts.items():
            members[name].accumulate(*microbatches)
        if lie is not None:
            lie(b.stage.gradient)
        shares = group(*((members[name], len(counts[name])) for name in names))
        own = a.accumulated()
        do_again(a, b, *counts["b"])
        assert np.array_equal(a.accumulated(), own)  # that is apart
        a.start(replace(task(shares), checked=b.peer))
        for name in names[1:]:
            members[name].start(task(shares))
        for member in members.values():
            await member.answer()
        away, parts = weighed(a, b)
        found.append((away, sum(end - begin for begin, end in parts)))

    run(main, encoding=sums)
    return found[0]


@pytest.mark.parametrize("sums", ["exact", "int8", "int4"])
def test_in_a_group_of_two_all_that_the_other_gave_is_seen_and_right(sums: str) -> None:
    away, seen = checked_by_a("ab", {"a": (0, 1, 2), "b": (3, 4)}, sums)
    assert away <= (1e-5 if sums == "exact" else CHECK_TOLERANCE[sums]) and seen == NUMBERS[STAGE]


def test_in_a_group_of_three_its_part_of_the_own_piece_is_seen() -> None:
    away, seen = checked_by_a("abc", {"a": (0,), "b": (3, 4), "c": (1,)}, "exact")
    assert away <= 1e-5 and abs(seen - NUMBERS[STAGE] / 3) <= 1


def test_who_gives_nothing_sees_the_sum_of_who_gives_all() -> None:
    away, seen = checked_by_a("ab", {"a": (), "b": (3, 4)}, "exact")
    assert away <= 1e-5 and seen == NUMBERS[STAGE]


@pytest.mark.parametrize("sums", ["exact", "int8", "int4"])
@pytest.mark.parametrize("lie", LIES)
def test_every_lie_is_seen(lie: str, sums: str) -> None:
    away, _ = checked_by_a("ab", {"a": (0, 1, 2), "b": (3, 4)}, sums, LIES[lie])
    assert away > 0.9 * 0.5 and (away > CHECK_TOLERANCE[sums] or (sums, lie) == ("int4", "half as much again"))


@pytest.mark.parametrize("factor", SUM_FACTORS.values(), ids=SUM_FACTORS)
def test_of_two_holders_a_check_sees_what_the_other_made_of_the_sum_of_its_piece(
    factor: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn_the_sums_of(1, factor, monkeypatch)
    monkeypatch.setattr(part_bounds, "LARGEST_SUM", float("inf"))  # else what is far too large is refused before
    away, _ = checked_by_a("ab", {"a": (0, 1, 2), "b": (3, 4)}, "exact")
    assert away > CHECK_TOLERANCE["exact"]


def turn_the_sums_of(owner: int, factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """This one of a group gives out so many times the sum of its piece."""
    honest = PieceSum._add_up
    monkeypatch.setattr(PieceSum, "_add_up", honest)  # so that it is honest again afterwards
    lying_about_sums(factor)
    lying = PieceSum._add_up

    async def add_up(self: PieceSum) -> None:
        await (lying if self._ours == owner else honest)(self)

    monkeypatch.setattr(PieceSum, "_add_up", add_up)


def test_who_checks_and_gave_so_much_that_it_was_cut_off_still_sees_what_the_other_gave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The owner of a piece tells how much of our part counts there (rule 43)."""
    monkeypatch.setattr(part_bounds, "LARGEST_SUM", float("inf"))

    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0, 1, 2), b.accumulate(3, 4)
        a.stage.gradient.mul_(1000)
        do_again(a, b, 3, 4)
        shares = group((a, 3), (b, 2))
        a.start(replace(task(shares), checked=b.peer))
        b.start(task(shares))
        for member in (a, b):
            await member.answer()
        found = a.reductions._exchanges[STAGE]
        assert found._shares[1] < 0.1 and weighed(a, b)[0] <= 1e-3

    run(main)


def test_no_note_is_taken_of_others() -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        a.accumulate(0), b.accumulate(1)
        for member in (a, b):
            member.start(task(group((a, 1), (b, 1))))
        for member in (a, b):
            await member.answer()
        assert a.reductions.noted(STAGE, ATTEMPT, b.peer) is None

    run(main)


def test_what_was_not_done_again_is_not_compared() -> None:
    async def main(wires: Wires) -> None:
        a, b = wires.member("a"), wires.member("b")
        do_again(a, b, 1)
        other = a.compute.call(
            "weigh", stage=STAGE, step=1, attempt=list(ATTEMPT), of=["c", 1], key=1, parts=[[[0, 8]]]
        )  # fmt: skip
        assert other["fault"] != ""

    run(main)


@pytest.mark.parametrize("size", [1, BUCKETS, BLOCK - 1, 3 * BLOCK + 17])
def test_a_sketch_keeps_distances_whatever_parts_it_is_made_of(size: int) -> None:
    chance = np.random.default_rng(size)
    x, y = (chance.standard_normal(size).astype(np.float32) for _ in range(2))
    whole, parts = Sketch(7), Sketch(7)
    whole.add(5, x)
    for start in range(0, size, 1000):
        parts.add(5 + start, x[start : start + 1000] + y[start : start + 1000], y[start : start + 1000])
    assert np.allclose(whole.sums, parts.sums, atol=1e-3)
    assert 0.7 * np.linalg.norm(x) <= np.linalg.norm(whole.sums) <= 1.3 * np.linalg.norm(x)
    other = Sketch(8)
    other.add(5, x)
    assert size == 1 or not np.allclose(other.sums, whole.sums)


def test_a_distance_has_an_end() -> None:
    assert distance([0.0, 0.0], [0.0, 0.0]) == 0.0 and distance([1.0], [0.0]) == DISTANCE_MAX
    assert distance([float("nan")], [1.0]) == DISTANCE_MAX and distance([2.0, 0.0], [1.0, 0.0]) == 1.0


@pytest.mark.parametrize("size", [1e200, float("inf")])
def test_a_distance_is_a_number_also_where_a_norm_is_none(size: float) -> None:
    """No norm can be told of 1e200: its square is no number."""
    assert distance([size], [1.0]) == distance([1.0], [size]) == distance([-size], [size]) == DISTANCE_MAX
    assert relative(size, size) == (1.0 if isfinite(size) else DISTANCE_MAX)
    assert distance([1e200], [1e200]) == 0.0
