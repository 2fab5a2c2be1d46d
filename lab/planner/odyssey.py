"""Odyssey's simulation: every policy through the same failures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import mean
from typing import Any, Final

from ftnode.lab.planner.moving import moved
from ftnode.lab.planner.own import Planner
from ftnode.lab.planner.policies import Policy
from ftnode.lab.planner.setting import HOUR, Setting, changes
from ftnode.lab.planner.settings import RIVALS, best_pipeline
from ftnode.lab.planner.simulation import simulated
from ftnode.node.watch.status_table import Table

POLICIES: Final[dict[str, Callable[[], Policy]]] = RIVALS | {
    "planner": Planner, "oracle": lambda: Planner(knows=True),
}  # fmt: skip
NAMES: Final = {
    "recycle": "reroute only (ReCycle)", "oobleck": "templates (Oobleck)", "bamboo": "redundancy (Bamboo)",
    "ladder": "CheckFree, fixed ladder", "planner": "this project's planner", "oracle": "an oracle",
}  # fmt: skip


def of_seed(setting: Setting, seed: int) -> dict[str, Any]:
    """`policies`: by name; `moved`, `plan_seconds`: of the planner; `machines`: (seconds, how many) after each
    change."""
    events = changes(setting, Random(seed))
    found: dict[str, Any] = {"policies": {}}
    for name, make in POLICIES.items():
        policy = make()
        # Bamboo has room for its redundancy only in other stages than the paper's setting has.
        its = best_pipeline(setting, policy) if name == "bamboo" else setting
        outcome = simulated(its, policy, events)
        found["policies"][name] = {
            "microbatches": outcome.microbatches, "paused": outcome.paused, "lost": outcome.lost,
            "stops": outcome.stops, "rates": [rate for _, _, rate in outcome.points],
        }  # fmt: skip
        if name == "planner" and isinstance(policy, Planner):
            found["moved"] = moved(setting, policy.notes, outcome)
            found["plan_seconds"] = policy.notes.seconds
            found["machines"] = [[at, there] for at, there, _ in outcome.points]
    return found


def figures(setting: Setting, seeds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`odyssey`: how many times as much work the planner does as each rival, on the mean of all seeds; None of a rival
    that does none."""
    outcomes = [one["policies"] for one in seeds]
    work = {name: mean(one[name]["microbatches"] for one in outcomes) for name in POLICIES}
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
                "paused_seconds": mean(one[name]["paused"] for one in outcomes),
                "lost_seconds": mean(one[name]["lost"] for one in outcomes),
                "stops": mean(one[name]["stops"] for one in outcomes),
                "planner_over_it": [
                    _ratio(one["planner"]["microbatches"], one[name]["microbatches"]) for one in outcomes
                ],
            }
            for name in POLICIES
        },
        "course": {
            "machines": seeds[0]["machines"],
            "rates": {name: outcomes[0][name]["rates"] for name in ("recycle", "oobleck", "planner")},
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
