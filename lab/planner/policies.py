"""What each rival does when a machine fails or comes back: its recipe, written down so that a reader can object.

Where a paper leaves something open, the rival gets what is best for it. All of them know at once that a machine has
failed, and lose half a step by it. A machine that comes back and joins others in what they hold copies it while they
train, which costs them nothing. Any other change of a rival's layout stops everybody for a restart and for the
copying, in which machines that are alike have changed places so that the least is copied.

Where machines are unequal, a rival with fixed stages puts the fastest ones first, each into the stage that is slowest
so far. One that has no room for its stage stands by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ftnode.lab.planner.arrangements import (
    Arrangement,
    grouped,
    layers_of,
    part_layers,
    pipelines_seconds,
    rate,
    shared_out,
    side_by_side,
    swarm_of,
    templates,
)
from ftnode.lab.planner.setting import GAIN_MIN, REBUILT_STEPS, Change, Kind, Setting
from ftnode.protocol.planning.swarm import Holders, stages_of
from ftnode.protocol.planning.transition import placed, transition

BAMBOO_OVERHEAD: Final = 1.095
"""Times as long as without redundancy: the least of the 9.5 to 20 % in Odyssey's table I."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`arrangement`: None where nobody can train. `pause`: seconds without training; `lost`: seconds of training whose
    work is lost or has to be made good; `why`: for people."""

    arrangement: Arrangement | None
    pause: float = 0.0
    lost: float = 0.0
    why: str = ""


class Policy(Protocol):
    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None: ...

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        """`there`: after the change, in order; `until`: seconds to the next change, which only an oracle may use."""
        ...


class Reroute:
    """ReCycle: the microbatches of a dead machine go to the others of its stage. Stages stay as they are. Who comes
    back joins the stage that is slowest. When a stage has nobody, all is begun anew from a checkpoint, with the
    machines divided so that stages are equally fast."""

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        groups: dict[str, int] = {}
        joined(setting, groups, sorted(there, key=lambda name: setting.kind(name).slower))
        return self._arranged(setting, groups) if all(rates_of(setting, groups)) else None

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        groups = _parts(setting, before, there)
        if before is not None and all(rates_of(setting, groups)):
            joined(setting, groups, there)
            return Answer(self._arranged(setting, groups))
        return from_checkpoint(setting, self.begin(setting, there))

    def _arranged(self, setting: Setting, groups: dict[str, int]) -> Arrangement:
        return grouped(setting, "groups", groups, setting.pipeline)


class Ladder(Reroute):
    """CheckFree with the rules of this project before the planner: as ReCycle, and a replica moves to the slowest stage
    when that makes it GAIN_MIN times as fast. A stage that has nobody is blended from its neighbours by a replica of
    another stage, which costs REBUILT_STEPS steps of learning, and the time in which it gets their weights."""

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        if before is None:
            return from_checkpoint(setting, self.begin(setting, there))
        groups, lost = _parts(setting, before, there), 0
        empty = [part for part, speed in enumerate(rates_of(setting, groups)) if not speed]
        joined(setting, groups, there)
        for part in empty:
            if part not in groups.values():
                donor = max(_replicas(groups), key=lambda name: (_size(groups, name), name), default=None)
                if donor is None:
                    return Answer(None)
                groups[donor] = part
            lost += 1
        _one_moved(setting, groups)
        arrangement = self._arranged(setting, groups)
        size = 2 * part_layers(setting, setting.pipeline) * setting.layer_bytes if lost else 0
        blending = size / min(setting.kind(name).line.down for name in groups)
        return Answer(arrangement, blending, lost * REBUILT_STEPS * arrangement.seconds)


class Templates:
    """Oobleck: pipelines of any lengths side by side, which use all machines. The best of them for the machines that
    are there are taken up at each change. A layer that nobody has any more is read from a checkpoint."""

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        return templates(setting, there)

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        wanted = templates(setting, there)
        if wanted is None:
            return Answer(None)
        if before is None or not all(left_of(before.holders, there)):
            return from_checkpoint(setting, wanted)
        return _taken_up(setting, before, wanted, there)


class Redundancy:
    """Bamboo: pipelines of fixed length, in which everybody also computes for its successor. When that one fails, it
    takes its place, at half the speed. Machines that are left over by all pipelines but one form that one, as long as
    no two neighbours are missing. All takes BAMBOO_OVERHEAD times as long, and changes a step. Pipelines are as long as
    lets everybody hold what its successor has as well, are of machines that are alike, and copy nothing. The slowest
    are left over."""

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        slower = replace(
            setting,
            forward_seconds=BAMBOO_OVERHEAD * setting.forward_seconds,
            backward_seconds=BAMBOO_OVERHEAD * setting.backward_seconds,
        )
        length, part = setting.pipeline, part_layers(setting, setting.pipeline)
        able = [name for name in there if setting.kind(name).room >= 2 * part]
        able.sort(key=lambda name: setting.kind(name).slower)
        whole, left = divmod(len(able), length)
        pipelines, names = list[tuple[tuple[Kind, int], ...]](), list[list[tuple[str, int]]]()
        for place in range(whole):
            team = able[place * length : (place + 1) * length]
            shares = shared_out(setting, team)
            assert shares is not None, "each has room for its part"
            names.append(shares)
            pipelines.append(tuple((setting.kind(name), count) for name, count in shares))
        if 2 * left >= length:
            missing = length - left
            rest = able[whole * length :]
            counts = [2 * part] * missing + [part] * (left - missing)
            pipelines.append(tuple((setting.kind(name), count) for name, count in zip(rest, counts)))
            names.append(_cut_off(rest, counts, setting.layers))
        best = self._best(slower, pipelines)
        if best is None:
            return None
        seconds, count = best
        return side_by_side(setting, f"{count} pipelines", names[:count], seconds)

    def _best(self, slower: Setting, pipelines: list[tuple[tuple[Kind, int], ...]]) -> tuple[float, int] | None:
        """Without the slowest pipelines, where these take longer than they give."""
        found = [(pipelines_seconds(slower, tuple(pipelines[:count])), count) for count in range(1, len(pipelines) + 1)]
        return min(found, default=None)

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        arrangement = self.begin(setting, there)
        return Answer(arrangement, arrangement.seconds if arrangement and not change.back else 0.0)


def _cut_off(names: Sequence[str], counts: Sequence[int], layers: int) -> list[tuple[str, int]]:
    found, left = [], layers
    for name, count in zip(names, counts):
        found.append((name, min(count, left)))
        left -= found[-1][1]
    return [one for one in found if one[1]]


def left_of(holders: Holders, there: Sequence[str]) -> Holders:
    alive = {*there}
    return tuple(tuple(name for name in group if name in alive) for group in holders)


def rates_of(setting: Setting, groups: dict[str, int]) -> list[float]:
    """Microbatches a second of each part."""
    found, layers = [0.0] * setting.pipeline, part_layers(setting, setting.pipeline)
    for name, part in groups.items():
        found[part] += rate(setting, setting.kind(name), layers)
    return found


def joined(setting: Setting, groups: dict[str, int], names: Sequence[str]) -> None:
    """Those who have nothing and room for a part join the slowest one, one after the other."""
    rates, layers = rates_of(setting, groups), part_layers(setting, setting.pipeline)
    for name in names:
        kind = setting.kind(name)
        if name not in groups and kind.room >= layers:
            groups[name] = min(range(len(rates)), key=lambda part: (round(rates[part], 9), part))
            rates[groups[name]] += rate(setting, kind, layers)


def _size(groups: dict[str, int], name: str) -> int:
    return sum(part == groups[name] for part in groups.values())


def _replicas(groups: dict[str, int]) -> list[str]:
    return [name for name in groups if _size(groups, name) > 1]


def _one_moved(setting: Setting, groups: dict[str, int]) -> None:
    """A replica to the slowest part, where that is GAIN_MIN times as fast then."""
    rates, layers = rates_of(setting, groups), part_layers(setting, setting.pipeline)
    slowest = min(range(len(rates)), key=lambda part: (round(rates[part], 9), part))
    best: tuple[float, str] | None = None
    for name in _replicas(groups):
        if groups[name] != slowest:
            its = rate(setting, setting.kind(name), layers)
            gain = min(rates[slowest] + its, rates[groups[name]] - its) / rates[slowest]
            if gain >= GAIN_MIN - 1e-9 and (best is None or (gain, name) > best):
                best = gain, name
    if best is not None:
        groups[best[1]] = slowest


def _parts(setting: Setting, before: Arrangement | None, there: Sequence[str]) -> dict[str, int]:
    """Who of those that are there holds which of the equal parts."""
    if before is None:
        return {}
    parts = {first: part for part, (first, _) in enumerate(layers_of(setting, setting.pipeline))}
    return {name: parts[stages[0]] for name, stages in stages_of(left_of(before.holders, there)).items()}


def from_checkpoint(setting: Setting, arrangement: Arrangement | None) -> Answer:
    """Half of what lies between two checkpoints is lost. Everybody reads its layers over its line."""
    if arrangement is None:
        return Answer(None)
    reading = max(
        len(stages) * setting.layer_bytes / setting.kind(name).line.down
        for name, stages in stages_of(arrangement.holders).items()
    )
    return Answer(arrangement, setting.restart_seconds + reading, setting.checkpoint_seconds / 2, "from a checkpoint")


def _taken_up(setting: Setting, before: Arrangement, wanted: Arrangement, there: Sequence[str]) -> Answer:
    """Other pipelines with the least copying. Where nobody gives up or gets anything but who had nothing, nobody
    waits. All layers have holders."""
    swarm, left = swarm_of(setting, there), left_of(before.holders, there)
    states = (0, *[setting.layer_bytes] * setting.layers)
    holders = placed(swarm, left, wanted.holders, states)
    arrangement = replace(wanted, holders=holders)
    had, has = stages_of(left), stages_of(holders)
    if all(has.get(name) == stages for name, stages in had.items()):
        return Answer(arrangement)
    moved = transition(swarm.machines, left, holders, states)
    assert moved is not None, "all layers have holders"
    return Answer(arrangement, setting.restart_seconds + moved.seconds)
