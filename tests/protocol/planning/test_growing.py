"""Volunteers who come one after the other end near the best layout, and no change is taken back by the next one."""

from __future__ import annotations

from statistics import mean

import pytest

from ftnode.protocol.planning.changes import Changes
from ftnode.protocol.planning.costs import Risk
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.planning.search import best_layout
from tests.protocol.planning.growing import NoEnd, grown, unequal
from tests.protocol.planning.grown_volunteers import of_draw

NEAR, NEAR_ON_AVERAGE = 1.45, 1.2


def over_best(seed: int) -> float:
    """A step of the layout that they end in, against that of the best one that the search finds."""
    swarm = unequal(seed)
    holders = grown(swarm, 2, Risk(1 / 36_000, 4.0, (1.0, *[30.0] * (len(swarm.sizes) - 1))))
    best = best_layout(swarm, holders)
    assert best is not None
    return step_timing(swarm.layout(holders), swarm.batch).seconds / best.seconds


def test_unequal_volunteers_end_near_the_best_layout() -> None:
    found = [over_best(seed) for seed in range(32)]
    assert max(found) < NEAR and mean(found) < NEAR_ON_AVERAGE


def test_twenty_volunteers_get_beyond_equal_stages_and_not_always() -> None:
    """docs/explanation/planner.md has all sixteen draws."""
    assert [round(found / equal, 2) for found, equal in map(of_draw, (7, 15))] == [0.82, 4.6]


def test_where_nobody_loses_its_place_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Changes, "successions", lambda self, name: iter(()))
    assert any(over_best(seed) > NEAR for seed in (5, 8))


def test_where_only_single_changes_are_thought_of_they_would_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Changes, "_first_of_two", lambda self, found, names, work: None)
    assert any(over_best(seed) > NEAR for seed in (5, 30))


def test_who_moves_without_being_asked_as_a_newcomer_would_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def unasked(self: Changes, name: str, stages: tuple[int, ...], steps: float) -> object:
        places = self._after(self.present).joins(name)
        return self._confirmed(self._compared(places), 2.0)

    monkeypatch.setattr(Changes, "_when_free", unasked)
    with pytest.raises(NoEnd):
        for seed in (24, 28, 30):
            over_best(seed)
