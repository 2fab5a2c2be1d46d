"""The planner's schedule says what a step takes, in swarms of unequal volunteers that nobody has laid out by hand."""

from __future__ import annotations

from statistics import mean

from tests.sim.step_estimates import compared

SEEDS = range(24)
"""Devices one to four times as slow as others, lines of 5 to 200 Mbit/s, one to three holders of a stage."""
MEAN_ERROR, LARGE_ERROR, LARGE = 0.04, 0.08, 3
"""At most so many are further off: a stage has two holders there, and somebody's line down is thin. What waits for that
looks like the senders' lines (protocol/step/line_pace.py), so that work is divided otherwise than it should be."""
WORST_ERROR = 0.2


def test_the_schedule_says_what_a_step_takes() -> None:
    found = [compared(seed) for seed in SEEDS]
    assert sum(max(one.groups) > 1 for one in found) > len(SEEDS) / 3
    errors = sorted(one.error for one in found)
    assert mean(errors) <= MEAN_ERROR, found
    assert errors[-1 - LARGE] <= LARGE_ERROR and errors[-1] <= WORST_ERROR, found
