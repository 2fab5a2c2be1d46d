"""The compute process's part in a group's reduction: what we accumulated goes out to be summed, and the sum is staged.

The node's exchange (reduction/exchange.py) works on shared memory in between. A sum lies there until it is applied.
When a learner's install is still under way, the weights of a sum are not here yet, and the sum is set aside.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ftnode.models.faults import Misuse, StageFault
from ftnode.models.ledger import AttemptId
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage
from ftnode.models.whole_gradient import Staged, stage_gradient
from ftnode.node.compute.pinned_places import PinnedPlaces
from ftnode.node.machine.gradient_memory import GradientMap

Answer = dict[str, Any]


class GroupGradients:
    """Staged sums, at most one per stage besides those on the shelf. Needs no weights: sizes are the model's."""

    def __init__(self, memory: GradientMap | None, places: PinnedPlaces | None, optimiser: OptimiserConfig) -> None:
        """`places`: of `memory`; None where this process reduces in no group."""
        self._memory, self._places, self._optimiser = memory, places, optimiser
        self._opened: dict[int, tuple[AttemptId, list[list[int]]]] = {}
        """By stage, of which attempt the sum is being made, and what we have accumulated of it."""
        self._staged: dict[tuple[int, AttemptId], Staged] = {}
        self._shelf: dict[tuple[int, AttemptId], Staged] = {}

    def open(self, stage: int, held: Stage | None, attempt: AttemptId, count: int) -> Answer:
        """Copy what we accumulated to where the node finds it. An earlier sum of the stage is no more."""
        place = self._place(stage)
        self.drop(stage)
        covered: list[list[int]] = []
        if count:
            if held is None:
                raise Misuse(f"stage {stage} has no weights here", stage)
            gradient = held.accumulated(attempt)
            covered = held.ledger.covered()
            if len(covered) != count:
                raise Misuse(f"{len(covered)} visits are accumulated here, not the {count} that the group says", stage)
            place.copy_(gradient)
        self._opened[stage] = attempt, covered
        return {"covered": covered, "fault": ""}

    def close(self, stage: int, attempt: AttemptId) -> Answer:
        """The sum is whole: norm, clip, hash."""
        opened, covered = self._opened.pop(stage, (None, []))
        if opened != attempt:
            raise Misuse(f"no sum of attempt {attempt} has begun", stage)
        try:
            staged = stage_gradient(self._place(stage), self._optimiser, stage, compared=True)
        except StageFault as fault:
            return {"norm_squared": 0.0, "gradient": "", "covered": [], "fault": str(fault)}
        self._staged[stage, attempt] = staged
        return {"norm_squared": staged.norm_squared, "gradient": staged.gradient, "covered": covered, "fault": ""}

    def shelve(self, stage: int, attempt: AttemptId) -> None:
        """Keep the sum whatever happens to its attempt: it will be applied when the stage is here."""
        staged = self._staged.pop((stage, attempt), None)
        if staged is None:
            raise Misuse(f"attempt {attempt} has no reduced gradient", stage)
        self._shelf[stage, attempt] = Staged(staged.flat.clone(), staged.factor, staged.norm_squared, staged.gradient)

    def take(self, stage: int, attempt: AttemptId) -> Staged | None:
        """The sum to be applied, if a group made one."""
        key = stage, attempt
        return self._shelf.pop(key, None) or self._staged.pop(key, None)

    def discard(self, keep: AttemptId | None) -> None:
        """Sums of every other attempt; not those on the shelf."""
        for key in [key for key in self._staged if key[1] != keep]:
            del self._staged[key]
        for stage in [stage for stage, (attempt, _) in self._opened.items() if attempt != keep]:
            del self._opened[stage]

    def drop(self, stage: int) -> None:
        """The stage's gradient is reduced anew: no sum of before may be applied."""
        for key in [key for key in self._staged if key[0] == stage]:
            del self._staged[key]
        self._opened.pop(stage, None)

    def unshelve(self, stage: int) -> None:
        """The install that sums waited for is no more."""
        for key in [key for key in self._shelf if key[0] == stage]:
            del self._shelf[key]

    def forget(self, stage: int) -> None:
        """Everything of the stage, and its memory."""
        self.drop(stage)
        self.unshelve(stage)
        if self._memory is not None and self._places is not None:
            self._places.let_go(stage)
            self._memory.release(stage)

    def _place(self, stage: int) -> Tensor:
        if self._places is None:
            raise Misuse("there is no shared memory for gradients", stage)
        return self._places.place(stage)
