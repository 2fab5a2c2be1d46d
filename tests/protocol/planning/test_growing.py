"""Volunteers who come one after the other end near the best layout, and no change is taken back by the next one."""

from __future__ import annotations

from random import Random
from statistics import mean

import pytest

from ftnode.lab.planner.growing import NoEnd, grown
from ftnode.lab.planner.volunteers import best_equal, drawn, of_growth, tokens_a_second
from ftnode.protocol.planning.changes import Changes
from ftnode.protocol.planning.costs import Risk
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.planning.search import best_layout
from tests.protocol.planning.swarms import unequal
from tests.tiers import at_night

NEAR, NEAR_ON_AVERAGE = 1.45, 1.2


def over_best(seed: int, goals: bool = True) -> float:
    """A step of the layout that they end in, against that of the best one that the search finds."""
    swarm = unequal(seed)
    holders = grown(swarm, Risk(1 / 36_000, 4.0, (1.0, *[30.0] * (len(swarm.sizes) - 1))), goals)
    best = best_layout(swarm, holders)
    assert best is not None
    return step_timing(swarm.layout(holders), swarm.batch).seconds / best.seconds


@pytest.mark.parametrize("goals", [True, False], ids=["as it is", "by single changes alone"])
def test_unequal_volunteers_end_near_the_best_layout(goals: bool) -> None:
    found = [over_best(seed, goals) for seed in range(0, 32, 1 if at_night() else 2)]
    assert max(found) < NEAR and mean(found) < NEAR_ON_AVERAGE


def test_twenty_volunteers_get_beyond_equal_stages_and_by_single_changes_alone_they_would_not() -> None:
    """docs/explanation/planner.md has all sixteen draws."""
    equal, found = best_equal(drawn(20, Random(7))), of_growth(20, 7)
    assert equal is not None
    ratios = {what: round(tokens / tokens_a_second(equal[0]), 2) for what, tokens in found.items()}
    assert ratios == {"tokens_a_second": 2.32, "without_goals": 0.82}


def test_where_nobody_loses_its_place_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Changes, "successions", lambda self, name: iter(()))
    assert any(over_best(seed, goals=False) > NEAR for seed in (5, 8))


def test_where_only_single_changes_are_thought_of_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Changes, "_first_of_two", lambda self, found, names, work: None)
    assert any(over_best(seed, goals=False) > NEAR for seed in (5, 30))


def test_who_moves_without_being_asked_as_a_newcomer_would_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(self: Changes, name: str, stages: tuple[int, ...], steps: float) -> object:
        places = self.after(self.present).joins(name)
        return self._confirmed(self._compared(places), 2.0)

    monkeypatch.setattr(Changes, "_when_free", unasked)
    with pytest.raises(NoEnd):
        for seed in (24, 28, 30):
            over_best(seed, goals=False)
