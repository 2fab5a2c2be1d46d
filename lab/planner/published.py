"""Oobleck and ReCycle as they are published, beside the recipes of policies.py, in which a rival gets what is best for
it. Written down so that a reader can object."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ftnode.lab.planner.arrangements import (
    Arrangement,
    layers_of,
    part_layers,
    pipelines_seconds,
    shared_out,
    side_by_side,
    swarm_of,
    templates,
)
from ftnode.lab.planner.policies import Answer, from_checkpoint, left_of
from ftnode.lab.planner.setting import Change, Setting
from ftnode.protocol.planning.swarm import holders_of
from ftnode.protocol.planning.transition import transition


class FixedTemplates:
    """Oobleck's published engine (SymbioticLab/Oobleck, oobleck/execution/engine.py, `on_reconfigure`).

    - Templates are made once: one for each number of machines from the fewest that have room for the model. Each has
      its layers shared out evenly. The best pipelines for the machines of the beginning are taken up then.
    - A pipeline that loses a machine goes on with the next smaller template. One that is too small for any borrows from
      the largest, one machine after the other. Where none can lend, pipelines are merged. Other pipelines stay as they
      are, and nothing is planned anew.
    - Machines of a pipeline are placed in the order of their numbers. Nobody changes places so that less is copied.
    - All stop for a restart and for the copying.

    The engine takes nobody in. Here, whoever comes back waits until a pipeline is short of a machine, or so many wait
    that they are a pipeline of their own. Machines are alike.
    """

    def __init__(self) -> None:
        self.teams: list[list[str]] = []
        self.waiting: list[str] = []

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        """From the best pipelines, in the order of the machines' numbers."""
        self.teams, self.waiting = [], []
        best = templates(setting, there)
        if best is None:
            return None
        count, names = len(best.holders[1]), sorted(there)
        for place in range(count):
            size = len(there) // count + (place < len(there) % count)
            self.teams.append(names[:size])
            names = names[size:]
        return self._arranged(setting)

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        if before is None:
            return from_checkpoint(setting, self.begin(setting, there))
        least = -(-setting.layers // setting.room)
        were = [[*team] for team in self.teams]
        alive = {*there}
        self.teams = [kept for team in self.teams if (kept := [name for name in team if name in alive])]
        self.waiting = [name for name in self.waiting if name in alive] + ([*change.names] if change.back else [])
        self._filled(least)
        if len(self.waiting) >= least:
            self.teams.append(self.waiting)
            self.waiting = []
        if not self.teams or len(self.teams[0]) < least:
            return Answer(None)
        if self.teams == were:
            return Answer(before)
        left = left_of(before.holders, there)
        if not all(left):
            return from_checkpoint(setting, self.begin(setting, there))
        wanted = self._arranged(setting)
        states = (0, *[setting.layer_bytes] * setting.layers)
        moved = transition(swarm_of(setting, there).machines, left, wanted.holders, states)
        assert moved is not None, "all layers have holders"
        return Answer(wanted, setting.restart_seconds + moved.seconds)

    def _filled(self, least: int) -> None:
        """Borrowing, then merging."""
        for team in self.teams:
            while len(team) < least and self.waiting:
                team.append(self.waiting.pop(0))
            while len(team) < least:
                lender = max(self.teams, key=len)
                if len(lender) <= least:
                    break
                team.append(lender.pop())
        small = [team for team in self.teams if len(team) < least]
        whole = [team for team in self.teams if len(team) >= least]
        while small:
            team = small.pop(0)
            while len(team) < least and (small or whole):
                team += (small or whole).pop(0)
            whole.append(team)
        self.teams = whole

    def _arranged(self, setting: Setting) -> Arrangement:
        shares = [shared_out(setting, sorted(team)) for team in self.teams]
        pipelines = [share for share in shares if share is not None]
        shapes = tuple(tuple((setting.kind(name), layers) for name, layers in one) for one in pipelines)
        return side_by_side(setting, f"{len(shapes)} pipelines", pipelines, pipelines_seconds(setting.of_steps, shapes))


class Equation13:
    """ReCycle as Odyssey's simulator has it: the step of equation 13. With N stages of D machines each, of which stage
    i lacks F_i, and m microbatches for each pipeline, it takes (N + m - 1 + the sum of m F_i / (D - F_i)) times the
    forward and backward of a stage: what stages lack adds up, and does not overlap.

    Who comes back takes the place in the stage that it had. With `rejoins` False it stands by, as Odyssey's section V
    may mean it, where ReCycle's throughput "steadily degrades". When a stage has nobody, all who are there begin anew
    from a checkpoint. Machines are alike.
    """

    def __init__(self, rejoins: bool = True) -> None:
        self.rejoins, self.width = rejoins, 0
        self.home: dict[str, int] = {}

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        parts = setting.pipeline
        self.home = {name: place % parts for place, name in enumerate(sorted(there))}
        self.width = -(-len(there) // parts)
        return self._arranged(setting, there)

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        for name in change.names:
            if not self.rejoins:
                self.home.pop(name, None)
            elif name not in self.home:  # all began anew while it was away
                self.home[name] = min(range(setting.pipeline), key=self._sizes(there).__getitem__)
        arrangement = self._arranged(setting, there) if before is not None else None
        return Answer(arrangement) if arrangement else from_checkpoint(setting, self.begin(setting, there))

    def _sizes(self, there: Sequence[str]) -> Counter[int]:
        return Counter(self.home[name] for name in there if name in self.home)

    def _arranged(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        parts, sizes = setting.pipeline, self._sizes(there)
        if part_layers(setting, parts) > setting.room or not all(sizes[part] for part in range(parts)):
            return None
        width = max(self.width, *sizes.values())
        each = setting.microbatches / width
        lacking = sum(each * (width - sizes[part]) / sizes[part] for part in range(parts))
        stage = part_layers(setting, parts) * (setting.forward_seconds + setting.backward_seconds)
        ranges = layers_of(setting, parts)
        held = {name: ranges[self.home[name]] for name in there if name in self.home}
        return Arrangement("groups", holders_of(held, setting.layers + 1), (parts + each - 1 + lacking) * stage)
