"""Which way weights go from one copy to a later one: `python -m tests.node.compute.ways LIE [--help]`

Trains a small model in one process, of which one block stage has a holder that lies. In every tenth step two of its
microbatches are done again, as a keeper does. Prints by how many standard deviations the weights went against these,
over several numbers of steps (models/course.py, decision 0076), and how much what went into the step is like them by a
sample (models/retrace.py).
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import sqrt
from random import Random
from statistics import mean, pstdev
from typing import Final

import torch
from torch import Tensor

from ftnode.lab.hostile.lies import LIES
from ftnode.lab.recovery.whole_model import Size, WholeModel
from ftnode.models.config import ModelConfig
from ftnode.models.course import course, tiles
from ftnode.models.data import load_corpus
from ftnode.models.encoding import decode, encode
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.retrace import alike, gathered
from ftnode.models.stage import Stage
from ftnode.models.state_sample import pieces

STAGES, STAGE, SEED, CONTEXT, SEQUENCES = 6, 3, 3, 64, 4
EVERY: Final = 10
OVER: Final = (1, 2, 5, 10, 20, 30, 50)
DONE_AGAIN: Final = 2
LEFT_OUT: Final = 2
"""Copies of the first steps."""


@dataclass(frozen=True, slots=True)
class Sized(Size):
    kind: str = "adam"

    def optimiser(self) -> OptimiserConfig:
        return replace(Size.optimiser(self), kind=self.kind)


@dataclass(frozen=True, slots=True)
class Copy:
    step: int
    weights: list[Tensor]
    gradients: list[Tensor]


@dataclass
class Holder:
    """Lies about what its stage's sum is, and is looked at before it does. `when`: of a step that is looked at."""

    stage: Stage
    lie: str
    when: Callable[[int, bool], bool]
    copies: list[Copy] = field(default_factory=list)
    found: dict[int, list[float]] = field(default_factory=lambda: {steps: [] for steps in OVER})
    shares: list[float] = field(default_factory=list)
    """As of step_trace.grown()."""

    def __post_init__(self) -> None:
        self.tiles = tiles(self.stage.layout.entries, Random(4))
        self.part = self.stage.gradient
        self.before, self.step, self.visits = torch.zeros_like(self.stage.gradient), 0, 0
        backward, reduce = self.stage.backward, self.stage.reduce

        def counted(*given, **more):  # type: ignore[no-untyped-def]
            lesson = backward(*given, **more)
            self.visits += 1
            if self.visits == DONE_AGAIN and self.step % EVERY == 1:
                self.part = self.stage.gradient.clone()
                gradients = [tile.of(self.part) for tile in self.tiles]
                self.copies.append(Copy(self.step, self.shadow(), gradients))
            return lesson

        def reduced(attempt):  # type: ignore[no-untyped-def]
            true = self.stage.gradient.clone()
            if self.lie and self.when(self.step, self.step % EVERY == 1):
                LIES[self.lie](self.stage.gradient, self.before)
            self.before = true
            if self.step % EVERY == 1:
                self.shares.append(self.share())
            return reduce(attempt)

        self.stage.backward, self.stage.reduce = counted, reduced  # type: ignore[method-assign]

    def shadow(self) -> list[Tensor]:
        weights = self.stage.weights.detach()
        rounded = decode(encode(weights, "int8"), "int8", weights.numel())
        return [tile.of(rounded) for tile in self.tiles]

    def share(self) -> float:
        drawn = pieces(self.stage.plan, STAGE, self.step)
        used, part = (gathered(flat, drawn, rows=False) for flat in (self.stage.gradient, self.part))
        return alike(drawn, used, part) / sqrt(DONE_AGAIN / self.stage.microbatches)

    def begins(self, step: int) -> None:
        self.step, self.visits = step, 0
        for copy in self.copies:
            if step - copy.step in OVER:
                self.found[step - copy.step].append(course(copy.weights, self.shadow(), copy.gradients))


WHEN: Final[dict[str, Callable[[int, bool], bool]]] = {
    "always": lambda step, looked_at: True,
    "unseen": lambda step, looked_at: not looked_at,
    "half": lambda step, looked_at: step % 2 == 1,
}


def trained(given: Namespace) -> Holder:
    hidden = given.width * 11 // 4 // 4 * 4
    config = ModelConfig(given.width, max(2, given.width // 16), STAGES * given.layers, CONTEXT, hidden)
    size = Sized(
        "ways", config, STAGES, given.microbatches, SEQUENCES, given.rate, 20, 4, decay_steps=given.decay,
        kind=given.optimiser,
    )  # fmt: skip
    model = WholeModel(size, load_corpus(given.data), SEED)
    holder = Holder(model.stages[STAGE], "" if given.lie == "honest" else given.lie, WHEN[given.when])
    for step in range(1, given.steps + 1):
        holder.begins(step)
        model.train(step)
    return holder


def asked() -> Namespace:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("lie", choices=["honest", *LIES])
    parser.add_argument("--when", choices=[*WHEN], default="always", help="unseen: not in a step that is looked at")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=1, help="of a stage")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--decay", type=int, default=0, help="steps until the rate has fallen to a twentieth; 0: none")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--optimiser", choices=["adam", "muon"], default="adam")
    parser.add_argument("--data", required=True, help="a file or a folder of text")
    return parser.parse_args()


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)  # what noise is drawn from
    holder = trained(asked())
    print(f"{sum(tile.rows * tile.width for tile in holder.tiles):,} numbers")
    rows = {"a sample": holder.shares} | {f"over {steps} steps": values for steps, values in holder.found.items()}
    for what, values in rows.items():
        late = values[LEFT_OUT:]
        if late:
            print(f"{what:>13}: {mean(late):5.2f} ± {pstdev(late):.2f}, {min(late):.2f} to {max(late):.2f}")
