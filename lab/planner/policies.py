"""What each rival does when a machine fails or comes back: its recipe, written down so that a reader can object.

Where a paper leaves something open, the rival gets what is best for it. All of them know at once that a machine has
failed, and lose half a step by it. A machine that comes back and joins others in what they hold copies it while they
train, which costs them nothing. Any other change of a layout stops everybody for a restart and for the copying, in
which machines that are alike have changed places so that the least is copied, for rivals as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

from ftnode.lab.planner.arrangements import (
    Arrangement,
    grouped,
    layers_of,
    pipelines_seconds,
    side_by_side,
    swarm_of,
    templates,
)
from ftnode.lab.planner.setting import Change, Setting
from ftnode.protocol.leader.replica_moves import GAIN_MIN
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.planning.search import best_layout
from ftnode.protocol.planning.swarm import Holders, stages_of
from ftnode.protocol.planning.transition import placed, transition
from ftnode.protocol.recovery.disk_versions import REBUILT_STEPS

BAMBOO_OVERHEAD: Final = 1.095
"""Times as long as without redundancy: the least of the 9.5 to 20 % in Odyssey's table I."""


@dataclass(frozen=True, slots=True)
class Answer:
    """`arrangement`: None where nobody can train. `pause`: seconds without training; `lost`: seconds of training whose
    work is lost or has to be made good."""

    arrangement: Arrangement | None
    pause: float = 0.0
    lost: float = 0.0


class Policy(Protocol):
    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None: ...

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        """`there`: after the change, in order; `until`: seconds to the next change, which only an oracle may use."""
        ...


class Reroute:
    """ReCycle: the microbatches of a dead machine go to the others of its stage. Stages stay as they are. Who comes
    back joins the stage that has fewest. When a stage has nobody, all is begun anew from a checkpoint, with the
    machines divided equally."""

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        if len(there) < setting.pipeline:
            return None
        return self._arranged(setting, {name: place % setting.pipeline for place, name in enumerate(there)})

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        groups = _parts(setting, before, there)
        sizes = Counter(groups.values())
        if before is not None and change.back and all(sizes[part] for part in range(setting.pipeline)):
            groups[change.name] = min(range(setting.pipeline), key=lambda part: (sizes[part], part))
            sizes[groups[change.name]] += 1
        if all(sizes[part] for part in range(setting.pipeline)):
            return Answer(self._arranged(setting, groups))
        return self._emptied(setting, there)

    def _emptied(self, setting: Setting, there: Sequence[str]) -> Answer:
        return _from_checkpoint(setting, self.begin(setting, there))

    def _arranged(self, setting: Setting, groups: dict[str, int]) -> Arrangement:
        return grouped(setting, "groups", groups, setting.pipeline)


class Ladder(Reroute):
    """CheckFree with the rules of this project before the planner: as ReCycle, and a replica moves to the slowest stage
    when that makes it GAIN_MIN times as fast. A stage that has nobody is blended from its neighbours by a replica of
    another stage, which costs REBUILT_STEPS steps of learning."""

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        groups = _parts(setting, before, there)
        idle = [name for name in there if name not in groups]
        sizes = Counter(groups.values())
        lost = 0.0
        for name in idle:
            part = min(range(setting.pipeline), key=lambda one: (sizes[one], one))
            groups[name] = part
            sizes[part] += 1
        for part in range(setting.pipeline):
            if not sizes[part]:
                donor = max(groups, key=lambda name: (sizes[groups[name]], name), default=None)
                if donor is None or sizes[groups[donor]] < 2:
                    return Answer(None)
                sizes[groups[donor]] -= 1
                groups[donor], lost = part, lost + 1
                sizes[part] = 1
        slowest = min(range(setting.pipeline), key=lambda part: (sizes[part], part))
        largest = max(range(setting.pipeline), key=lambda part: (sizes[part], part))
        after = min(sizes[slowest] + 1, sizes[largest] - 1)
        if after / sizes[slowest] >= GAIN_MIN:
            groups[max(name for name, part in groups.items() if part == largest)] = slowest
        arrangement = self._arranged(setting, groups)
        return Answer(arrangement, 0.0, lost * REBUILT_STEPS * arrangement.seconds)


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
        if before is None or _lost_layers(before, there):
            return _from_checkpoint(setting, wanted)
        return _taken_up(setting, before, wanted, there)


class Redundancy:
    """Bamboo: pipelines of fixed length, in which everybody also computes for its successor. When that one fails, it
    takes its place, at half the speed. Machines that are left over by all pipelines but one form that one, as long as
    no two neighbours are missing. All takes BAMBOO_OVERHEAD times as long, and changes a step."""

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        slower = replace(
            setting,
            forward_seconds=BAMBOO_OVERHEAD * setting.forward_seconds,
            backward_seconds=BAMBOO_OVERHEAD * setting.backward_seconds,
        )
        length, part = setting.pipeline, setting.layers // setting.pipeline
        whole, left = divmod(len(there), length)
        names = [there[place * length : (place + 1) * length] for place in range(whole)]
        pipelines = [(part,) * length] * whole
        if 2 * left >= length:
            missing = length - left
            pipelines.append((2 * part,) * missing + (part,) * (left - missing))
            names.append(there[whole * length :])
        if not pipelines:
            return None
        return side_by_side(setting, f"{len(pipelines)} pipelines", names, pipelines_seconds(slower, tuple(pipelines)))

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        arrangement = self.begin(setting, there)
        return Answer(arrangement, arrangement.seconds if arrangement and not change.back else 0.0)


class Planner:
    """This project's: after each change the most work until the next one is expected (Odyssey's equation 8), among
    staying with who is left, the layout that the search finds, and Oobleck's pipelines. `knows`: an oracle, which
    knows when that is."""

    def __init__(self, knows: bool = False) -> None:
        self.knows = knows

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        found = best_layout(swarm_of(setting, there))
        pipelines = templates(setting, there)
        options = [pipelines] if pipelines else []
        if found is not None:
            options.append(Arrangement(found.what, found.holders, found.seconds))
        return min(options, key=lambda one: one.seconds, default=None)

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        if before is None:
            return _from_checkpoint(setting, self.begin(setting, there))
        expected = until if self.knows else setting.seconds_to_change(len(there))
        swarm, left = swarm_of(setting, there), _left(before.holders, there)
        options: list[Answer] = []
        if all(left):
            options.append(Answer(Arrangement("as it is", left, step_timing(swarm.layout(left), swarm.batch).seconds)))
        found = best_layout(swarm, left)
        if found is not None:
            options.append(_taken_up(setting, before, Arrangement(found.what, found.holders, found.seconds), there))
        pipelines = templates(setting, there)
        if pipelines is not None:
            options.append(_taken_up(setting, before, pipelines, there))
        return max(options, key=lambda one: _work(one, expected), default=Answer(None))


POLICIES: Final[dict[str, Callable[[], Policy]]] = {
    "recycle": Reroute, "oobleck": Templates, "bamboo": Redundancy, "ladder": Ladder, "planner": Planner,
    "oracle": lambda: Planner(knows=True),
}  # fmt: skip


def _work(answer: Answer, seconds: float) -> float:
    """Steps in so many seconds."""
    if answer.arrangement is None:
        return 0.0
    return max(0.0, seconds - answer.pause - answer.lost) / answer.arrangement.seconds


def _left(holders: Holders, there: Sequence[str]) -> Holders:
    alive = {*there}
    return tuple(tuple(name for name in group if name in alive) for group in holders)


def _lost_layers(before: Arrangement, there: Sequence[str]) -> int:
    return sum(not group for group in _left(before.holders, there))


def _parts(setting: Setting, before: Arrangement | None, there: Sequence[str]) -> dict[str, int]:
    """Who of those that are there holds which of the equal parts."""
    if before is None:
        return {}
    parts = {first: part for part, (first, _) in enumerate(layers_of(setting, setting.pipeline))}
    return {name: parts[stages[0]] for name, stages in stages_of(_left(before.holders, there)).items()}


def _from_checkpoint(setting: Setting, arrangement: Arrangement | None) -> Answer:
    """Half of what lies between two checkpoints is lost. Everybody reads its layers over its line."""
    if arrangement is None:
        return Answer(None)
    longest = max(len(stages) for stages in stages_of(arrangement.holders).values())
    reading = longest * setting.layer_bytes / setting.line.down
    return Answer(arrangement, setting.restart_seconds + reading, setting.checkpoint_seconds / 2)


def _taken_up(setting: Setting, before: Arrangement, wanted: Arrangement, there: Sequence[str]) -> Answer:
    """Another arrangement with the least copying. Where nobody gives up or gets anything but who had nothing, nobody
    waits. A layer that nobody has is blended, at REBUILT_STEPS."""
    swarm, left = swarm_of(setting, there), _left(before.holders, there)
    states = (0, *[setting.layer_bytes] * setting.layers)
    holders = placed(swarm, left, wanted.holders, states)
    arrangement = replace(wanted, holders=holders)
    had, has = stages_of(left), stages_of(holders)
    if all(has.get(name) == stages for name, stages in had.items()):
        return Answer(arrangement)
    moved = transition(swarm.machines, left, holders, states)
    if moved is None:
        return _from_checkpoint(setting, arrangement)
    lost = REBUILT_STEPS * wanted.seconds if _lost_layers(before, there) else 0.0
    return Answer(arrangement, setting.restart_seconds + moved.seconds, lost)
