"""After how many steps made curves have come down to a loss."""

from __future__ import annotations

import pytest

from ftnode.lab.codecs.crossing import lowest, smoothed, steps_to

LINE = [[10 * number, 6.0 - 0.1 * number] for number in range(21)]
"""Falls by 0.01 a step, to 4.0."""


@pytest.mark.parametrize(("loss", "steps"), [(5.0, 100), (5.05, 95), (4.321, 167.9)])
def test_an_even_curve_is_where_it_seems_to_be(loss: float, steps: float) -> None:
    assert steps_to(LINE, loss) == pytest.approx(steps)


def test_jitter_around_a_curve_moves_little() -> None:
    jittered = [[step, loss + 0.03 * (-1) ** number] for number, (step, loss) in enumerate(LINE)]
    found = steps_to(jittered, 5.0)
    assert found == pytest.approx(100, abs=1.0)
    unsmoothed = next(step for step, loss in jittered if loss <= 5.0)
    assert abs(unsmoothed - 100) > 5


def test_a_curve_that_is_never_there() -> None:
    assert steps_to(LINE, 3.9) is None
    assert lowest(LINE) == pytest.approx(4.2)


def test_one_low_value_is_no_crossing() -> None:
    high = [[step, 6.0] for step, _ in LINE]
    high[10] = [100, 4.9]
    assert steps_to(high, 5.0) is None
    assert lowest(high) == pytest.approx((4 * 6.0 + 4.9) / 5)


def test_the_last_values_count_when_their_neighbours_are_there() -> None:
    """So a run goes on for two validations after it came down, and then ends with the same number however it went."""
    ends = next(length for length in range(1, 22) if steps_to(LINE[:length], 5.0) is not None)
    assert LINE[ends - 1][0] == 120
    assert steps_to(LINE[:ends], 5.0) == steps_to(LINE, 5.0)


def test_a_curve_that_begins_below() -> None:
    assert steps_to(LINE, 7.0) == 20


@pytest.mark.parametrize("length", range(5))
def test_a_short_curve_says_nothing(length: int) -> None:
    assert smoothed(LINE[:length]) == [] and steps_to(LINE[:length], 9.0) is None and lowest(LINE[:length]) is None
