"""What the planner moves, against the best possible matching, and how long it thinks."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from time import process_time
from typing import Any

from ftnode.lab.planner.own import Notes
from ftnode.lab.planner.setting import HOUR, Setting
from ftnode.lab.planner.simulation import Outcome
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.schedule import Batch
from ftnode.protocol.planning.search import best_layout
from ftnode.protocol.planning.swarm import Holders, Swarm, alike, stages_of
from ftnode.protocol.planning.transition import placed


def moved(setting: Setting, notes: Notes, outcome: Outcome) -> dict[str, float]:
    """Sums of one course, in layers: `layers` moved, `least` by scipy's matching, `unmatched` if nobody changed places;
    `moves`: machines that took up something in addition to or instead of what they had; `machine_hours`."""
    layers = least = unmatched = moves = 0.0
    for swarm, left, wanted, holders in notes.transitions:
        layers += missing(left, holders)
        unmatched += missing(left, wanted)
        least += fewest(swarm, left, wanted)
        had, has = stages_of(left), stages_of(holders)
        moves += sum(1 for name in had if not {*has.get(name, ())} <= {*had[name]})
    hours = 0.0
    for (began, there, _), (ended, _, _) in zip(outcome.points, [*outcome.points[1:], (setting.hours * HOUR, 0, 0.0)]):
        hours += there * (ended - began) / HOUR
    return {"layers": layers, "least": least, "unmatched": unmatched, "moves": moves, "machine_hours": hours}


def missing(left: Holders, holders: Holders) -> int:
    """Layers that somebody gets; the head has no size here."""
    return sum(name not in before for before, group in zip(left[1:], holders[1:]) for name in group)


def fewest(swarm: Swarm, left: Holders, wanted: Holders) -> float:
    """The same with the best places for machines that are just alike, by scipy."""
    from numpy import array
    from scipy.optimize import linear_sum_assignment  # type: ignore[import-untyped]

    had = {name: {*stages} for name, stages in stages_of(left).items()}
    places, names = stages_of(wanted), sorted(swarm.machines)
    never = 1e6
    costs = array([
        [
            sum(stage not in had.get(name, ()) for stage in places.get(place, ()) if stage)
            if swarm.machines[name] == swarm.machines[place] and swarm.room[name] == swarm.room[place] else never
            for place in names
        ]
        for name in names
    ])  # fmt: skip
    rows, columns = linear_sum_assignment(costs)
    return float(costs[rows, columns].sum())


def figures(courses: Sequence[dict[str, float]], seconds: Sequence[float]) -> dict[str, Any]:
    total = {key: sum(one[key] for one in courses) for key in courses[0]}
    return {
        "bytes_over_least": total["layers"] / total["least"] if total["least"] else 1.0,
        "bytes_over_unmatched": total["layers"] / total["unmatched"] if total["unmatched"] else 1.0,
        "moves_per_peer_hour": total["moves"] / total["machine_hours"],
        "answer_seconds": {"mean": sum(seconds) / max(1, len(seconds)), "worst": max(seconds, default=0.0)},
        "plan_of_64": plan_seconds(64, 32),
    }


def plan_seconds(machines: int, stages: int, times: int = 5) -> dict[str, float]:
    """A search and its matching for unequal machines: of this many runs the least and the mean, in
    seconds of one core."""
    chance = Random(0)
    names = [f"n{number:03}" for number in range(machines)]
    volunteers = {
        name: alike((pace, 2 * pace), (0.01, 0.02), stages, Line(up, 3 * up, 0.03))
        for name in names
        for pace, up in [(0.02 * 6 ** chance.random(), 1.25e6 * 20 ** chance.random())]
    }
    room = {name: chance.choice((5, 7, 12, 24)) for name in names}
    batch = Batch(32, 32, BoundaryBytes(500_000, 500_000), fused=True)
    swarm = Swarm(volunteers, room, (1, *[1] * stages), batch)
    present = best_layout(swarm)
    assert present is not None
    found = []
    for _ in range(times):
        began = process_time()
        layout = best_layout(swarm, present.holders)
        assert layout is not None
        placed(swarm, present.holders, layout.holders, (0, *[1] * stages))
        found.append(process_time() - began)
    return {"least": min(found), "mean": sum(found) / times}
