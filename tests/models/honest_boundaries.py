"""How far the norms and directions of honest boundary tensors are from what is usual, and how often honest makers
would be doubted.

    python -m tests.models.honest_boundaries [bytes | few | words]

A small model is trained on this repository's text, 16 microbatches a step, as in honest_parts.py. Each boundary tensor
is seen by a receiver as in a swarm where three peers share the visits of a stage (decision 0053).
"""

from __future__ import annotations

import random
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from math import log2
from typing import Any, Final

import numpy as np
import torch

from ftnode.models.config import ModelConfig
from ftnode.models.direction import direction as direction_of
from ftnode.models.direction import rounded
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion
from ftnode.protocol.step.boundary_norms import BoundaryNorms, Source
from ftnode.protocol.step.doubts import RATE
from ftnode.protocol.words.types import Direction, Peer
from tests.node.reduction.honest_parts import Draw, drawn_as, texts

MICROBATCHES: Final = 16
STAGES: Final = 3
STEPS: Final = 400
MAKERS: Final = tuple(Peer(name, 1) for name in "abc")
Numbers = np.ndarray[Any, np.dtype[Any]]
See = Callable[[int, int, int, Direction, torch.Tensor], None]
"""Of a step and a microbatch what the visit makes, one way or the other."""


def train(draw: Draw, vocabulary: int, products: str, see: See) -> None:
    config = ModelConfig(dim=64, heads=4, layers=6, context=64, hidden=128, vocabulary=vocabulary)
    optimiser = OptimiserConfig(learning_rate=3e-3, steps=STEPS, weight_decay=0.1, warmup_steps=10, clip=1.0)
    stages = [Stage(config, STAGES, n, optimiser, MICROBATCHES, "cpu", products) for n in range(STAGES + 1)]
    for stage in stages:
        stage.initialise(1, "measured")
    for step in range(1, STEPS + 1):
        attempt = 0, step
        for microbatch in range(MICROBATCHES):
            tokens = draw(step, microbatch)
            x = stages[0].forward((attempt, microbatch, 0), tokens[:, :-1], False)
            see(step, microbatch, 0, Direction.FORWARD, x)
            for stage in stages[1:]:
                x = stage.forward((attempt, microbatch, stage.index), x, True)
                see(step, microbatch, stage.index, Direction.FORWARD, x)
            back = stages[0].learn((attempt, microbatch, STAGES + 1), x, tokens[:, 1:]).gradient
            for stage in reversed(stages[1:]):
                assert back is not None
                see(step, microbatch, stage.index + 1, Direction.BACKWARD, back)
                back = stage.backward((attempt, microbatch, stage.index), back, None).gradient
            assert back is not None
            see(step, microbatch, 1, Direction.BACKWARD, back)
            stages[0].backward((attempt, microbatch, 0), back, tokens[:, :-1])
        for stage in stages:
            stage.reduce(attempt)
            stage.apply(StageVersion(step, f"c{step}", attempt), skipped=False)


class Onlooker:
    """A receiver of all boundary tensors."""

    def __init__(self) -> None:
        self._norms, self._chance = BoundaryNorms(), random.Random(3)
        self.said: dict[str, str] = {}
        self.sizes = defaultdict[tuple[int, Direction], list[list[float]]](list)
        """By the visit that made them, and step: of each microbatch, in powers of two."""
        self.means = dict[tuple[int, Direction], torch.Tensor]()
        self.cosines = defaultdict[tuple[int, Direction], list[float]](list)
        """By the same: which way each points, against those before (decision 0061)."""

    def see(self, step: int, microbatch: int, visit: int, direction: Direction, x: torch.Tensor) -> None:
        norm, rows = float(torch.linalg.vector_norm(x)), self.sizes[visit, direction]
        if len(rows) < step:
            rows.append([])
        rows[-1].append(log2(norm))
        source = Source(self._chance.choice(MAKERS), visit % (STAGES + 1), visit, direction)
        way = rounded(direction_of(x).tolist()) if direction is Direction.FORWARD else ()
        if reason := self._norms.see(source, norm, way):
            self.said[f"step {step}, microbatch {microbatch}, visit {visit}"] = reason
        self.turn(visit, direction, direction_of(x))

    def turn(self, visit: int, direction: Direction, points: torch.Tensor) -> None:
        """Its cosine with a running mean of those before."""
        points, mean = points / points.norm(), self.means.get((visit, direction))
        if mean is not None:
            self.cosines[visit, direction].append(float(points @ mean / mean.norm()))
        self.means[visit, direction] = points if mean is None else mean + RATE * (points - mean)


def main(kinds: Sequence[str]) -> None:
    torch.set_num_threads(1)
    text = texts()
    for kind in kinds:
        onlooker = Onlooker()
        train(*drawn_as(kind, text), onlooker.see)
        for (visit, direction), rows in sorted(onlooker.sizes.items()):
            means = np.array([np.mean(row) for row in rows])
            within = np.abs(np.array(rows) - means[:, None])
            print(
                f"{kind}, made at visit {visit}, {direction}: deviation within a step "
                f"{np.sqrt((within**2).mean()):.3f} powers of two, at most {within.max():.2f}; from step to step "
                f"{np.abs(np.diff(means)).mean():.3f}, at most {np.abs(np.diff(means)).max():.2f}"
            )
        for (visit, direction), cosines in sorted(onlooker.cosines.items()):
            middle, least = np.median(cosines), min(cosines)
            print(
                f"{kind}, made at visit {visit}, {direction}: cosine with what is usual {middle:.3f} in the middle, "
                f"{np.quantile(cosines, 0.01):.2f} for one in a hundred, {least:.2f} at least"
            )
        seen = sum(len(row) for rows in onlooker.sizes.values() for row in rows)
        print(f"{kind}: {len(onlooker.said)} doubts of {seen} tensors: {onlooker.said}")


if __name__ == "__main__":
    main(sys.argv[1:] or ("bytes", "few", "words"))
