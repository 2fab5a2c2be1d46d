"""Whose parts look unlike the others' is checked soon, within a budget, and accused of nothing (rule 42)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

import pytest

from ftnode.protocol.step import doubts as module
from ftnode.protocol.step.doubts import BUDGET_A_STEP, BUDGET_MAX, TOLD_MAX, Doubts
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
