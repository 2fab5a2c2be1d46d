"""The planner's schedule says what a step takes, in swarms of unequal volunteers that nobody has laid out by hand."""

from __future__ import annotations

from statistics import mean

from tests.sim.step_estimates import compared

SEEDS = (0, 3, 5, 8, 13, 14, 21, 24, 43, 49, 54, 57)
"""Devices one to four times as slow as others, lines of 5 to 200 Mbit/s, one to three holders of a stage."""
MEAN_ERROR, WORST_ERROR = 0.03, 0.08


def test_the_schedule_says_what_a_step_takes() -> None:
    found = [compared(seed) for seed in SEEDS]
    assert sum(max(one.groups) > 1 for one in found) > len(SEEDS) / 2
    errors = [one.error for one in found]
    assert mean(errors) <= MEAN_ERROR, found
    assert max(errors) <= WORST_ERROR, found
