"""Ten locations: the fit of one delay for each to the pairs, and that churn at them is not churn at one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ftnode.lab.planner import planner as lab
from ftnode.lab.planner import volunteers
from ftnode.lab.planner.arrangements import swarm_of
from ftnode.lab.planner.locations import (
    LOCATIONS,
    WITHIN_SECONDS,
    errors,
    figures,
    line_delays,
    pairs,
    to_the_middle,
)
from ftnode.lab.planner.own import Planner
from ftnode.lab.planner.planner import Asked
from ftnode.lab.planner.setting import Setting
from ftnode.lab.planner.volunteers import Rebalanced, churning, drawn, of_churn, spread
from ftnode.protocol.planning import schedule
from ftnode.protocol.planning.swarm import Holders

ONE_PLACE = (WITHIN_SECONDS,)


def seconds(setting: Setting, holders: Holders) -> float:
    swarm = swarm_of(setting, setting.names)
    return schedule.step_timing(swarm.layout(holders), swarm.batch).seconds


def begun(setting: Setting) -> list[Holders]:
    """What SWARM begins with, of several stages, and the planner, where it has groups only as well."""
    rivals = (Rebalanced().begin(replace(setting, pipeline=stages), setting.names) for stages in (3, 4, 6))
    found = [*rivals, Planner().begin(setting, setting.names) if setting.sum_bytes else None]
    return [one.holders for one in found if one is not None]


def test_each_pair_of_ten_has_a_delay() -> None:
    table = pairs()
    assert len(LOCATIONS) == 10 and sorted(table) == [*combinations(range(10), 2)]
    sydney, london = LOCATIONS.index("Sydney"), LOCATIONS.index("London")
    assert table[sydney, london] == 0.262, "the columns of a row begin after its own location"
    assert table[8, 9] == 0.024 and max(table.values()) == 0.265 and min(table.values()) == 0.011


def test_delays_that_are_sums_are_found() -> None:
    own = [0.01, 0.02, 0.05, 0.03]
    table = {(one, other): own[one] + own[other] for one, other in combinations(range(4), 2)}
    assert to_the_middle(table, 4) == pytest.approx(own)
    assert errors(table, own) == pytest.approx([0.0] * 6)


def test_no_other_delays_to_the_middle_fit_better() -> None:
    table = pairs()
    middle = to_the_middle(table, len(LOCATIONS))
    least = sum(one**2 for one in errors(table, middle))
    for number in range(len(LOCATIONS)):
        for moved in (-0.001, 0.001):
            other = [one + moved * (place == number) for place, one in enumerate(middle)]
            assert sum(one**2 for one in errors(table, other)) > least
    assert min(middle) > 0, "a line can have them"


def test_the_fit_is_as_bad_as_the_page_says() -> None:
    found: Any = figures()
    assert len(found["pairs_ms"]) == 45 and found["pairs_ms"]["Oregon - London"] == 136
    assert [round(one) for one in found["fit"].values()] == [137, 64, 123]


def test_two_volunteers_live_at_each_location() -> None:
    found = spread(drawn(20, Random(0)), line_delays())
    delays = [one.line.delay_seconds for one in found]
    assert delays == [*line_delays()] * 2 and len({*delays}) == 10
    assert [(one.device, one.line.up) for one in found] == [(one.device, one.line.up) for one in drawn(20, Random(0))]
    assert {one.line.delay_seconds for one in spread(drawn(20, Random(0)), ())} == {0.03}


@pytest.mark.parametrize("sums", [True, False])
def test_a_step_takes_longer_at_ten_locations_than_at_one(sums: bool) -> None:
    far, near = churning(0, 1.0, sums, line_delays()), churning(0, 1.0, sums, ONE_PLACE)
    layouts = begun(far)
    assert len(layouts) == 3 + sums
    assert all(seconds(far, holders) > seconds(near, holders) for holders in layouts)


def test_less_is_done_in_churn_at_ten_locations_than_at_one() -> None:
    far, near = (of_churn(0, 0.3, True, delays) for delays in (line_delays(), ONE_PLACE))
    assert far.keys() == near.keys() and all(far[name] < near[name] for name in far)


@pytest.mark.parametrize(("sums", "shorter", "longer", "saved"), [(True, 0.02, 0.04, 0.04), (False, 0.04, 0.09, 0.15)])
def test_the_fit_changes_a_step_by_less_than_a_tenth(
    sums: bool, shorter: float, longer: float, saved: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against the delays of the pairs themselves, which the schedule cannot be told. `saved`: if there were no delays
    but those within one location."""
    table, off, gained = pairs(), list[float](), list[float]()

    def of_pair(one: schedule._Peer, other: schedule._Peer) -> float:
        here, there = sorted(int(peer.name[1:]) % len(LOCATIONS) for peer in (one, other))
        return 0.0 if one is other else table.get((here, there), WITHIN_SECONDS)

    for seed in range(4):
        setting, near = (churning(seed, 1.0, sums, delays) for delays in (line_delays(), ONE_PLACE))
        for holders in begun(setting):
            fitted = seconds(setting, holders)
            gained.append(1 - seconds(near, holders) / fitted)
            with monkeypatch.context() as patched:
                patched.setattr(schedule, "_delay", of_pair)
                off.append(seconds(setting, holders) / fitted - 1)
    assert len(off) == (16 if sums else 12) and -shorter < min(off) < 0 < max(off) < longer
    assert min(gained) > -0.004 and max(gained) < saved


def test_the_command_measures_churn_at_the_locations_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def churned(seed: int, hours: float, sums: bool, delays: Sequence[float] = ()) -> dict[str, float]:
        return {"planner": 100.0, "swarm": 80.0 - sum(delays)}

    draw = {"tokens_a_second": 2.0, "asked_once": 2.0, "equal": 1.0, "fastest_first": 1.0, "what": "x"}
    monkeypatch.setattr(volunteers, "of_churn", churned)
    monkeypatch.setattr(volunteers, "of_draw", lambda count, seed: draw)
    monkeypatch.setattr(volunteers, "of_growth", lambda count, seed: {"tokens_a_second": 2.0, "without_goals": 1.0})
    assert lab.run(Asked(1, 1.0, 0.1, 1.0, ("volunteers",), tmp_path, True)) == 0
    churn = json.loads((tmp_path / "planner.json").read_text())["volunteers"]["churn"]
    for what in ("sums_with_each_step", "without_sums"):
        assert churn[what]["less_time_than_swarm"] == pytest.approx(0.2)
        located = churn["locations"][what]
        assert located["less_time_than_swarm"] == pytest.approx(0.2 + sum(line_delays()) / 100)
    assert churn["locations"]["to_the_middle_ms"].keys() == {*LOCATIONS}
