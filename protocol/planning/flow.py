"""About how long a step takes for a layout, without running its schedule: microbatches are a liquid.

Stages with the same holders are one segment. Its holders share what flows through it so that all of them are done at
once, as far as what they do elsewhere lets them: water that finds its level. Then whoever is busy longest, with its
device, its line up or its line down, sets the pace, and what one microbatch takes on the rest of its way comes on top.
The schedule is right where this differs, and takes some twenty times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf
from typing import Final

from ftnode.protocol.planning.swarm import Swarm
from ftnode.protocol.words.settings import HEAD_KEEPERS

SWEEPS: Final = 4
"""Over all shared segments, until their levels agree."""
LEVEL: Final = 0.01
"""They agree when none moves by more than this share."""
Groups = Sequence[tuple[int, ...]]
"""Of each stage, the holders' numbers."""


@dataclass(slots=True)
class Segment:
    """Neighbouring stages with the same holders. `costs`: seconds of each for a microbatch there, `shares`: how much of
    the flow each has."""

    first: int
    last: int
    group: tuple[int, ...]
    costs: list[float]
    shares: list[float]


class Flow:
    """Of one swarm, for any layout of it. Machines have the numbers of `names`."""

    def __init__(self, swarm: Swarm) -> None:
        self.swarm, self.names = swarm, sorted(swarm.machines)
        self.stages = len(swarm.sizes)
        machines = [swarm.machines[name] for name in self.names]
        self.lines = [machine.line for machine in machines]
        self.room = [swarm.room[name] for name in self.names]
        self.paces = [[sum(machine.paces.get(s, (inf, inf))) for s in range(self.stages)] for machine in machines]
        self.work = [min((paces[stage] for paces in self.paces), default=inf) for stage in range(self.stages)]
        """Of each stage, seconds of the machine that is fastest there."""
        self._until = [[0.0, *accumulate(paces)] for paces in self.paces]
        self._bytes = [0, *accumulate(swarm.sizes)]
        self.reach = [self._reach(number) for number in range(len(self.names))]
        """Of each, by the stage at which it begins, the last one that it has room for; below that one: not even it."""
        tensors = swarm.batch.tensors
        self.line_seconds = [tensors.both / min(line.up, line.down) for line in self.lines]
        """Of each, for a microbatch that comes and goes on."""

    def fits(self, number: int, first: int, last: int) -> bool:
        return last <= self.reach[number][first]

    def _reach(self, number: int) -> list[int]:
        reach, last, paces = [], -1, self.paces[number]
        for first in range(self.stages):
            last = max(last, first - 1)
            while (
                last + 1 < self.stages
                and paces[last + 1] < inf
                and (self._bytes[last + 2] - self._bytes[first] <= self.room[number])
            ):
                last += 1
            reach.append(last)
        return reach

    def cost(self, number: int, first: int, last: int) -> float:
        """Seconds of its device for a microbatch in these stages."""
        until = self._until[number]
        if until[last + 1] == inf:
            return sum(self.paces[number][first : last + 1])
        return until[last + 1] - until[first]

    def busy(self, number: int, first: int, last: int) -> float:
        """Of whatever takes it longest for a microbatch: the device, or the line unless it holds everything."""
        line = self.line_seconds[number] if last - first + 1 < self.stages else 0.0
        return max(self.cost(number, first, last), line)

    def seconds(self, groups: Groups) -> tuple[float, list[float]]:
        """Of a step, and until each machine is done with it; 0.0 of those that hold nothing."""
        segments = self._segments(groups)
        rounded = self._shared(segments)
        microbatches = self.swarm.batch.microbatches
        crossed = [0.0] * len(self.names)
        up, down = crossed.copy(), crossed.copy()
        way = self._cross(segments, up, down)
        if any(self.swarm.batch.copies) and len(rounded) > 1:
            self._copy(groups, up)
        at: list[float] = crossed.copy()
        """Of each, what a microbatch takes on average where it may pass it."""
        computed = crossed
        for segment in segments:
            mean = sum(share * cost for share, cost in zip(segment.shares, segment.costs))
            way += mean
            for number, share, cost in zip(segment.group, segment.shares, segment.costs):
                computed[number] += share * cost
                at[number] += mean
        done = [0.0] * len(self.names)
        sums = self._sums(segments)
        for number in rounded:
            device = microbatches * computed[number] + rounded[number]
            line = microbatches * max(up[number], down[number])
            done[number] = max(device + way - at[number], line + way - line / microbatches)
        window = self.swarm.batch.window * len(groups[0])
        turns = way * microbatches / window if window < microbatches else 0.0
        known = max(self.lines[number].delay_seconds for number in rounded)
        # A stage has its last gradient near the end of the step, whoever limits that, and its sum follows.
        seconds = max(turns, *done) + max(sums.values(), default=0.0) + known
        return seconds, [one + sums.get(number, 0.0) for number, one in enumerate(done)]

    def _segments(self, groups: Groups) -> list[Segment]:
        found: list[Segment] = []
        fused = self.swarm.batch.fused
        for stage, group in enumerate(groups):
            if found and found[-1].group == group and (len(group) == 1 or (fused and stage > 1)):
                found[-1].last = stage
            else:
                found.append(Segment(stage, stage, group, [], []))
        for one in found:
            one.costs = [self.cost(number, one.first, one.last) for number in one.group]
        return found

    def _shared(self, segments: Sequence[Segment]) -> dict[int, float]:
        """Sets the shares. Returns by machine what it may be busy longer, since microbatches are whole: with one more,
        where its shares were found as of a liquid."""
        runs: dict[int, list[Segment]] = {}
        for segment in segments:
            for number in segment.group:
                runs.setdefault(number, []).append(segment)
        slower = {number: self._slower(number, mine) for number, mine in runs.items()}
        tied: list[tuple[Segment, list[float]]] = []
        load, rounded = dict.fromkeys(runs, 0.0), dict.fromkeys(runs, 0.0)
        for segment in segments:
            costs = [max(cost * slower[number], 1e-9) for number, cost in zip(segment.group, segment.costs)]
            speeds = [1 / cost for cost in costs]
            total = sum(speeds)
            segment.shares = [speed / total for speed in speeds]
            if len(costs) > 1 and segment.first:
                if all(sum(one.first > 0 for one in runs[number]) == 1 for number in segment.group):
                    self._whole(segment, costs)
                    continue
                tied.append((segment, costs))
            for number, share, cost in zip(segment.group, segment.shares, costs):
                load[number] += share * cost
        for _ in range(SWEEPS if tied else 0):
            moved = max(_level(segment, costs, load) for segment, costs in tied)
            if moved < LEVEL:
                break
        for segment, _ in tied:
            for number, cost in zip(segment.group, segment.costs):
                rounded[number] = max(rounded[number], cost)
        return rounded

    def _slower(self, number: int, mine: Sequence[Segment]) -> float:
        """How many times its line makes a machine slower than its device is."""
        device = sum(self.cost(number, one.first, one.last) for one in mine)
        whole = sum(one.last - one.first + 1 for one in mine) == self.stages
        line = 0.0 if whole else self.line_seconds[number]
        return max(1.0, line / device) if device else line * 1e9 or 1.0

    def _whole(self, segment: Segment, costs: Sequence[float]) -> None:
        """A team of which nobody does anything else shares whole microbatches, each as many as it can do in the least
        time."""
        microbatches = self.swarm.batch.microbatches
        given = [int(microbatches * share) for share in segment.shares]
        for _ in range(microbatches - sum(given)):
            place = min(range(len(costs)), key=lambda one: (given[one] + 1) * costs[one])
            given[place] += 1
        segment.shares = [one / microbatches for one in given]

    def _cross(self, segments: Sequence[Segment], up: list[float], down: list[float]) -> float:
        """What each line carries for a microbatch, in seconds, added to `up` and `down`. Returns what one microbatch
        takes on all of them, one after the other."""
        tensors, way = self.swarm.batch.tensors, 0.0
        if len(segments) < 2:
            return 0.0
        for before, after in zip(segments, [*segments[1:], segments[0]]):
            aligned = len(segments[0].group) >= min(len(before.group), len(after.group)) > 1
            stays: dict[int, float] = {}
            if not {*before.group}.isdisjoint(after.group):
                there = dict(zip(after.group, after.shares))
                stays = {
                    n: min(share, there.get(n, 0.0)) if aligned else max(0.0, share + there.get(n, 0.0) - 1)
                    for n, share in zip(before.group, before.shares)
                }
            for segment, sent, got in ((before, tensors.forward, tensors.backward),
                                       (after, tensors.backward, tensors.forward)):  # fmt: skip
                longest = delay = 0.0
                for number, share in zip(segment.group, segment.shares):
                    line, crossing = self.lines[number], share - stays.get(number, 0.0)
                    up[number] += crossing * sent / line.up
                    down[number] += crossing * got / line.down
                    longest += crossing * sent / min(line.up, line.down)
                    delay += crossing * line.delay_seconds
                way += longest + delay
        return way

    def _copy(self, groups: Groups, up: list[float]) -> None:
        """Adds what the first holder of a stage sends to those who keep copies of it, over all microbatches."""
        batch = self.swarm.batch
        for stage, size in enumerate(batch.copies):
            donor = groups[stage][0]
            sent = size * (1 if stage else HEAD_KEEPERS)
            up[donor] += sent / self.lines[donor].up / batch.microbatches

    def _sums(self, segments: Sequence[Segment]) -> dict[int, float]:
        """Seconds of each for the sums of its groups."""
        found: dict[int, float] = {}
        for segment in segments if self.swarm.batch.sums else ():
            size = len(segment.group)
            if size > 1:
                lines = [self.lines[number] for number in segment.group]
                total = sum(self.swarm.batch.sums[segment.first : segment.last + 1])
                seconds = 2 * (size - 1) / size * total / min(min(line.up, line.down) for line in lines)
                seconds += 2 * max(line.delay_seconds for line in lines)
                for number in segment.group:
                    found[number] = found.get(number, 0.0) + seconds
        return found


def _level(segment: Segment, costs: Sequence[float], load: dict[int, float]) -> float:
    """Gives each holder of the segment so much of its flow that all are busy equally long, those who are busier
    elsewhere nothing. Returns by how much the largest share has changed."""
    others = [load[number] - share * cost for number, share, cost in zip(segment.group, segment.shares, costs)]
    order = sorted(range(len(costs)), key=others.__getitem__)
    speed = filled = 0.0
    level = inf
    for place in order:
        if others[place] >= level:
            break
        speed += 1 / costs[place]
        filled += others[place] / costs[place]
        level = (1 + filled) / speed
    moved = 0.0
    for place, number in enumerate(segment.group):
        share = max(0.0, (level - others[place]) / costs[place])
        moved = max(moved, abs(share - segment.shares[place]))
        segment.shares[place] = share
        load[number] = others[place] + share * costs[place]
    return moved
