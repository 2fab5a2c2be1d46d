"""Whose parts look unlike the others' is checked soon, within a budget, and accused of nothing (rule 42)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from ftnode.protocol.step import doubts as module
from ftnode.protocol.step.doubts import (
    BUDGET_A_STEP,
    BUDGET_MAX,
    SOME_A_STEP,
    SOME_MAX,
    TOLD_MAX,
    Doubts,
    SomeOff,
    _Member,
)
from ftnode.protocol.words.types import PartSeen, Peer

PEERS: Final = tuple(Peer(name, 1) for name in "abc")
STEPS: Final = 200


def honest(chance: Random, peer: Peer) -> PartSeen:
    """As they were measured: sizes with a heavy tail, and cosines that are mostly noise (decision 0047)."""
    tail = chance.paretovariate(2.0)
    return PartSeen(peer, 0.7 * tail if tail < 30 else 20.0, max(-1.0, min(1.0, chance.gauss(0.4, 0.4))), 1.0)


def seen(
    doubts: Doubts, steps: int, seed: int, lie: Callable[[PartSeen], PartSeen] | None = None, since: int = 0
) -> int:
    """The first step in which c is doubted; -1: it never was. c lies from a step on."""
    chance = Random(seed)
    for step in range(steps):
        parts = [honest(chance, peer) for peer in PEERS]
        if lie is not None and step >= since:
            parts[2] = lie(parts[2])
        doubts.see(1, step, parts)
        if doubts.choose(step, PEERS[2:], chance) == PEERS[2] and step >= since:
            return step
    return -1


LIES: Final[dict[str, tuple[Callable[[PartSeen], PartSeen], int]]] = {
    "cut off": (lambda part: replace(part, size=1000.0, counted=0.001), 1),
    "nothing": (lambda part: replace(part, size=0.0, cosine=0.0), 3),
    "turned": (lambda part: replace(part, cosine=-part.cosine), 12),
    "noise": (lambda part: replace(part, cosine=part.cosine - 0.4), 60),
    "four times as much": (lambda part: replace(part, size=4 * part.size), 12),
    "twice as much": (lambda part: replace(part, size=2 * part.size), 30),
}  # fmt: skip
"""What c gives, and after how many steps it is to be doubted."""


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("seed", range(5))
def test_who_gives_something_else_is_checked_soon(lie: str, seed: int) -> None:
    way, soon = LIES[lie]
    step = seen(Doubts(), STEPS + soon, seed, way, STEPS)
    assert STEPS <= step < STEPS + soon


def test_planted_a_mean_that_forgets_fast_takes_the_lie_for_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    way, soon = LIES["noise"]
    monkeypatch.setattr(module, "SLOW_RATE", 1 / 4)
    monkeypatch.setattr(module, "SOME_OFF", 1e9)
    assert any(seen(Doubts(), STEPS + soon, seed, way, STEPS) < 0 for seed in range(5))


def test_one_that_has_turned_its_parts_from_the_start_is_checked_too() -> None:
    assert all(0 <= seen(Doubts(), STEPS, seed, LIES["turned"][0]) < 60 for seed in range(5))


def test_who_has_half_as_many_microbatches_from_now_on_is_checked_a_few_times_at_most() -> None:
    """Its parts are noisier, and agree less with the others'."""
    doubts, chance, found = Doubts(), Random(1), 0
    for step in range(1000):
        parts = [honest(chance, peer) for peer in PEERS]
        if step >= STEPS:
            parts[2] = replace(parts[2], cosine=parts[2].cosine - 0.2)
        doubts.see(1, step, parts)
        found += doubts.choose(step, PEERS[2:], chance) is not None and step >= STEPS
    assert found <= 8


def even(chance: Random, peer: Peer) -> PartSeen:
    """As they were measured in a swarm of `ftnode lab liars`, where microbatches have four sequences."""
    return PartSeen(peer, 2.0 ** chance.gauss(-0.1, 0.25), max(-1.0, min(1.0, chance.gauss(0.35, 0.2))), 1.0)


def first_check(seed: int, times: float) -> int:
    """After how many steps c is checked, whose sizes are so many times as large; -1: not within 100."""
    doubts, chance = Doubts(), Random(seed)
    for step in range(STEPS + 100):
        parts = [even(chance, peer) for peer in PEERS]
        if step >= STEPS:
            parts[2] = replace(parts[2], size=times * parts[2].size)
        if doubts.choose(step, PEERS[2:], chance) is not None and step >= STEPS:
            return step - STEPS
        doubts.see(1, step, parts)
    return -1


def test_half_as_much_again_is_checked_within_twenty_steps_where_sizes_are_even() -> None:
    found = [first_check(seed, 1.5) for seed in range(20)]
    assert all(steps >= 0 for steps in found) and sum(found) / len(found) <= 15 and max(found) <= 25, found


@pytest.mark.parametrize(("times", "word"), [(1.5, "larger"), (1 / 1.5, "smaller")])
def test_a_part_of_many_that_drift_is_told_without_its_own_size_which_may_be_as_usual(times: float, word: str) -> None:
    """A line that gives both seems to contradict itself, and was cut where people read it."""
    reasons = set[str]()
    for seed in range(10):
        doubts, chance = Doubts(), Random(seed)
        for step in range(STEPS + 100):
            parts = [even(chance, peer) for peer in PEERS]
            if step >= STEPS:
                parts[2] = replace(parts[2], size=times * parts[2].size)
            reasons |= {doubt.reason for doubt in doubts.see(1, step, parts) if doubt.peer == PEERS[2]}
    assert f"one of many that are {word} than usual on the whole, though not each of them" in reasons
    assert all("this one" not in reason and len(reason) <= 100 for reason in reasons), reasons


def test_planted_where_no_sizes_are_added_up_half_as_much_again_is_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "DRIFT_OF_SIZES", 1e9)
    assert sum(steps < 0 or steps > 25 for steps in (first_check(seed, 1.5) for seed in range(20))) >= 15


SHARE: Final = 0.24
"""Of the steps of a member that turns a tenth of its visits, and does two or three in a step."""
LONG: Final = 250


def checks_of(doubts: Doubts, seed: int, share: float, able: tuple[Peer, ...] = PEERS[2:]) -> list[Peer]:
    """Whom this one checks in LONG steps after STEPS honest ones. Of c a share of the parts is off: a visit with the
    sign turned takes away from two right ones, as it was measured."""
    chance, found = Random(seed), list[Peer]()
    for step in range(STEPS + LONG):
        parts = [honest(chance, peer) for peer in PEERS]
        if step >= STEPS and chance.random() < share:
            parts[2] = replace(parts[2], size=0.8 * parts[2].size, cosine=parts[2].cosine - 0.65)
        chosen = doubts.choose(step, able, chance)
        found += [chosen] if step >= STEPS and chosen is not None else []
        doubts.see(1, step, parts)
    return found


def test_who_lies_now_and_then_is_checked_again_and_again() -> None:
    """One check falls on a step with a lie in a quarter of cases."""
    checks = sorted(len(checks_of(Doubts(), seed, SHARE)) for seed in range(20))
    honest_ones = [len(checks_of(Doubts(), seed, 0.0)) for seed in range(20)]
    assert checks[2] >= 2 and checks[10] >= 6, checks
    assert sum(honest_ones) < sum(checks) / 5


def test_planted_without_what_is_kept_of_each_it_is_seldom_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SOME_OFF", 1e9)
    assert sorted(len(checks_of(Doubts(), seed, SHARE)) for seed in range(20))[10] <= 2


def test_planted_where_a_check_ends_the_doubt_it_is_checked_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    checks = sum(len(checks_of(Doubts(), seed, SHARE)) for seed in range(20))
    monkeypatch.setattr(module, "CHECK_WORTH", 1e9)
    assert sum(len(checks_of(Doubts(), seed, SHARE)) for seed in range(20)) < checks / 2


def test_one_that_points_elsewhere_is_not_enough_and_who_is_doubted_for_more_is_named_once() -> None:
    doubts, chance, told = Doubts(), Random(1), list[str]()
    for step in range(STEPS):
        off = step == 100 or step in range(150, 180, 4)
        part = PartSeen(PEERS[2], 1.0, 0.0 if off else chance.gauss(0.4, 0.1), 1.0)
        told += [f"{step}: {doubt.reason}" for doubt in doubts.see(1, step, [part])]
        if step < 150:
            assert doubts.choose(step, PEERS[2:], chance) is None
    assert told == ["154: less like what others give now and then"]


def test_of_two_the_one_of_whom_more_is_off_is_checked() -> None:
    checks = [peer for seed in range(10) for peer in checks_of(Doubts(), seed, 2 * SHARE, PEERS[1:])]
    assert checks.count(PEERS[2]) > 5 * checks.count(PEERS[1])


def test_checks_of_those_of_whom_some_parts_are_off_keep_to_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large group somebody's mostly are."""
    monkeypatch.setattr(module, "CHECK_WORTH", 0.0)
    monkeypatch.setattr(module, "DRIFT_OF_COSINES", 1e9)
    monkeypatch.setattr(module, "DRIFT_OF_SIZES", 1e9)
    some = SomeOff()
    while not some.too_much:
        some.add(1.5, 0.5)
    doubts, chance = Doubts(), Random(1)
    for peer in PEERS:
        doubts._members[1, peer] = _Member(some_off=some)
    found = sum(doubts.choose(step, PEERS, chance) is not None for step in range(1000))
    assert SOME_MAX <= found <= SOME_MAX + 1000 * SOME_A_STEP + 1
    monkeypatch.setattr(module, "SOME_A_STEP", 1.0)
    assert sum(doubts.choose(step, PEERS, chance) is not None for step in range(1000, 2000)) >= 999


@pytest.mark.parametrize(("times", "doubted"), [(2.0**0.7, False), (2.0**-0.7, False), (2.0, True), (0.5, True)])
def test_a_size_alone_is_doubted_only_far_out(times: float, doubted: bool) -> None:
    """Deviations are a tenth of a power of two."""
    doubts = Doubts()
    told = [doubts.see(1, step, [PartSeen(PEERS[0], 1.0, 0.4, 1.0)]) for step in range(40)]
    assert not any(told)
    assert bool(doubts.see(1, 40, [PartSeen(PEERS[0], times, 0.4, 1.0)])) is doubted


def made(chance: Random, peer: Peer) -> PartSeen:
    """What it made of its piece, beside what we gave to that, as it was measured with three holders."""
    return PartSeen(peer, 2.0 ** chance.gauss(0.0, 0.2), max(-1.0, min(1.0, chance.gauss(0.75, 0.1))), 1.0)


def first_check_of_sums(seed: int, lie: Callable[[PartSeen], PartSeen]) -> int:
    """After how many steps c is checked, which makes other sums; -1: not within 50."""
    doubts, chance = Doubts(), Random(seed)
    for step in range(STEPS + 50):
        sums = [made(chance, peer) for peer in PEERS[1:]]
        if step >= STEPS:
            sums[1] = lie(sums[1])
        chosen = doubts.choose(step, PEERS[1:], chance)
        if step >= STEPS and chosen == PEERS[2]:
            return step - STEPS
        doubts.see_sums(1, step, sums)
    return -1


OTHER_SUMS: Final[dict[str, tuple[Callable[[PartSeen], PartSeen], int]]] = {
    "turned": (lambda sum_: replace(sum_, cosine=-sum_.cosine), 2),
    "noise": (lambda sum_: replace(sum_, cosine=0.0), 4),
    "a thousand times as much": (lambda sum_: replace(sum_, size=1000 * sum_.size), 2),
    "half as much again": (lambda sum_: replace(sum_, size=1.5 * sum_.size), 20),
    "nothing": (lambda sum_: replace(sum_, size=0.0, cosine=0.0), 2),
}  # fmt: skip


@pytest.mark.parametrize("lie", OTHER_SUMS)
def test_who_makes_another_sum_of_its_piece_is_checked_soon(lie: str) -> None:
    way, soon = OTHER_SUMS[lie]
    found = [first_check_of_sums(seed, way) for seed in range(10)]
    assert all(0 <= steps <= soon for steps in found), found


@pytest.mark.parametrize("lie", OTHER_SUMS)
def test_planted_where_nobody_looks_at_sums_it_is_not(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Doubts, "see_sums", lambda *_: [])
    assert [first_check_of_sums(seed, OTHER_SUMS[lie][0]) for seed in range(10)] == [-1] * 10


def test_honest_sums_seldom_make_anybody_check() -> None:
    chance, doubts, found = Random(1), Doubts(), 0
    for step in range(5000):
        found += doubts.choose(step, PEERS, chance) is not None
        doubts.see_sums(1, step, [made(chance, peer) for peer in PEERS[1:]])
    assert found <= 5000 * 0.002


def doubted_steps(steps: int, seed: int) -> int:
    """How often an honest swarm makes somebody check for a doubt."""
    chance, doubts, found = Random(seed), Doubts(), 0
    for step in range(steps):
        doubts.see(1, step, [honest(chance, peer) for peer in PEERS])
        found += doubts.choose(step, PEERS, chance) is not None
    return found


def test_honest_parts_with_heavy_tails_seldom_make_anybody_check() -> None:
    assert sum(doubted_steps(1000, seed) for seed in range(5)) <= 5 * 1000 * 0.01


def test_however_many_are_doubted_checks_keep_to_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    def often() -> int:
        chance, doubts = Random(1), Doubts()
        found = 0
        for step in range(1000):
            doubts.see(1, step, [PartSeen(peer, 1000.0, 0.0, 0.001) for peer in PEERS])
            found += doubts.choose(step, PEERS, chance) is not None
        return found

    assert 30 <= often() <= BUDGET_MAX + 1000 * BUDGET_A_STEP + 1
    monkeypatch.setattr(module, "BUDGET_A_STEP", 1.0)
    assert often() == 1000, "without the budget everybody checks in every step"


def test_a_step_that_is_begun_again_brings_no_budget() -> None:
    doubts = Doubts()
    for _ in range(100):
        doubts.see(1, 5, [PartSeen(PEERS[0], 1000.0, 0.0, 0.001)])
        doubts.choose(5, PEERS, Random(1))
    doubts.see(1, 5, [PartSeen(PEERS[0], 1000.0, 0.0, 0.001)])
    assert doubts.choose(5, PEERS, Random(1)) is None


def test_parts_that_do_not_count_in_full_are_counted_and_named_once() -> None:
    doubts, part = Doubts(), PartSeen(PEERS[0], 1000.0, 0.5, 0.001)
    told = [doubts.see(2, step, [part]) for step in range(40)]
    assert doubts.cut_off == 40 and [len(found) for found in told] == [1] + [0] * 39
    assert "1,000 times what is usual" in told[0][0].reason and "0.1% of it counts" in told[0][0].reason
    assert told[0][0][:3] == (PEERS[0], 2, 0)


def test_tables_have_an_end() -> None:
    doubts = Doubts()
    for number in range(1000):
        doubts.see(1, number, [PartSeen(Peer(str(number), 1), 1000.0, 0.0, 0.0)])
    assert len(doubts.told) == TOLD_MAX
    assert max(map(len, (doubts._open, doubts._members, doubts._named))) <= module.PEERS_MAX
