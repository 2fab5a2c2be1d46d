"""What a peer that ends at a certain time hands over before, and what it leaves out."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, pairwise
from math import inf
from random import Random

import pytest

from ftnode.protocol.recovery.short_notice import (
    FIRST_NATS,
    HALT_NATS,
    LAST_NATS,
    LINE_OVERHEAD,
    RUNG_NATS,
    cost_of_losing,
    line_beside_steps,
    state_seconds,
    what_to_hand_over,
)
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Rung

PLAIN = Settings("r", stages=6, steps=99, microbatches=4, window=2, head_state_bytes=1000, block_state_bytes=1000)
SWAPPED = replace(PLAIN, swap=True)
CONTINUED = replace(PLAIN, continued=True)
LARGE_HEAD = replace(PLAIN, head_state_bytes=5000)
RATE = 1000 * LINE_OVERHEAD
"""Bytes a second, of which a block stage takes one second."""
LONG = 1e6


@pytest.mark.parametrize(
    ("settings", "alone", "copied", "seconds", "order", "left_out"),
    [
        (PLAIN, (2, 6), {}, LONG, (6, 2), ()),
        (PLAIN, (2, 6), {}, 1.5, (6,), (2,)),
        (PLAIN, (1, 6), {}, LONG, (1, 6), ()),
        (PLAIN, (3, 4, 6), {}, LONG, (6, 3, 4), ()),
        (PLAIN, (0, 1, 3), {}, 1.0, (0,), (1, 3)),
        (PLAIN, (0, 1, 3), {0: 8}, 1.0, (1,), (0, 3)),
        (PLAIN, (0, 1, 3), {0: 8}, LONG, (1, 3, 0), ()),
        (PLAIN, (3, 6), {6: 5}, LONG, (3, 6), ()),
        (SWAPPED, (1, 3), {}, 1.0, (1,), (3,)),
        (SWAPPED, (1, 2), {}, 1.0, (1,), (2,)),
        (CONTINUED, (1, 3), {}, LONG, (1, 3), ()),
        (LARGE_HEAD, (0, 3, 6), {}, 4.0, (6, 3), (0,)),
        (LARGE_HEAD, (0, 3, 6), {}, 5.0, (0,), (3, 6)),
        (LARGE_HEAD, (0, 3, 6), {}, 6.0, (0, 6), (3,)),
        (PLAIN, (1, 2, 3, 4, 5, 6), {}, 1.0, (3,), (1, 2, 4, 5, 6)),
        (PLAIN, (2, 3), {}, 0.9, (), (2, 3)),
        (PLAIN, (2, 3), {}, -5.0, (), (2, 3)),
        (PLAIN, (), {}, LONG, (), ()),
    ],
    ids=[
        "an end before a middle stage", "an end alone", "the first before the last", "the rest by number",
        "a head without a copy before all", "a head with a copy after all", "all, and a kept head last",
        "an end with a shadow after a middle stage", "swapped: an end", "swapped: an end and its partner",
        "of a model that exists", "a head that does not pass", "a head that just passes", "a head and one more",
        "all block stages: one of them, so that the run goes on", "none passes", "the time is over", "none is alone",
    ],
)  # fmt: skip
def test_the_most_valuable_that_passes_is_handed_over(
    settings: Settings, alone: tuple[int, ...], copied: dict[int, int], seconds: float, order: tuple[int, ...],
    left_out: tuple[int, ...],
) -> None:  # fmt: skip
    found = what_to_hand_over(alone, seconds, RATE, copied, 9, settings)
    assert (found.order, found.left_out) == (order, left_out)
    assert all(str(stage) in found.reason for stage in (*order, *left_out))


def test_a_line_that_was_never_full_carries_all_of_it() -> None:
    assert what_to_hand_over((2, 3), 0.0, 0.0, {}, 9, PLAIN).order == (2, 3)
    assert state_seconds(3, 0.0, PLAIN) == 0.0 and state_seconds(0, RATE, LARGE_HEAD) == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("settings", "lost", "copied", "step", "nats"),
    [
        (PLAIN, {3}, {}, 9, RUNG_NATS[Rung.BLEND]),
        (PLAIN, {3, 4}, {}, 9, 2 * RUNG_NATS[Rung.INTERPOLATE]),
        (PLAIN, {1}, {}, 9, FIRST_NATS),
        (PLAIN, {6}, {}, 9, LAST_NATS),
        (SWAPPED, {6}, {}, 9, RUNG_NATS[Rung.COPY]),
        (PLAIN, {0}, {}, 9, HALT_NATS),
        (PLAIN, {0}, {0: 8}, 9, RUNG_NATS[Rung.HEAD]),
        (PLAIN, {1, 2, 3, 4, 5, 6}, {}, 9, 6 * HALT_NATS),
        (PLAIN, {0, 1, 2}, {}, 0, 0.0),
        (PLAIN, set(), {}, 9, 0.0),
    ],
)
def test_what_a_loss_costs(settings: Settings, lost: set[int], copied: dict[int, int], step: int, nats: float) -> None:
    assert cost_of_losing(lost, copied, step, settings) == pytest.approx(nats)


def test_the_sums_of_steps_go_over_the_same_line() -> None:
    """While the state travels, steps end, and so do those in which the rest travels."""
    summed, line = replace(PLAIN, sum_bytes=300), 1000 * LINE_OVERHEAD
    assert state_seconds(3, line, summed) == pytest.approx(1.3)
    assert state_seconds(3, line, summed, 1.0) == pytest.approx(1.3 / 0.7)
    assert state_seconds(3, line, summed, 0.3) == inf == state_seconds(3, line, summed, 0.1)
    assert what_to_hand_over((2, 3), LONG, line, {}, 9, summed, 0.2).left_out == (2, 3)


def test_a_state_has_what_the_tensors_leave_of_the_line_and_half_of_it_at_least() -> None:
    busy = replace(PLAIN, forward_bytes=100, backward_bytes=50)  # 600 bytes a step and stage
    assert line_beside_steps(1000.0, 2, 0.0, busy) == 1000.0
    assert line_beside_steps(1000.0, 2, 10.0, busy) == pytest.approx(880.0)
    assert line_beside_steps(1000.0, 2, 1.0, busy) == 500.0
    assert line_beside_steps(0.0, 2, 10.0, busy) == 0.0


def drawn(chance: Random) -> Settings:
    return Settings(
        "r", stages=chance.randint(3, 9), steps=99, microbatches=2, window=2, swap=chance.random() < 0.5,
        swapped=chance.choice(["copy", "blend"]), ends=chance.choice(["copy", "halt"]),
        continued=chance.random() < 0.5, head_state_bytes=chance.choice([0, 300, 1000, 4000]), block_state_bytes=1000,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_it_fits_it_wastes_no_time_and_no_other_stage_is_better_than_the_last(seed: int) -> None:
    chance = Random(seed)
    for _ in range(50):
        settings, step = drawn(chance), chance.randint(0, 9)
        stages = range(settings.stage_count)
        alone = {stage for stage in stages if chance.random() < 0.5}
        copied = {stage: chance.randint(0, step) for stage in stages if chance.random() < 0.2}
        seconds, rate = chance.uniform(-1.0, 12.0), chance.choice([0.0, RATE, 3 * RATE])
        check(settings, alone, copied, seconds, rate, step)


def check(settings: Settings, alone: set[int], copied: dict[int, int], seconds: float, rate: float, step: int) -> None:
    order, left_out, _ = what_to_hand_over(alone, seconds, rate, copied, step, settings)
    assert sorted((*order, *left_out)) == sorted(alone)
    needed = sum(state_seconds(stage, rate, settings) for stage in order)
    assert needed <= max(0.0, seconds) + 1e-9
    assert all(needed + state_seconds(stage, rate, settings) > max(0.0, seconds) - 1e-9 for stage in left_out)
    costs = [cost_of_losing(alone - {*order[:count]}, copied, step, settings) for count in range(len(order) + 1)]
    assert all(after <= before + 1e-6 for before, after in pairwise(costs)), "a hand-over does no harm"
    if order:
        *before, last = order
        for other in left_out:
            if settings.state_bytes_of(other) <= settings.state_bytes_of(last):
                instead = cost_of_losing(alone - {*before, other}, copied, step, settings)
                assert costs[-1] <= instead + 1e-6


def test_of_two_that_pass_no_other_pair_is_better_unless_all_block_stages_go() -> None:
    """One after the other is the best of all choices then."""
    for count in range(2, 6):
        for alone in combinations(range(7), count):
            order = what_to_hand_over(alone, 2.0, RATE, {0: 8}, 9, PLAIN).order
            found = cost_of_losing({*alone} - {*order}, {0: 8}, 9, PLAIN)
            best = min(cost_of_losing({*alone} - {*pair}, {0: 8}, 9, PLAIN) for pair in combinations(alone, 2))
            assert found <= best + 1e-6, (alone, order)
