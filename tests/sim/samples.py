"""Numbers of a stage's state that its holder lends, and what they tell of how it was trained (rule 54). And which way
its weights go from one copy to the next, for which it lends nothing.

A sample is the weights' history, and what the last sum was made of: from moments before and after a step follows its
gradient.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ftnode.protocol.words.effects import Course, Retrace, Sample
from ftnode.protocol.words.events import Done
from tests.sim.compute import NOTHING, Gradients, Weights
from tests.sim.host import Host

if TYPE_CHECKING:
    from tests.sim.world import World

ANOTHER_UPDATE = 3.0
PATIENCE = 1.0
AGAINST = 10.0
"""Standard deviations, of an honest holder."""


class Lent(NamedTuple):
    weights: Weights
    gradients: Gradients


class Samples:
    def __init__(self, world: World) -> None:
        self.world = world
        self._lent: dict[tuple[str, Sample], Lent] = {}
        """By PeerId and task."""

    def start(self, host: Host, task: Sample) -> None:
        seconds = self.world.chance.uniform(0.01, 0.1)
        self.world.at(self.world.now + seconds, self._ask, (host, task, seconds))

    def _ask(self, host: Host, task: Sample, waited: float) -> None:
        if not host.alive:
            return
        donor, blocked = self.world.by_id.get(task.donor.peer.id), self.world.network.blocked
        pair = host.peer.id, task.donor.peer.id
        there = donor is not None and donor.peer == task.donor.peer and donor.alive and not (donor.paused or donor.hung)
        weights = donor.compute.weights.get(task.stage) if donor is not None and there else None
        if weights is None or pair in blocked or pair[::-1] in blocked:
            self._ends(host, task, "the donor does not answer")
        elif weights.version == task.version:
            assert donor is not None
            self._lent[host.peer.id, task] = Lent(weights, donor.compute.trained_with.get(task.stage, {}))
            self._ends(host, task, "")
        elif weights.version.step < task.version.step and waited < PATIENCE:
            self.world.at(self.world.now + 0.1, self._ask, (host, task, waited + 0.1))
        else:
            self._ends(host, task, "the donor is elsewhere")

    def _ends(self, host: Host, task: Sample | Course, fault: str) -> None:
        self.world.deliver(host, Done(task, None, 0.0, 0, "", fault))

    def retrace(self, host: Host, task: Retrace) -> None:
        """1.0 where the step was made with another gradient than visits gave that were done again; more where it is
        none that follows from the weights before."""
        lent = {one.version: found for (peer, one), found in self._lent.items() if self._of(host, peer, task, one)}
        given = host.compute.tried.pop((task.stage, task.before), {})
        self._lent = {key: found for key, found in self._lent.items() if key[0] != host.peer.id}
        value = 0.0
        if given and {*lent} == {task.before, task.after}:
            before, after = lent[task.before], lent[task.after]
            follows = hash((before.weights.history, hash(tuple(sorted(after.gradients.items())))))
            value = float(not given.items() <= after.gradients.items())
            value = value if follows == after.weights.history else ANOTHER_UPDATE
        self.world.answer(host, task, NOTHING._replace(value=value))

    def course(self, host: Host, task: Course) -> None:
        """AGAINST where the weights went against what visits gave that were done again on the first copy."""
        view, kept = host.participant.view, host.compute.on_copies.get(task.stage, {})
        group = view.holders[task.stage] if view is not None else ()
        steps = self.world.by_id[group[0].id].compute.trained_in.get(task.stage, {}) if len(group) == 1 else {}
        step, given = kept.get(task.before, (0, {}))
        trained = steps.get(step)
        if not given or trained is None or task.after not in kept:
            self._ends(host, task, "too little happened")
            return
        self.world.answer(host, task, NOTHING._replace(value=AGAINST if given.items() <= trained.items() else 0.0))

    @staticmethod
    def _of(host: Host, peer: str, task: Retrace, one: Sample) -> bool:
        return peer == host.peer.id and (one.stage, one.key) == (task.stage, task.key)
