"""What the state of a stage consists of: its trained weights, and what its optimiser remembers of each parameter.

Training goes on from these numbers, so snapshots keep them and holders hand them on. Each parameter is updated by one
rule, and each rule remembers moments of the parameter's own shape. No torch here: who plans memory or reads a snapshot
needs the sizes without it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Final

from ftnode.models.config import ModelConfig
from ftnode.models.parameters import NARROWING, TABLES, WIDENING, Entries, Shape, frozen_shapes, places, trained_shapes

MOMENTS: Final = {"adam": ("exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}
"""Rule → what it remembers of a parameter, as torch.optim calls it."""
KINDS: Final = ("adam", "muon")
"""Of a run's optimiser. muon: the matrices of blocks by Muon, all else by Adam."""
PARTS: Final = ("weights", "optimiser")
"""In the order in which they lie in a stage's memory."""


def rule_of(kind: str, name: str, shape: Shape) -> str:
    """By which rule a run's optimiser updates this parameter.

    Muon is made for matrices that turn one activation into another. Rows of a table belong to one token each, and a
    norm is no matrix (Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks"). An adapter is
    one matrix in two halves, and making either orthogonal says nothing of their product.
    """
    halved = f".{NARROWING}." in name or f".{WIDENING}." in name
    return "muon" if kind == "muon" and len(shape) == 2 and name not in TABLES and not halved else "adam"


@dataclass(frozen=True, slots=True)
class StatePlan:
    """Of what is trained of all stages of a run. `optimiser`: one of KINDS."""

    model: ModelConfig
    stages: int
    optimiser: str

    def entries(self, stage: int, part: str) -> Entries:
        """Tensor → where it lies in this part, in numbers. Raises ValueError for a stage that does not exist.

        Moments lie one row behind the other: the first of every parameter, then the second of each that has two.
        """
        weights = places(*trained_shapes(self.model, self.stages, stage))[0]
        if part == "weights":
            return weights
        rules = {name: rule_of(self.optimiser, name, shape) for name, (_, shape) in weights.items()}
        found: Entries = {}
        offset = 0
        for row in zip_longest(*([f"{name}.{moment}" for moment in MOMENTS[rule]] for name, rule in rules.items())):
            for moment, (_, shape) in zip(row, weights.values()):
                if moment is not None:
                    found[moment] = offset, shape
                    offset += prod(shape)
        return found

    def numbers(self, stage: int, parts: str) -> int:
        """Of one part, or of both: "all"."""
        chosen = PARTS if parts == "all" else (parts,)
        return sum(prod(shape) for part in chosen for _, shape in self.entries(stage, part).values())

    def frozen(self, stage: int) -> Entries:
        """Tensor → where it lies among those that stay as they were when the run began."""
        return places(*frozen_shapes(self.model, self.stages, stage))[0]

    def held_size(self, stage: int) -> int:
        """Bytes of its state, its gradient, and what is frozen, all in the model's precision."""
        frozen = sum(prod(shape) for _, shape in self.frozen(stage).values())
        return self.size(stage, "all") + self.size(stage, "weights") + self.model.number_bytes * frozen

    def size(self, stage: int, parts: str) -> int:
        """The same in bytes."""
        return self.model.number_bytes * self.numbers(stage, parts)
