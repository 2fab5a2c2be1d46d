"""Other settings than Odyssey's: rates, sizes, lines, devices and sites. In each the planner is compared with the best
policy that always does the same."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from statistics import mean
from typing import Any, Final

from ftnode.lab.planner.own import Planner
from ftnode.lab.planner.policies import Ladder, Policy, Redundancy, Reroute, Templates
from ftnode.lab.planner.setting import HOUR, Kind, Setting, changes
from ftnode.lab.planner.simulation import simulated
from ftnode.protocol.lines.step_estimate import Line

RIVALS: Final[dict[str, Callable[[], Policy]]] = {
    "recycle": Reroute, "oobleck": Templates, "bamboo": Redundancy, "ladder": Ladder,
}  # fmt: skip
SMALL: Final = Setting(machines=16, hours=8.0, layers=16, microbatches=32, room=8)
"""Half of Odyssey's machines, layers and microbatches, so that all settings together take minutes."""
FAST: Final = Line(25e9, 25e9, 1e-4)
THIN: Final = replace(SMALL, layer_bytes=400_000_000, tensor_bytes=4_200_000)
"""Layers of 100 million parameters with 4 bytes each to move, and tensors of 8 bits: what a volunteers' run would have.
"""
UNEQUAL: Final = (Kind(1.0, 8), Kind(1.3, 8), Kind(1.8, 6), Kind(3.0, 4))
SETTINGS: Final[dict[str, Setting]] = {
    "1 % an hour": replace(SMALL, failures_an_hour=0.01, hours=40.0),
    "5 % an hour": replace(SMALL, failures_an_hour=0.05, hours=16.0),
    "20 % an hour": replace(SMALL, failures_an_hour=0.2),
    "50 % an hour": replace(SMALL, failures_an_hour=0.5, hours=4.0),
    "50 % an hour, back after 6 minutes": replace(SMALL, failures_an_hour=0.5, away_hours=0.1, hours=4.0),
    "800 % an hour, back after 12 minutes": replace(SMALL, failures_an_hour=8.0, away_hours=0.2, hours=0.5),
    "nobody comes back": replace(SMALL, away_hours=0.0),
    "back after 4 hours": replace(SMALL, away_hours=4.0),
    "8 machines": replace(SMALL, machines=8, hours=16.0),
    "40 machines": replace(SMALL, machines=40, hours=3.0),
    "room for a quarter of the layers": replace(SMALL, room=4),
    "room for all layers": replace(SMALL, room=16),
    "8 microbatches": replace(SMALL, microbatches=8),
    "all ten times as fast": replace(SMALL, forward_seconds=0.0013, backward_seconds=0.0026),
    "lines of 1 Gbit/s": replace(THIN, kinds=(Kind(1.0, 8, Line(125e6, 125e6, 0.005)),)),
    "lines of 100 Mbit/s": replace(THIN, kinds=(Kind(1.0, 8, Line(12.5e6, 12.5e6, 0.02)),)),
    "one eight times as slow": replace(SMALL, kinds=(Kind(8.0, 8), *[Kind(1.0, 8)] * 15)),
    "unequal machines": replace(SMALL, kinds=UNEQUAL),
    "a quarter fails ten times as often": replace(SMALL, kinds=(Kind(1.0, 8, failures=10.0), *[Kind(1.0, 8)] * 3)),
    "four sites, each lost 5 % an hour": replace(
        SMALL, failures_an_hour=0.05, sites=4, site_failures_an_hour=0.05, hours=16.0
    ),
}
PIPELINES: Final = (1, 2, 3, 4, 6, 8, 12, 16)


def best_pipeline(setting: Setting, policy: Policy) -> Setting:
    """With so many stages as let a rival with fixed stages begin fastest."""
    found = []
    for count in PIPELINES:
        tried = replace(setting, pipeline=count)
        begun = policy.begin(tried, tried.names) if count <= setting.layers else None
        if begun is not None:
            found.append((begun.seconds, count))
    return replace(setting, pipeline=min(found)[1]) if found else setting


def of_seed(setting: Setting, seed: int) -> dict[str, float]:
    """Microbatches of each rival and of the planner."""
    events = changes(setting, Random(seed))
    work = {
        name: simulated(best_pipeline(setting, policy()), policy(), events).microbatches
        for name, policy in RIVALS.items()
    }
    return work | {"planner": simulated(setting, Planner(), events).microbatches}


def compared(name: str, setting: Setting, seeds: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """`ratio`: the planner's work over that of the rival that does most, on the mean of all seeds."""
    work = {policy: mean(one[policy] for one in seeds) for policy in seeds[0]}
    rival = max(RIVALS, key=lambda policy: work[policy])
    return {
        "name": name,
        "worst_against": rival,
        "ratio": work["planner"] / work[rival],
        "microbatches_a_second": {policy: one / (setting.hours * HOUR) for policy, one in work.items()},
        "ratios": [one["planner"] / max(one[rival], 1e-9) for one in seeds],
    }
