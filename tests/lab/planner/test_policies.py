"""Recipes of rivals, by hand, and what a course of failures comes to."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from ftnode.lab.planner.arrangements import Arrangement, layers_of, pipelines_seconds, shared_out, templates
from ftnode.lab.planner.odyssey import POLICIES
from ftnode.lab.planner.own import Planner
from ftnode.lab.planner.policies import Answer, Ladder, Redundancy, Reroute, Templates, joined
from ftnode.lab.planner.setting import HOUR, REBUILT_STEPS, Change, Kind, Setting, changes
from ftnode.lab.planner.simulation import simulated
from ftnode.protocol.planning.swarm import Holders, stages_of

SMALL = Setting(machines=8, layers=8, pipeline=4, microbatches=16, room=4)
LAYER = SMALL.forward_seconds + SMALL.backward_seconds


def sizes(holders: Holders) -> list[int]:
    return [len(holders[first]) for first, _ in layers_of(SMALL, SMALL.pipeline)]


def without(name: str) -> list[str]:
    return [other for other in SMALL.names if other != name]


def answered(policy: Reroute | Templates | Redundancy | Planner, before: Arrangement | None, name: str) -> Answer:
    return policy.answer(SMALL, before, Change(1.0, (name,), False), without(name), 1000.0)


def test_failures_come_at_their_rate_and_machines_come_back() -> None:
    setting = Setting(machines=200, hours=10.0)
    found = changes(setting, Random(0))
    assert found == sorted(found, key=lambda change: (change.at, change.back)) and found[-1].at < 10 * HOUR
    failed = sum(not change.back for change in found)
    # A machine is there for ten of eleven hours in the long run, and for more of the first ten.
    assert failed == pytest.approx(200 * 10 * 0.1 * 0.92, rel=0.1)
    assert sum(change.back for change in found) > 0.7 * failed
    never = changes(Setting(machines=200, hours=10.0, away_hours=0.0), Random(0))
    assert not any(change.back for change in never)
    assert changes(setting, Random(0)) == found != changes(setting, Random(1))


def test_recycle_reroutes_and_a_newcomer_joins_the_fewest() -> None:
    policy = Reroute()
    begun = policy.begin(SMALL, SMALL.names)
    assert begun is not None and sizes(begun.holders) == [2, 2, 2, 2]
    found = answered(policy, begun, "n002").arrangement
    assert found is not None and sizes(found.holders) == [2, 2, 1, 2]
    # The one that is left has twice the microbatches, of two layers each.
    assert found.seconds - begun.seconds == pytest.approx(8 * 2 * LAYER, rel=0.15)
    back = policy.answer(SMALL, found, Change(2.0, ("n002",), True), SMALL.names, 1.0)
    assert back.arrangement is not None and sizes(back.arrangement.holders) == [2, 2, 2, 2] and not back.pause


def test_recycle_without_a_stage_begins_from_a_checkpoint() -> None:
    policy = Reroute()
    there = [name for name in SMALL.names if name not in ("n002", "n006")]
    before = answered(policy, policy.begin(SMALL, SMALL.names), "n002").arrangement
    found = policy.answer(SMALL, before, Change(2.0, ("n006",), False), there, 1.0)
    assert found.lost == SMALL.checkpoint_seconds / 2 and found.pause > SMALL.restart_seconds
    assert found.arrangement is not None and sum(sizes(found.arrangement.holders)) == 6


def test_the_ladder_blends_what_recycle_loses() -> None:
    policy = Ladder()
    there = [name for name in SMALL.names if name not in ("n002", "n006")]
    begun = policy.begin(SMALL, SMALL.names)
    found = policy.answer(SMALL, begun, Change(2.0, ("n006",), False), there, 1.0)
    assert found.arrangement is not None and sorted(sizes(found.arrangement.holders)) == [1, 1, 2, 2]
    assert found.lost == REBUILT_STEPS * found.arrangement.seconds


def test_templates_use_all_machines() -> None:
    for count in range(2, 9):
        found = templates(SMALL, SMALL.names[:count])
        assert found is not None and len(stages_of(found.holders)) == count
        assert all(len(stages) <= SMALL.room + 1 for stages in stages_of(found.holders).values())
    assert templates(SMALL, SMALL.names[:1]) is None, "one has room for half of the layers"


def test_pipelines_share_microbatches_by_their_speed() -> None:
    """Two of four equal stages take as long as one with half of the microbatches."""
    two, four = ((Kind(), 2),) * 4, ((Kind(), 4),) * 2
    both = pipelines_seconds(SMALL, (two, two))
    assert both == pytest.approx(pipelines_seconds(replace(SMALL, microbatches=8), (two,)))
    assert (8 + 3) * 2 * LAYER < both < 1.05 * (8 + 3) * 2 * LAYER, "tensors take a little, too"
    assert both < pipelines_seconds(SMALL, (two, four)) < pipelines_seconds(SMALL, (two,))


def test_layers_of_a_pipeline_go_by_speed_and_room() -> None:
    kinds = (Kind(1.0, 4), Kind(2.0, 4), Kind(1.0, 3), Kind(9.0, 4))
    setting = replace(SMALL, machines=4, kinds=kinds)
    assert shared_out(setting, setting.names) == [("n000", 3), ("n001", 2), ("n002", 3)], "the slowest is left out"
    assert shared_out(setting, setting.names[2:3]) is None, "no room"


def test_the_fastest_come_first_and_who_has_no_room_stands_by() -> None:
    setting = replace(SMALL, machines=6, pipeline=2, kinds=(Kind(1.0, 4), Kind(2.0, 4), Kind(1.0, 3)))
    groups: dict[str, int] = {}
    joined(setting, groups, sorted(setting.names, key=lambda name: setting.kind(name).slower))
    assert groups == {"n000": 0, "n003": 1, "n001": 0, "n004": 1}


def test_a_site_is_lost_at_once_and_comes_back() -> None:
    setting = replace(SMALL, failures_an_hour=0.0, sites=4, site_failures_an_hour=0.5)
    found = changes(setting, Random(0))
    assert found and all(len(change.names) == 2 for change in found)
    assert {len({int(name[1:]) % 4 for name in change.names}) for change in found} == {1}
    assert setting.causes(("n000", "n001", "n004")) == [
        (0.5 / HOUR, frozenset({"n000", "n004"})), (0.5 / HOUR, frozenset({"n001"})),
    ]  # fmt: skip


def test_bamboo_pays_for_its_redundancy_and_goes_on_at_once() -> None:
    begun, plain = Redundancy().begin(SMALL, SMALL.names), Reroute().begin(SMALL, SMALL.names)
    assert begun is not None and plain is not None and begun.seconds == pytest.approx(1.095 * plain.seconds, rel=0.01)
    found = answered(Redundancy(), begun, "n001")
    assert found.arrangement is not None and found.pause == found.arrangement.seconds and not found.lost
    assert begun.seconds < found.arrangement.seconds < 2 * begun.seconds


def test_without_failures_nothing_is_lost_and_all_do_what_their_step_allows() -> None:
    for name, policy in POLICIES.items():
        begun = policy().begin(SMALL, SMALL.names)
        assert begun is not None
        found = simulated(SMALL, policy(), [])
        assert found.microbatches == pytest.approx(SMALL.hours * HOUR / begun.seconds * 16), name
        assert (found.stops, found.paused, found.lost) == (0, 0.0, 0.0)


def test_a_stop_and_half_a_step_are_not_worked_in() -> None:
    begun = Templates().begin(SMALL, SMALL.names)
    found = simulated(SMALL, Templates(), [Change(HOUR, ("n003",), False)])
    after = answered(Templates(), begun, "n003")
    assert begun is not None and after.arrangement is not None and after.pause > 0
    steps = HOUR / begun.seconds - 0.5 + ((SMALL.hours - 1) * HOUR - after.pause) / after.arrangement.seconds
    assert found.microbatches == pytest.approx(16 * steps) and found.stops == 1


def test_machines_may_all_be_gone() -> None:
    """Then nobody trains until enough are back, from a checkpoint."""
    gone = [Change(float(number), (name,), False) for number, name in enumerate(SMALL.names, 1)]
    back = [Change(100.0 + number, (name,), True) for number, name in enumerate(SMALL.names, 1)]
    for name, policy in POLICIES.items():
        found, never = simulated(SMALL, policy(), [*gone, *back]), simulated(SMALL, policy(), gone)
        assert never.points[-1][1:] == (0, 0.0), name
        assert found.points[-1][1] == 8 and found.points[-1][2] > 0, name


def test_the_same_seed_has_the_same_outcome() -> None:
    events = changes(SMALL, Random(3))
    for policy in POLICIES.values():
        assert simulated(SMALL, policy(), events) == simulated(SMALL, policy(), events)
