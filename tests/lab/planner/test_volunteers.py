"""Draws of volunteers, and equal stages by today's rules."""

from __future__ import annotations

from random import Random

import pytest

from ftnode.lab.planner.volunteers import (
    DEVICES,
    LAYERS,
    Rebalanced,
    Volunteer,
    asked_again,
    best_equal,
    drawn,
    equal_stages,
    figures,
    of_draw,
    swarm,
)
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.planning.search import best_layout

FAST = next(device for device in DEVICES if device.name == "RTX 4090")
SLOW = next(device for device in DEVICES if device.name == "RTX 3060 Laptop")
LINE = Line(25e6, 75e6, 0.03)


def test_lines_and_devices_are_drawn_as_the_page_says() -> None:
    found = drawn(2000, Random(0))
    mbits = sorted(one.line.up * 8e-6 for one in found)
    assert 10 <= mbits[0] < 10.2 and 196 < mbits[-1] <= 200
    assert mbits[1000] == pytest.approx((10 * 200) ** 0.5, rel=0.1), "as many from 10 to 45 as from 45 to 200"
    assert {one.device for one in found} == {*DEVICES}
    assert drawn(3, Random(1)) == drawn(3, Random(1)) != drawn(3, Random(2))


def test_a_laptop_has_room_for_few_layers_and_is_slow() -> None:
    assert SLOW.layers == 5 and FAST.layers >= LAYERS
    assert SLOW.layer_seconds / FAST.layer_seconds == pytest.approx(165.2 / 25.8)


def test_the_slowest_sole_holder_sets_the_pace() -> None:
    six = [Volunteer(FAST, LINE)] * 7
    slow = [*six[:3], Volunteer(SLOW, LINE), *six[:3]]
    fast = equal_stages(six, 6, 1)
    assert fast is not None
    assert (equal_stages(slow, 6, 1) or 0) > 2 * fast
    assert equal_stages(six[:6], 6, 1) is None, "the head and six stages need seven"
    assert equal_stages([Volunteer(SLOW, LINE)] * 7, 3, 1) is None, "no room for eight layers"


def test_stages_that_suit_are_chosen_for_the_rival() -> None:
    found = best_equal([Volunteer(SLOW, LINE)] * 7)
    assert found is not None and found[1] == 6


def test_the_layout_found_is_no_slower_than_equal_stages_of_these() -> None:
    one = of_draw(8, 0)
    assert one["tokens_a_second"] > one["equal"] > 0
    found = best_layout(swarm(drawn(8, Random(0))))
    assert found is not None and len(found.holders) == LAYERS + 1


def test_asking_again_is_never_worse() -> None:
    asked = swarm(drawn(12, Random(6)))
    once, again = best_layout(asked), asked_again(asked)
    assert once is not None and again is not None and again.seconds <= once.seconds


def test_figures_are_means_of_ratios() -> None:
    draws = [{"tokens_a_second": a, "asked_once": a, "equal": 1.0, "fastest_first": 2.0} for a in (1.0, 3.0)]
    growths = [{"tokens_a_second": 3.0, "without_goals": 2.0}] * (len(draws) + 1)
    found = figures([*draws, {"tokens_a_second": None}], growths, {"x": [{"planner": 4.0, "swarm": 1.0}]}, {}, 1.0)
    assert (found["over_equal_stages"], found["worst_draw"], found["over_fastest_first"]) == (2.0, 1.0, 1.0)
    assert found["churn"]["x"]["less_time_than_swarm"] == 0.75


def test_a_lost_stage_is_read_from_a_checkpoint_by_swarms_rules() -> None:
    from ftnode.lab.planner.arrangements import grouped
    from ftnode.lab.planner.setting import Change, Setting

    setting = Setting(machines=4, layers=4, pipeline=2, microbatches=4)
    before = grouped(setting, "", {"n000": 0, "n001": 1, "n002": 0, "n003": 0}, 2)
    found = Rebalanced().answer(setting, before, Change(1.0, ("n001",), False), ("n000", "n002", "n003"), 9.0)
    assert found.lost == setting.checkpoint_seconds / 2
