"""Rivals as they are published, and what nobody exceeds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ftnode.lab.planner import planner as lab
from ftnode.lab.planner import reachable
from ftnode.lab.planner.own import Planner
from ftnode.lab.planner.planner import Asked
from ftnode.lab.planner.policies import Policy, Redundancy, Reroute, Templates
from ftnode.lab.planner.published import Equation13, FixedTemplates
from ftnode.lab.planner.reachable import bounds, cells, figures, most, perfect_rate, ranges_rate, text
from ftnode.lab.planner.setting import HOUR, Change, Setting, changes
from ftnode.lab.planner.simulation import simulated

SMALL = Setting(machines=8, hours=3.0, layers=8, pipeline=2, microbatches=8, room=4)
LAYER = SMALL.forward_seconds + SMALL.backward_seconds


def gone(*names: str) -> Change:
    return Change(10.0, names, False)


def back(*names: str) -> Change:
    return Change(20.0, names, True)


def lengths(policy: FixedTemplates) -> list[int]:
    return sorted(len(team) for team in policy.teams)


class Oobleck:
    """One swarm of `SMALL`, whose pipelines need two machines."""

    def __init__(self, setting: Setting) -> None:
        self.setting, self.policy = setting, FixedTemplates()
        self.there = {*setting.names}
        self.now = self.policy.begin(setting, setting.names)
        assert self.now is not None

    def change(self, change: Change) -> float:
        """The pause."""
        (self.there.update if change.back else self.there.difference_update)(change.names)
        answer = self.policy.answer(self.setting, self.now, change, sorted(self.there), 1e9)
        self.now = answer.arrangement
        return answer.pause


def test_oobleck_takes_the_next_smaller_template_and_leaves_others_alone() -> None:
    swarm = Oobleck(replace(SMALL, machines=7))
    before = [[*team] for team in swarm.policy.teams]
    assert lengths(swarm.policy) == [2, 2, 3]
    (largest,) = [team for team in before if len(team) == 3]
    assert swarm.change(gone(largest[0])) > SMALL.restart_seconds
    assert [team for team in before if team is not largest] == [
        team for team in swarm.policy.teams if largest[1] not in team
    ]
    assert lengths(swarm.policy) == [2, 2, 2]


def test_oobleck_borrows_from_the_largest_and_merges_where_nobody_lends() -> None:
    swarm = Oobleck(replace(SMALL, machines=7))
    small, large = swarm.policy.teams[-1], max(swarm.policy.teams, key=len)
    assert len(small) == 2 and len(large) == 3
    swarm.change(gone(small[0]))
    assert lengths(swarm.policy) == [2, 2, 2], "borrowed"
    swarm.change(gone(swarm.policy.teams[0][0]))
    assert lengths(swarm.policy) == [2, 3], "merged"


def test_oobleck_takes_in_those_who_are_a_pipeline() -> None:
    swarm = Oobleck(SMALL)
    assert lengths(swarm.policy) == [2, 2, 2, 2]
    lost = swarm.policy.teams[0]
    swarm.change(gone(*lost))
    assert lengths(swarm.policy) == [2, 2, 2]
    rate = swarm.now
    assert swarm.change(back(lost[0])) == 0.0 and swarm.now == rate, "it waits"
    assert swarm.change(back(lost[1])) > 0.0
    assert lengths(swarm.policy) == [2, 2, 2, 2]


def test_oobleck_needs_a_checkpoint_when_a_layer_is_gone() -> None:
    swarm = Oobleck(replace(SMALL, machines=4))
    seconds = [team[0] for team in swarm.policy.teams]
    answer = swarm.policy.answer(swarm.setting, swarm.now, gone(*seconds), sorted(swarm.there - {*seconds}), 1e9)
    assert answer.lost == SMALL.checkpoint_seconds / 2 and answer.arrangement is not None


def test_equation_13_adds_up_what_stages_lack() -> None:
    policy = Equation13()
    start = policy.begin(SMALL, SMALL.names)
    assert start is not None
    stage, each, width = 4 * LAYER, 8 / 4, 4
    assert start.seconds == pytest.approx((2 + each - 1) * stage), "equation 9"
    there = [name for name in SMALL.names if name not in ("n000", "n001")]  # one of either stage
    answer = policy.answer(SMALL, start, gone("n000", "n001"), there, 1e9)
    assert answer.arrangement is not None and answer.pause == answer.lost == 0.0
    assert answer.arrangement.seconds == pytest.approx((2 + each - 1 + 2 * each * 1 / (width - 1)) * stage)
    again = policy.answer(SMALL, answer.arrangement, back("n000", "n001"), SMALL.names, 1e9)
    assert again.arrangement is not None and again.arrangement.seconds == pytest.approx(start.seconds)


def test_who_does_not_rejoin_stands_by_until_all_begin_anew() -> None:
    policy = Equation13(rejoins=False)
    start = policy.begin(SMALL, SMALL.names)
    there = [name for name in SMALL.names if name != "n000"]
    less = policy.answer(SMALL, start, gone("n000"), there, 1e9).arrangement
    same = policy.answer(SMALL, less, back("n000"), SMALL.names, 1e9).arrangement
    assert start is not None and less is not None and same is not None and same.seconds == less.seconds > start.seconds
    second = [name for name in SMALL.names if int(name[1:]) % 2]
    answer = policy.answer(SMALL, same, gone(*second), ["n000", "n002", "n004", "n006"], 1e9)
    assert answer.lost == SMALL.checkpoint_seconds / 2
    assert answer.arrangement is not None and "n000" in {name for group in answer.arrangement.holders for name in group}


POLICIES: list[type[Policy]] = [Templates, FixedTemplates, Reroute, Redundancy, Planner]


def settings() -> Iterator[Setting]:
    for room in (3, 4, 8):
        for count in (4, 8, 24):
            yield replace(SMALL, room=room, microbatches=count, pipeline=-(-SMALL.layers // room), failures_an_hour=0.3)


@pytest.mark.parametrize("setting", [*settings()], ids=lambda one: f"{one.room}-{one.microbatches}")
def test_nobody_does_more_than_the_bounds(setting: Setting) -> None:
    events = changes(setting, Random(1))
    ranges, perfect = (most(setting, events, rate) for rate in (ranges_rate, perfect_rate))
    assert ranges <= perfect
    for policy in POLICIES:
        assert simulated(setting, policy(), events).microbatches <= ranges * (1 + 1e-9), policy


def test_bounds_are_exact_where_nobody_is_idle() -> None:
    alone = replace(SMALL, machines=1, room=8, microbatches=5)
    assert ranges_rate(alone, 1) == pytest.approx(perfect_rate(alone, 1)) == pytest.approx(1 / (8 * LAYER))
    assert ranges_rate(replace(SMALL, machines=2, room=3), 2) == 0.0, "the model has no room"
    many = replace(SMALL, machines=64, microbatches=1)
    assert 1 / ranges_rate(many, 64) >= 8 * LAYER, "a microbatch goes through all layers, one after the other"


def test_work_is_the_sum_over_the_machines_that_are_there() -> None:
    setting = replace(SMALL, hours=1.0)
    events = [Change(600.0, ("n000", "n001"), False), Change(1800.0, ("n000",), True)]
    hours = 8 * 600 + 6 * 1200 + 7 * 1800
    assert most(setting, events, perfect_rate) == pytest.approx(hours * perfect_rate(setting, 1))
    assert most(setting, [], perfect_rate) == pytest.approx(8 * HOUR * perfect_rate(setting, 1))


def test_figures_compare_means_and_leave_out_who_does_nothing() -> None:
    seeds = [{"perfect": 30.0, "ranges": 20.0, "planner": 15.0, "oobleck": 12.0, "recycle": 0.0}]
    found = figures({"x": seeds}, [seeds, [{**seeds[0], "oobleck": 20.0}]])
    (line,) = found["lines"]
    assert line["planner_over"] == {"oobleck": 1.25}
    assert line["most_over"]["perfect"] == {"oobleck": 2.5}
    assert found["grid"]["reachable"]["ranges"]["oobleck"] == {"of": 2, "reach": 1, "least": 1.0, "most": 20 / 12}
    row = ["x", "Oobleck,", "at", "its", "best", "1.250", "1.667", "2.500", "yes"]
    assert any(line.split() == row for line in text(found))


def test_what_is_compared_with_a_slow_oobleck_is_the_planner_that_restarts_fast() -> None:
    seeds = [{"perfect": 1.0, "ranges": 1.0, "planner": 4.0, "planner_fast": 3.0, "oobleck_slow": 2.0}]
    assert reachable.over(seeds, "planner")["oobleck_slow"] == 1.5


def test_no_cell_is_too_small_for_its_model() -> None:
    every = [*cells()]
    assert len(every) == len({*every}) == 240
    assert all(one.pipeline * one.room >= one.layers for one in every)


def test_it_is_a_part_of_the_command_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def of_line(setting: Setting, seed: int) -> dict[str, float]:
        made.append(seed)
        return {"perfect": 3.0, "ranges": 2.0, "planner": 1.5, "oobleck": 1.2, "recycle": 1.0}

    monkeypatch.setattr(reachable, "of_line", of_line)
    monkeypatch.setattr(reachable, "bounds", lambda setting, seed: of_line(setting, 9))
    monkeypatch.setattr(reachable, "cells", lambda: [SMALL])
    monkeypatch.setattr(reachable, "LINES", {"small": SMALL})
    for _ in range(2):
        assert lab.run(Asked(2, 1.0, 0.1, 1.0, ("open",), tmp_path, True)) == 0
    assert made == [0, 1, 9, 9]
    found = json.loads((tmp_path / "planner.json").read_text())
    assert found["second_attempt"]["lines"][0]["planner_over"] == {"oobleck": 1.25, "recycle": 1.5}
    assert (tmp_path / "planner-open.png").stat().st_size > 5_000


def test_the_bounds_of_a_course_have_every_rival() -> None:
    found = bounds(replace(SMALL, hours=1.0), 0)
    assert {*found} == {"perfect", "ranges", *reachable.RIVALS} and all(found.values())
