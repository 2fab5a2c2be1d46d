"""What this project's planner answers."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from ftnode.lab.planner.arrangements import Arrangement, grouped, swarm_of, templates
from ftnode.lab.planner.moving import fewest, missing, moved
from ftnode.lab.planner.own import Planner
from ftnode.lab.planner.policies import Answer, Ladder
from ftnode.lab.planner.setting import Change, Kind, Setting, changes
from ftnode.lab.planner.settings import best_pipeline
from ftnode.lab.planner.simulation import simulated
from ftnode.protocol.planning.swarm import stages_of

SMALL = Setting(machines=8, layers=8, pipeline=4, microbatches=16, room=4)


def answered(planner: Planner, before: Arrangement, *names: str, until: float = 1000.0) -> Answer:
    there = [other for other in SMALL.names if other not in names]
    return planner.answer(SMALL, before, Change(1.0, names, False), there, until)


def begun() -> Arrangement:
    found = Planner().begin(SMALL, SMALL.names)
    assert found is not None
    return found


def test_it_begins_no_slower_than_pipelines_or_groups() -> None:
    pipelines = templates(SMALL, SMALL.names)
    groups = grouped(SMALL, "", {name: place % 4 for place, name in enumerate(SMALL.names)}, 4)
    assert pipelines is not None
    assert begun().seconds <= min(pipelines.seconds, groups.seconds)


def test_all_layers_are_held_by_who_is_there_and_has_room() -> None:
    for name in SMALL.names:
        found = answered(Planner(), begun(), name).arrangement
        there = [other for other in SMALL.names if other != name]
        assert found is not None and swarm_of(SMALL, there).feasible(found.holders)


def test_an_oracle_stays_when_the_next_failure_is_near() -> None:
    """A stop would not pay for itself."""
    before = Arrangement("", grouped(SMALL, "", {n: p % 4 for p, n in enumerate(SMALL.names)}, 4).holders, 1.0)
    assert answered(Planner(knows=True), before, "n002", until=0.01).pause == 0.0


def test_a_lost_layer_is_blended_or_read_whichever_costs_less() -> None:
    before = grouped(SMALL, "", {name: place % 4 for place, name in enumerate(SMALL.names)}, 4)
    blended = answered(Planner(), before, "n002", "n006")
    assert blended.arrangement is not None and all(blended.arrangement.holders)
    assert blended.lost == 200 * blended.arrangement.seconds < SMALL.checkpoint_seconds / 2
    often = replace(SMALL, checkpoint_seconds=60.0)
    there = [name for name in SMALL.names if name not in ("n002", "n006")]
    read = Planner().answer(often, before, Change(1.0, ("n002", "n006"), False), there, 1000.0)
    assert read.lost == 30.0


def test_somebody_moves_to_a_layer_with_one_holder_where_failures_are_frequent() -> None:
    """The planner that counts no risk stays: the stop costs more than it gains until the next change."""
    groups = {name: (1 if place == 1 else 0) for place, name in enumerate(SMALL.names)}
    often = replace(SMALL, pipeline=2, failures_an_hour=8.0, microbatches=1)
    before = grouped(often, "", groups, 2)
    assert min(map(len, before.holders)) == 1
    found = Planner().answer(often, before, Change(1.0, ("n007",), False), often.names[:7], 10.0).arrangement
    assert found is not None and min(map(len, found.holders)) > 1


def test_at_high_rates_it_does_no_less_than_the_ladder() -> None:
    """Without risk and patience it did no work that lasts at 800 % an hour."""
    setting = replace(SMALL, failures_an_hour=8.0, away_hours=0.2, hours=0.15, microbatches=8)
    work = {"planner": 0.0, "ladder": 0.0}
    for seed in range(3):
        events = changes(setting, Random(seed))
        work["planner"] += simulated(setting, Planner(), events).microbatches
        work["ladder"] += simulated(best_pipeline(setting, Ladder()), Ladder(), events).microbatches
    assert work["planner"] >= 0.98 * work["ladder"] > 0


def test_what_is_moved_is_the_least_that_scipy_finds() -> None:
    planner, events = Planner(), changes(replace(SMALL, hours=3.0, failures_an_hour=0.5), Random(1))
    found = moved(SMALL, planner.notes, simulated(SMALL, planner, events))
    assert found["layers"] == found["least"] <= found["unmatched"] and found["layers"] > 0
    assert found["moves"] > 0 and 0 < found["machine_hours"] <= 8 * SMALL.hours


def test_bytes_by_hand() -> None:
    setting = replace(SMALL, machines=3, layers=2, kinds=(Kind(), Kind(), Kind(2.0)))
    swarm = swarm_of(setting, setting.names)
    left = (("n000",), ("n000",), ("n001", "n002"))
    wanted = (("n001",), ("n001",), ("n000", "n002"))
    assert stages_of(left)["n000"] == (0, 1) and missing(left, wanted) == 2
    assert fewest(swarm, left, wanted) == 0, "two that are alike change places"
    assert fewest(swarm, left, (("n002",), ("n002",), ("n000", "n001"))) == 2, "the slow one does not"
