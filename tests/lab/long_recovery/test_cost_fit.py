"""The planner's cost of a loss is found again from runs that it made; ranks and intervals against known values."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from random import Random

import pytest

from ftnode.lab.long_recovery import ranks
from ftnode.lab.long_recovery.cost_fit import Cost, Measured, fitted, short_runs
from ftnode.lab.long_recovery.tables import worth_of
from ftnode.lab.recovery.failures import draw
from ftnode.protocol.recovery.learning_cost import steps_lost
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Rung

SETTINGS = Settings("r", stages=6, steps=10_000, microbatches=4, window=2, head_every=1)
RATES = ("5%", "10%", "16%")


def test_it_counts_as_the_planner_does() -> None:
    losses = [(100, 2), (150, 1), (900, 3), (949, 1), (951, 6)]
    before = (0, 1, 1, 2, 2)
    """Of the last 800 steps: at 900 that of 150, at 949 those of 150 and 900, at 951 those of 900 and 949."""
    expected = sum(
        steps_lost(stage, Rung.COPY if stage in (1, 6) else Rung.BLEND, SETTINGS, before=number)
        for (_, stage), number in zip(losses, before)
    )
    assert Cost().steps(losses) == pytest.approx(expected)


def made(cost: Cost, seeds: int, noise: float = 0.0) -> list[Measured]:
    chance, found = Random(5), []
    for seed in range(seeds):
        for rate in RATES:
            losses = draw(rate, seed, 6, 10_000, 1.0).failures
            found.append(Measured(seed, losses, cost.steps(losses) * (1 + noise * chance.gauss(0, 1))))
    return found


def test_it_finds_the_cost_that_made_the_runs() -> None:
    true = Cost(first=25.0, half=16.0, ends=3.0, window=800)
    found = fitted(made(true, 1), true.ends, true.window, Random(0))
    assert (found.cost.first, found.cost.half) == (pytest.approx(25.0), 16.0)
    assert found.error == pytest.approx(0, abs=1e-6) and found.runs == 3


def test_its_interval_has_the_true_cost_in_it() -> None:
    true = Cost(first=25.0, half=16.0, ends=3.0, window=800)
    found = fitted(made(true, 5, noise=0.05), true.ends, true.window, Random(0))
    assert found.first_interval is not None and found.half_interval is not None
    assert found.first_interval[0] <= 25.0 <= found.first_interval[1]
    assert found.half_interval[0] <= 16.0 <= found.half_interval[1]
    assert found.first_interval[0] < found.first_interval[1] or found.half_interval[0] < found.half_interval[1]


def test_the_planners_constants_are_those_of_the_runs_that_lie_beside_the_page() -> None:
    """Nine runs that lose all block stages, three that lose middle ones, three seeds."""
    runs = short_runs(Path(__file__).parents[3] / "docs" / "recovery")
    assert len(runs) == 12 and {one.seed for one in runs} == {0, 1, 2}
    now = Cost()
    found = fitted(runs, now.ends, now.window, Random(0))
    assert found.first_interval is not None and found.half_interval is not None
    assert found.first_interval[0] <= now.first <= found.first_interval[1]
    assert 0.9 * found.half_interval[0] <= now.half <= found.half_interval[1]
    for ends in (1.0, 20.0):
        assert fitted(runs, ends, now.window, Random(0)).error > found.error


def test_one_run_has_no_interval_and_none_cannot_be_fitted() -> None:
    one = fitted(made(Cost(), 1)[:1], 3.0, 800, Random(0))
    assert one.first_interval is None
    with pytest.raises(ValueError, match="no run"):
        fitted([], 3.0, 800, Random(0))


def test_ranks() -> None:
    assert ranks.ranks([3.0, 1.0, 3.0, 2.0]) == [3.5, 1.0, 3.5, 2.0]
    assert ranks.rank_correlation([(1, 1), (2, 8), (3, 27)]) == pytest.approx(1)
    assert ranks.rank_correlation([(1, 3), (2, 2), (3, 1)]) == pytest.approx(-1)
    # 1 - 6 Σd² / (n(n² - 1)), where no two are equal; here Σd² = 8.
    assert ranks.rank_correlation([(1, 2), (2, 1), (3, 4), (4, 5), (5, 3)]) == pytest.approx(1 - 6 * 8 / 120)
    assert isnan(ranks.rank_correlation([(1, 2), (1, 3)]))


def test_intervals() -> None:
    low, high = ranks.correlation_interval([(n, n + (n % 3)) for n in range(30)], Random(0))
    assert 0.9 < low <= high <= 1
    assert all(map(isnan, ranks.correlation_interval([(1, 3), (1, 2)], Random(0))))
    assert ranks.mean_interval([1.0]) is None
    # Five seeds: 2.132 times the standard error.
    assert ranks.mean_interval([1, 2, 3, 4, 5]) == pytest.approx((3 - 2.132 * 0.5**0.5, 3 + 2.132 * 0.5**0.5))


@pytest.mark.parametrize(
    ("loss", "worth"),
    [(2.0, 0.0), (2.1, 5000.0), (2.05, 10_000 - 7071.07), (2.3, 7500.0), (2.5, 8750.0), (1.9, -10_000.0)],
)
def test_what_a_loss_is_worth_goes_by_the_logarithm_of_the_length(loss: float, worth: float) -> None:
    points = [(2500, 2.3), (5000, 2.1), (10_000, 2.0)]
    assert worth_of(loss, points, 10_000) == pytest.approx(worth, abs=0.1)


def test_without_a_shorter_run_nothing_is_known() -> None:
    assert worth_of(2.1, [(10_000, 2.0)], 10_000) is None
    assert worth_of(2.1, [(2500, 2.3), (5000, 2.1)], 10_000) is None
