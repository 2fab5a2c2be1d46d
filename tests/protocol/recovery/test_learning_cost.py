"""What a lost stage costs in steps of learning, against the runs that were measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.recovery.learning_cost import HALTED, LONG_AGO, risked_steps, steps_lost
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Rung

SETTINGS = Settings("r", stages=6, steps=1000, microbatches=4, window=2, head_every=1)


@pytest.mark.parametrize(("losses", "behind"), [(24, 225), (51, 257), (107, 277)])
def test_it_adds_up_to_what_whole_runs_were_behind(losses: int, behind: float) -> None:
    """One of five losses hits the first stage, as in those runs."""
    total = sum(
        0.2 * steps_lost(1, Rung.COPY, SETTINGS, before=before)
        + 0.8 * steps_lost(3, Rung.BLEND, SETTINGS, before=before)
        for before in range(losses)
    )
    assert total == pytest.approx(behind, rel=0.01)


def test_middle_stages_alone() -> None:
    assert sum(steps_lost(3, Rung.BLEND, SETTINGS, before=n) for n in range(25)) == pytest.approx(121, rel=0.01)


def test_what_comes_back_as_it_was_costs_nothing() -> None:
    assert {steps_lost(2, rung, SETTINGS) for rung in (Rung.REPLICA, Rung.SNAPSHOT, Rung.KEPT, Rung.INITIAL)} == {0.0}
    assert steps_lost(2, None, SETTINGS) == HALTED
    assert steps_lost(2, Rung.SHADOW, SETTINGS, age=25) == pytest.approx(2.0)


def test_the_risk_of_each_stage_goes_by_its_rung_and_by_the_losses_before() -> None:
    fresh = risked_steps(SETTINGS)
    assert fresh[HEAD] < fresh[2] < fresh[1], "a copy, a blend, the first without its partner"
    assert risked_steps(replace(SETTINGS, swap=True))[1] == fresh[2]
    assert risked_steps(replace(SETTINGS, head_every=0))[HEAD] == HALTED
    worn = risked_steps(SETTINGS, [100, 100, 300], 400)
    assert worn[2] < fresh[2]
    assert risked_steps(SETTINGS, [100, 100, 300], 300 + LONG_AGO) == fresh
