"""One estimate of the time that is left: it follows what lasts, and hardly moves for what does not."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from ftnode.node.watch.time_left import seconds_left


def test_nothing_is_known_before_the_second_step() -> None:
    assert seconds_left(100, []) is None and seconds_left(100, [0.0]) is None
    assert seconds_left(100, [0.0, 2.0]) == 200.0


def test_nothing_is_left_at_the_end() -> None:
    assert seconds_left(0, [1.0, 1.0]) == seconds_left(-3, [1.0, 1.0]) == 0.0


@pytest.mark.parametrize("usual", [0.3, 2.0, 40.0])
def test_one_long_step_hardly_changes_it(usual: float) -> None:
    """As when a stage is lost and rebuilt."""
    steady = [usual] * 100
    before, after = seconds_left(1000, steady), seconds_left(1000, [*steady, 60 * usual])
    assert before is not None and after is not None
    assert before == pytest.approx(1000 * usual) and before < after < 1.1 * before


def test_uneven_steps_do_not_make_it_jump() -> None:
    """Issue 17, row 13: 14, 46, 37, 17 minutes one after the other, by the mean of the newest eight."""
    chance = Random(1)
    took = [chance.choice([1.0, 1.0, 1.0, 5.0]) for _ in range(400)]
    told = [seconds_left(1000, took[:count]) or 0.0 for count in range(100, 401)]
    assert max(abs(late - soon) / soon for soon, late in pairwise(told)) < 0.06
    assert max(told) < 1.5 * min(told)
    of_eight = [sum(took[count - 8 : count]) for count in range(100, 401)]
    assert max(of_eight) > 3 * min(of_eight), "which is what it was"


def test_a_swarm_that_grows_is_believed_after_some_minutes() -> None:
    slow, fast = [4.0] * 100, [1.0] * 600
    told = seconds_left(1000, [*slow, *fast[:60]])
    assert told is not None and told > 2000
    told = seconds_left(1000, [*slow, *fast])
    assert told is not None and told < 1100


@pytest.mark.parametrize("usual", [0.5, 4.0, 30.0])
@pytest.mark.parametrize("slow_steps", [8, 11, 16, 25, 40, 90, 300])
def test_a_swarm_that_slows_down_is_believed_after_some_steps(usual: float, slow_steps: int) -> None:
    """As when half of its volunteers have gone: those who were quick do not come back by themselves."""
    chance = Random(2)
    before = [usual * chance.uniform(0.8, 1.2) for _ in range(200)]
    now = [2.75 * usual * chance.uniform(0.8, 1.2) for _ in range(slow_steps)]
    told = seconds_left(1000, [*before, *now])
    assert told == pytest.approx(2750 * usual, rel=0.15)
