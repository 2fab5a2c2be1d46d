"""One policy through the changes of one seed, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ftnode.lab.planner.policies import Policy
from ftnode.lab.planner.setting import HOUR, Change, Setting


@dataclass(frozen=True, slots=True)
class Outcome:
    """`microbatches`: trained on, less what was lost; `paused`, `lost`: seconds; `stops`: how many changes stopped the
    training; `points`: (seconds, machines, microbatches a second) after each change."""

    microbatches: float
    paused: float
    lost: float
    stops: int
    points: tuple[tuple[float, int, float], ...]


def simulated(setting: Setting, policy: Policy, events: Sequence[Change]) -> Outcome:
    """A failure costs half of a step besides, which is done again."""
    there = {*setting.names}
    arrangement = policy.begin(setting, setting.names)
    end = setting.hours * HOUR
    now = ready = steps = paused = lost = 0.0
    stops = 0
    points = [(0.0, len(there), setting.microbatches / arrangement.seconds if arrangement else 0.0)]
    for number, change in enumerate(events):
        if arrangement is not None:
            steps += max(0.0, change.at - max(now, ready)) / arrangement.seconds
            if not change.back:
                steps -= 0.5
        now = change.at
        (there.update if change.back else there.difference_update)(change.names)
        following = events[number + 1].at if number + 1 < len(events) else end
        found = policy.answer(setting, arrangement, change, sorted(there), following - now)
        arrangement = found.arrangement
        ready = max(ready, now) + found.pause
        paused, lost, stops = paused + found.pause, lost + found.lost, stops + (found.pause > 0)
        if arrangement is not None:
            steps -= found.lost / arrangement.seconds
        points.append((now, len(there), setting.microbatches / arrangement.seconds if arrangement else 0.0))
    if arrangement is not None:
        steps += max(0.0, end - max(now, ready)) / arrangement.seconds
    return Outcome(max(0.0, steps) * setting.microbatches, paused, lost, stops, tuple(points))
