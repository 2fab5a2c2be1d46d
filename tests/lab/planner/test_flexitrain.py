"""FlexiTrain's tables."""

from __future__ import annotations

import pytest

from ftnode.lab.planner.flexitrain import PAPER, RANKS, Checkpoints, Elastic, derivation, failures, simulation
from ftnode.lab.planner.setting import HOUR, Change, Setting
from ftnode.lab.planner.simulation import simulated

SETTING = Setting(machines=RANKS, hours=6.0, microbatches=1)


def steps(policy: Elastic | Checkpoints, *events: Change) -> float:
    return simulated(SETTING, policy, events).microbatches


def test_the_second_table_follows_from_its_formulas() -> None:
    found = derivation()
    assert found["flexitrain"] == pytest.approx(PAPER["table_2"]["flexitrain"], abs=0.01)
    # The paper rounds the probability of a failure, 0.362, to 0.36.
    assert found["checkpoints"] == pytest.approx(PAPER["table_2"]["checkpoints"], abs=0.2)


def test_a_rank_is_out_until_the_next_checkpoint() -> None:
    lost = Change(HOUR, ("n003",), False)
    found = steps(Elastic(), lost, Change(3 * HOUR, ("n003",), True))
    assert found == pytest.approx(6 * HOUR - 2 * HOUR / RANKS, abs=1)


def test_a_failure_costs_what_was_done_since_the_checkpoint_and_reading_it() -> None:
    one = Change(4 * HOUR, ("n003",), False)
    assert steps(Checkpoints(), one) == pytest.approx((6 - 1 - 1 / 3) * HOUR, abs=1)
    # Another one ten minutes later begins the reading anew, and loses nothing more.
    other = Change(4 * HOUR + 600, ("n004",), False)
    assert steps(Checkpoints(), one, other) == pytest.approx((6 - 1 - 1 / 3 - 1 / 6) * HOUR, abs=2)


def test_failures_come_at_their_rate() -> None:
    from random import Random

    found = failures(20_000.0, Random(0))
    assert sum(not change.back for change in found) == pytest.approx(0.15 * 20_000, rel=0.05)
    assert simulation(2)["flexitrain"] == pytest.approx(99.65, abs=0.1)
