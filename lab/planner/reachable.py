"""Which of the goals over Oobleck and ReCycle anybody could reach, for what Odyssey's paper leaves open.

A policy does the most that it could where all machines that are there are always busy: `perfect`. In synchronous steps
nobody is. So there is a second bound, `ranges`, for machines that are alike and hold neighbouring layers each:

- Whoever holds layer i and later ones has nothing to do before a microbatch has gone forward through the i - 1 layers
  before, nor while the last one goes backward through them. So it is idle for (i - 1) (f + b) in each step.
- Room for R layers lets layer l be held by somebody whose first layer is l - R + 1. Nobody who holds l is idle for
  less than l - R layers.
- The work on layer l in a step is m (f + b) for m microbatches. So in a step of T seconds it takes at least
  m (f + b) / (T - max(0, l - R) (f + b)) machines, and these add up to no more than there are.

Lines, sums, stops and what failures cost are left out of both, and machines and microbatches may be cut in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from random import Random
from statistics import mean
from typing import Any, Final

from ftnode.lab.planner.own import Planner
from ftnode.lab.planner.policies import Policy, Reroute, Templates
from ftnode.lab.planner.published import Equation13, FixedTemplates
from ftnode.lab.planner.setting import HOUR, Change, Setting, changes
from ftnode.lab.planner.simulation import simulated
from ftnode.node.watch.status_table import Table

Seeds = Sequence[Mapping[str, float]]
"""Microbatches, of bounds and policies by name, for each seed."""
GOALS: Final = {"oobleck": 1.25, "recycle": 1.40}
MAIN: Final = Setting()
NEVER: Final = 0.0
"""Of `away_hours`."""
SLOW: Final = 11.2
"""Seconds of a recovery in Odyssey's figure 10 without what it improves, and..."""
FAST: Final = 8.2
"""...with it."""
LINES: Final[dict[str, Setting]] = {
    "the main setting": MAIN,
    "back after 6 minutes": replace(MAIN, away_hours=0.1),
    "back after 4 hours": replace(MAIN, away_hours=4.0),
    "nobody comes back": replace(MAIN, away_hours=NEVER),
    "room for 8 layers": replace(MAIN, room=8),
    "room for 16 layers": replace(MAIN, room=16),
    "room for all layers": replace(MAIN, room=32),
    "8 stages x 4": replace(MAIN, pipeline=8),
    "2 stages x 16, room for 16": replace(MAIN, pipeline=2, room=16),
    "16 microbatches": replace(MAIN, microbatches=16),
    "32 microbatches": replace(MAIN, microbatches=32),
    "a restart of 11.2 s": replace(MAIN, restart_seconds=SLOW),
    "a restart of 60 s": replace(MAIN, restart_seconds=60.0),
}
"""One assumption changed each time."""
AWAY: Final = (0.1, 1.0, 4.0, NEVER)
ROOM: Final = (8, 12, 16, 32)
STAGES: Final = (2, 4, 8)
MICROBATCHES: Final = (16, 32, 64)
RESTART: Final = (1.9, 60.0)
GRID_SEEDS: Final = 2
"""At most."""
RIVALS: Final[dict[str, Callable[[], Policy]]] = {
    "oobleck": Templates, "oobleck_published": FixedTemplates, "recycle": Reroute, "recycle_published": Equation13,
    "recycle_stands_by": lambda: Equation13(rejoins=False),
}  # fmt: skip
NAMES: Final = {
    "oobleck": "Oobleck, at its best", "oobleck_published": "Oobleck, fixed templates",
    "oobleck_slow": "Oobleck, fixed templates, 11.2 s against 8.2 s", "recycle": "ReCycle, at its best",
    "recycle_published": "ReCycle, equation 13", "recycle_stands_by": "ReCycle, equation 13, nobody rejoins",
}  # fmt: skip

BOUNDS: Final = {"ranges": "idle time in ranges", "perfect": "the sum of speeds"}
AGAINST: Final = {("planner", "oobleck_slow"): "planner_fast"}
"""What is compared with a rival in another's place."""


def perfect_rate(setting: Setting, machines: int) -> float:
    """Microbatches a second when all are busy always."""
    return machines / (setting.layers * (setting.forward_seconds + setting.backward_seconds))


def ranges_rate(setting: Setting, machines: int) -> float:
    """Microbatches a second that machines that are alike and hold neighbouring layers never exceed."""
    layer, count = setting.forward_seconds + setting.backward_seconds, setting.microbatches
    if machines * setting.room < setting.layers:
        return 0.0
    idle = [max(0, number - setting.room) * layer for number in range(1, setting.layers + 1)]
    too_short = max(idle)
    enough = too_short + setting.layers * count * layer / machines
    while enough - too_short > 1e-9 * enough:
        tried = (too_short + enough) / 2
        if sum(count * layer / (tried - one) for one in idle) > machines:
            too_short = tried
        else:
            enough = tried
    return count / max(enough, setting.layers * layer)


def most(setting: Setting, events: Sequence[Change], rate: Callable[[Setting, int], float]) -> float:
    """Microbatches, with all who are there at that rate and without any stop."""
    there, now, done = {*setting.names}, 0.0, 0.0
    for change in events:
        done += (change.at - now) * rate(setting, len(there))
        now = change.at
        (there.update if change.back else there.difference_update)(change.names)
    return done + (setting.hours * HOUR - now) * rate(setting, len(there))


def bounds(setting: Setting, seed: int) -> dict[str, float]:
    """Microbatches: the most that anybody could do, and what the rivals do; 0 of one that cannot train."""
    events = changes(setting, Random(seed))
    found = {"perfect": most(setting, events, perfect_rate), "ranges": most(setting, events, ranges_rate)}
    return found | {name: _work(_own(name, setting), name, seed) for name in RIVALS}


def _own(name: str, setting: Setting) -> Setting:
    """Without what the rival does not look at."""
    return replace(setting, pipeline=MAIN.pipeline) if name.startswith("oobleck") else setting


@lru_cache(maxsize=1024)
def _work(setting: Setting, rival: str, seed: int) -> float:
    return simulated(setting, RIVALS[rival](), changes(setting, Random(seed))).microbatches


def of_line(setting: Setting, seed: int) -> dict[str, float]:
    """With the planner; and with what Odyssey's figure 10 says of recoveries: that restarts take Oobleck SLOW seconds
    and the planner FAST ones, with the copying besides."""
    events = changes(setting, Random(seed))
    found = bounds(setting, seed)
    found["planner"] = simulated(setting, Planner(), events).microbatches
    if setting == replace(MAIN, away_hours=setting.away_hours):
        found["planner_fast"] = simulated(replace(setting, restart_seconds=FAST), Planner(), events).microbatches
        slow = replace(setting, restart_seconds=SLOW)
        found["oobleck_slow"] = simulated(slow, FixedTemplates(), events).microbatches
    return found


def cells(base: Setting = MAIN) -> Iterator[Setting]:
    """All that is left open, crossed. Stages that machines have no room for are left out."""
    for away, room, stages, count, restart in product(AWAY, ROOM, STAGES, MICROBATCHES, RESTART):
        if base.layers <= stages * room:
            yield replace(
                base, away_hours=away, room=room, pipeline=stages, microbatches=count, restart_seconds=restart
            )


def figures(lines: Mapping[str, Seeds], grid: Sequence[Seeds]) -> dict[str, Any]:
    """`lines`: by name, what `of_line` gives for each seed; `grid`: what `bounds` gives for each seed of each cell."""
    rows = [
        {
            "name": name, "planner_over": over(seeds, "planner"),
            "most_over": {bound: over(seeds, bound) for bound in BOUNDS},
        }
        for name, seeds in lines.items()
    ]  # fmt: skip
    cells = {bound: [over(seeds, bound) for seeds in grid] for bound in BOUNDS}
    return {
        "goals": GOALS, "lines": rows,
        "grid": {
            "cells": len(grid),
            "reachable": {
                bound: {rival: found for rival in RIVALS if (found := _counts(ratios, rival))}
                for bound, ratios in cells.items()
            },
        },
    }  # fmt: skip


def over(seeds: Seeds, what: str) -> dict[str, float]:
    """Means of all seeds, over each rival that does anything."""
    ours = {name: AGAINST.get((what, name), what) for name in NAMES}
    return {
        name: mean(one[top] for one in seeds) / work
        for name, top in ours.items() if all(name in one and top in one for one in seeds)
        if (work := mean(one[name] for one in seeds))
    }  # fmt: skip


def _counts(ratios: Sequence[Mapping[str, float]], rival: str) -> dict[str, float]:
    """`of`: cells in which the rival trains; `least`, `most`: of the bound over it. Empty when it trains in none."""
    seen, goal = [one[rival] for one in ratios if rival in one], GOALS[rival.split("_")[0]]
    if not seen:
        return {}
    return {"of": len(seen), "reach": sum(one >= goal for one in seen), "least": min(seen), "most": max(seen)}


def text(found: Mapping[str, Any]) -> list[str]:
    """A table of what the planner reaches, and of what nobody exceeds, and how many cells allow the goals."""
    rows = [
        (
            one["name"], NAMES[rival], f"{ratio:.3f}",
            *(f"{one['most_over'][bound][rival]:.3f}" if rival in one["most_over"][bound] else "" for bound in BOUNDS),
            "yes" if ratio >= GOALS[rival.split("_")[0]] else "no",
        )
        for one in found["lines"] for rival, ratio in one["planner_over"].items()
    ]  # fmt: skip
    columns = ("setting", "rival", "planner over it", "at most, in ranges", "at most, perfect", "goal reached")
    lines = ["what anybody could reach:", *Table(columns, tuple(rows)).lines()]
    for bound, each in found["grid"]["reachable"].items():
        for rival, one in each.items():
            lines.append(
                f"{NAMES[rival]}: by {BOUNDS[bound]} the goal is open in {one['reach']} of {one['of']} cells "
                f"({one['least']:.3f} to {one['most']:.3f})"
            )
    return lines
