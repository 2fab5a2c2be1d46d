"""All stages of a model in one process: the swarm's own Stage objects, routes, batches and optimiser, without a swarm.

The recovery lab trains these. A step is what a swarm's step is: every microbatch along its route, one reduction and one
update per stage. With encodings, boundary tensors have the very bytes of a swarm's. Nothing random happens here, so
equal calls give equal numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ftnode.lab.recovery.boundary_tensors import BoundaryTensors
from ftnode.models.config import ModelConfig
from ftnode.models.data import Bytes, Corpus, training_batch, validation_batch
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion
from ftnode.protocol.step.routes import route

VALIDATION_SEED = 1
"""All runs look at the same windows."""
EXPORTED = "all"


@dataclass(frozen=True, slots=True)
class Size:
    """A model, how it is cut into `stages` block stages, and what one step of it trains on."""

    name: str
    config: ModelConfig
    stages: int
    microbatches: int
    sequences: int
    learning_rate: float
    warmup_steps: int
    validation_microbatches: int
    clip: float = 1.0
    """Largest norm of one stage's gradient."""
    encodings: tuple[str, str] = ("", "")
    """Of activations and of gradients between stages; "": nothing is encoded."""
    decay_steps: int = 0
    """At which half a cosine has brought the rate down to `decay_to` of it; 0: it stays constant."""
    decay_to: float = 0.05

    @property
    def tokens_per_step(self) -> int:
        return self.microbatches * self.sequences * self.config.context

    def optimiser(self) -> OptimiserConfig:
        """Adam as in the paper's appendix A.2: (0.9, 0.999), no weight decay. Where no decay is asked for the rate is
        constant, so that equal losses are equally far into a run whatever its length."""
        return OptimiserConfig(
            learning_rate=self.learning_rate, steps=self.decay_steps, beta1=0.9, beta2=0.999,
            warmup_steps=self.warmup_steps, decay="cosine" if self.decay_steps else "constant",
            minimum_factor=self.decay_to, clip=self.clip,
        )  # fmt: skip


SIZES = {
    size.name: size
    for size in (
        Size("mini", ModelConfig(32, 2, 6, 32, 96), 6, 2, 4, 4e-3, 20, 4),
        Size("tiny", ModelConfig(64, 4, 6, 64, 176), 6, 2, 4, 3e-3, 50, 4),
        Size("deep", ModelConfig(64, 4, 12, 64, 176), 6, 2, 4, 3e-3, 50, 4),
        Size("wide", ModelConfig(128, 4, 6, 128, 352), 6, 2, 8, 2e-3, 100, 4),
        # CheckFree's small dimensions, context and rate (its Table 4); bytes for tokens and batches are ours.
        Size("small", ModelConfig(512, 8, 12, 512, 1376), 4, 4, 16, 6e-4, 500, 4),
    )
}


@dataclass(frozen=True, slots=True)
class Kept:
    """A whole model at one step: per stage weights and both moments [3n], updates, rate factor, last squared norm."""

    step: int
    states: tuple[Tensor, ...]
    scalars: tuple[tuple[int, float, float], ...]

    @property
    def size_bytes(self) -> int:
        return sum(state.numel() * state.element_size() for state in self.states)

    def as_plain(self) -> list[Any]:
        """For torch.save, to be read by `from_plain` with nothing unpickled but tensors and numbers."""
        return [self.step, [state.cpu() for state in self.states], [list(three) for three in self.scalars]]

    @classmethod
    def from_plain(cls, plain: list[Any]) -> Kept:
        step, states, scalars = plain
        return cls(step, tuple(states), tuple((int(one), float(two), float(three)) for one, two, three in scalars))


class WholeModel:
    """Stages 0..S with initial weights of `seed`; `swap`: odd microbatches take CheckFree+'s route while training, in
    every `swap_every`-th iteration.

    `halves` cuts every microbatch in two, as redundant computation has to for want of memory.
    """

    def __init__(
        self, size: Size, corpus: Corpus, seed: int, device: str = "cpu", swap: bool = False, halves: bool = False,
        swap_every: int = 1,
    ) -> None:  # fmt: skip
        self.size, self.corpus, self.seed, self.device = size, corpus, seed, torch.device(device)
        self.swap, self.halves, self.swap_every = swap, halves, swap_every
        self.microbatches = size.microbatches * (2 if halves else 1)
        self.stages = [
            Stage(size.config, size.stages, index, size.optimiser(), self.microbatches, device)
            for index in range(size.stages + 1)
        ]
        for stage in self.stages:
            stage.initialise(seed, commit_name(0))
        self._between = BoundaryTensors(size.config, size.encodings, seed, self.device)
        self.step = 0
        self.omitted: tuple[int, ...] = ()
        """Stages that routes leave out, and that learn nothing meanwhile."""

    @property
    def blocks(self) -> list[Stage]:
        return self.stages[1:]

    def train(self, iteration: int) -> float:
        """One committed step on the data of `iteration`, which goes on after a rollback; mean loss in nats per byte.

        Raises StageFault when training has exploded.
        """
        attempt = (0, iteration)
        losses = [
            self._microbatch(attempt, number, tokens) for number, tokens in enumerate(self._training_tokens(iteration))
        ]
        learning = [stage for number, stage in enumerate(self.stages) if number not in self.omitted]
        for stage in learning:
            stage.reduce(attempt)
        self.step += 1
        for stage in learning:
            stage.apply(StageVersion(self.step, commit_name(self.step), attempt), skipped=False)
        return sum(losses) / len(losses)

    def validate(self) -> float:
        """Mean loss in nats per byte on the same held-out windows each time, in normal order."""
        size = self.size
        batches = [
            validation_batch(self.corpus, VALIDATION_SEED, number, size.sequences, size.config.context)
            for number in range(size.validation_microbatches)
        ]
        return sum(self.loss_of(batch) for batch in batches) / len(batches)

    def loss_of(self, windows: Bytes) -> float:
        """Of windows [B, T + 1], in normal order."""
        windows_bt = torch.from_numpy(windows).long()
        visits = route(self.size.stages, 0, False, self.omitted)
        x, tokens = self._forward(visits, ((0, 0), 0), windows_bt[:, :-1], save=False)
        return self.stages[visits[-1]].evaluate(x, windows_bt[:, 1:], tokens)

    def forward_again(self, iteration: int) -> None:
        """The forward pass of every block stage once more and nothing kept: what redundant computation adds to a step
        (Bamboo, section 5: each node also runs its successor's)."""
        for number, tokens in enumerate(self._training_tokens(iteration)):
            self._forward(route(self.size.stages, number, self.swap), ((0, iteration), number), tokens[:, :-1], False)

    def keep(self) -> Kept:
        return Kept(
            self.step,
            tuple(stage.state(EXPORTED).clone() for stage in self.stages),
            tuple((stage.updates, stage.rate_factor, stage.norm_squared) for stage in self.stages),
        )

    def restore(self, kept: Kept) -> None:
        for stage, state, (updates, rate_factor, norm_squared) in zip(self.stages, kept.states, kept.scalars):
            stage.state(EXPORTED).copy_(state)
            stage.become(version_of(kept.step), updates, rate_factor, norm_squared)
        self.step = kept.step

    def _training_tokens(self, iteration: int) -> list[Tensor]:
        size, found = self.size, []
        for number in range(size.microbatches):
            batch = training_batch(self.corpus, self.seed, iteration, number, size.sequences, size.config.context)
            tokens = torch.from_numpy(batch).long()
            found += list(tokens.chunk(2)) if self.halves else [tokens]
        return found

    def _microbatch(self, attempt: tuple[int, int], number: int, tokens: Tensor) -> float:
        visits = route(self.size.stages, number, self.swap and attempt[1] % self.swap_every == 0, self.omitted)
        x, its_tokens = self._forward(visits, (attempt, number), tokens[:, :-1], save=True)
        last = len(visits) - 1
        lesson = self.stages[0].learn((attempt, number, last), x, tokens[:, 1:], its_tokens)
        made = lesson.gradient
        for visit in range(last - 1, -1, -1):
            assert made is not None
            gradient = self._between.gradient(made, (attempt[1], number, visit + 1))
            again = None if visit else tokens[:, :-1]
            made = self.stages[visits[visit]].backward((attempt, number, visit), gradient, again).gradient
        return lesson.loss

    def _forward(
        self, visits: Sequence[int], microbatch: tuple[tuple[int, int], int], tokens_bt: Tensor, save: bool
    ) -> tuple[Tensor, Tensor]:
        """What the last visit gets: activation, and its tokens. `microbatch`: attempt and number."""
        x, tokens = tokens_bt, tokens_bt
        for visit, index in enumerate(visits[:-1]):
            made = self.stages[index].forward((*microbatch, visit), x, save and visit > 0, tokens if visit else None)
            x, tokens = self._between.activation(made, tokens)
        return x, tokens


def commit_name(step: int) -> str:
    return f"lab-{step}"


def version_of(step: int) -> StageVersion:
    return StageVersion(step, commit_name(step), (-1, 0))
