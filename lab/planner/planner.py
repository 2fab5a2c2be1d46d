"""`ftnode lab planner`: every policy through the same failures, a table, and planner.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any, Final

import click

from ftnode.lab.planner.policies import POLICIES
from ftnode.lab.planner.setting import HOUR, Setting, changes
from ftnode.lab.planner.simulation import Outcome, simulated
from ftnode.lab.results.result_files import folder_for, write_atomically
from ftnode.node.watch.status_table import Table

NAMES: Final = {
    "recycle": "reroute only (ReCycle)", "oobleck": "templates (Oobleck)", "bamboo": "redundancy (Bamboo)",
    "ladder": "CheckFree, fixed ladder", "planner": "this project's planner", "oracle": "an oracle",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Asked:
    """`away_hours`: of a machine that has failed, on average; 0: it does not come back."""

    seeds: int
    hours: float
    failures: float
    away_hours: float
    out: Path | None
    as_json: bool


def run(asked: Asked) -> int:
    """Exit code 0. Raises UserError (73) when the folder cannot be used."""
    folder = None if asked.out is None else folder_for(asked.out, "--out")
    setting = Setting(hours=asked.hours, failures_an_hour=asked.failures, away_hours=asked.away_hours)
    outcomes = [_of_seed(setting, seed) for seed in range(asked.seeds)]
    found = figures(setting, outcomes)
    if folder is not None:
        write_atomically(folder / "planner.json", json.dumps(found, indent=2) + "\n")
    if asked.as_json:
        click.echo(json.dumps(found, indent=2))
        return 0
    for line in text(setting, asked.seeds, found):
        click.echo(line)
    return 0


def _of_seed(setting: Setting, seed: int) -> dict[str, Outcome]:
    events = changes(setting, Random(seed))
    return {name: simulated(setting, policy(), events) for name, policy in POLICIES.items()}


def figures(setting: Setting, outcomes: Sequence[Mapping[str, Outcome]]) -> dict[str, Any]:
    """`odyssey`: how many times as much work the planner does as each rival, on the mean of all seeds; None of a rival
    that does none."""
    work = {name: mean(one[name].microbatches for one in outcomes) for name in POLICIES}
    over = {name: _ratio(work["planner"], work[name]) for name in POLICIES}
    return {
        "odyssey": {
            "over_oobleck": over["oobleck"], "over_recycle": over["recycle"], "over_bamboo": over["bamboo"],
            "over_ladder": over["ladder"], "of_oracle": over["oracle"],
        },
        "assumed": {
            "machines": setting.machines, "hours": setting.hours, "failures_an_hour": setting.failures_an_hour,
            "away_hours": setting.away_hours, "restart_seconds": setting.restart_seconds, "seeds": len(outcomes),
        },
        "policies": {
            name: {
                "microbatches_a_second": work[name] / (setting.hours * HOUR),
                "paused_seconds": mean(one[name].paused for one in outcomes),
                "lost_seconds": mean(one[name].lost for one in outcomes),
                "stops": mean(one[name].stops for one in outcomes),
                "planner_over_it": [_ratio(one["planner"].microbatches, one[name].microbatches) for one in outcomes],
            }
            for name in POLICIES
        },
    }  # fmt: skip


def _ratio(work: float, rival: float) -> float | None:
    return work / rival if rival else None


def text(setting: Setting, seeds: int, found: Mapping[str, Any]) -> list[str]:
    rows = []
    for name, one in found["policies"].items():
        ratios = [ratio for ratio in one["planner_over_it"] if ratio is not None]
        rate, stops = f"{one['microbatches_a_second']:.2f}", f"{one['stops']:.0f}"
        paused, lost = (f"{one[key]:.0f} s" for key in ("paused_seconds", "lost_seconds"))
        over, spread = "-", "-"
        if ratios:
            over, spread = f"{mean(ratios):.3f}", f"{min(ratios):.3f} to {max(ratios):.3f}"
        rows.append((NAMES[name], rate, stops, paused, lost, over, spread))
    back = f"back after {setting.away_hours:g} h on average" if setting.away_hours else "none comes back"
    columns = ("policy", "microbatches/s", "stops", "stopped", "lost", "planner over it", "by seed")
    return [
        f"{setting.machines} machines that fail at {setting.failures_an_hour:.0%} an hour, {back}; "
        f"{setting.hours:g} h, mean of {seeds} seeds:",
        *Table(columns, tuple(rows)).lines(),
    ]
