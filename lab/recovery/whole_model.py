"""All stages of a model in one process: the swarm's own Stage objects, routes, batches and optimiser, without a swarm.

The recovery lab trains these. A step is what a swarm's step is: every microbatch along its route, one reduction and one
update per stage. Nothing random happens here, so equal calls give equal numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

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

    @property
    def tokens_per_step(self) -> int:
        return self.microbatches * self.sequences * self.config.context

    def optimiser(self) -> OptimiserConfig:
        """Adam as in the paper's appendix A.2: (0.9, 0.999), no weight decay; constant rate, so that equal losses are
        equally far into a run whatever its length."""
        return OptimiserConfig(
            learning_rate=self.learning_rate, steps=0, beta1=0.9, beta2=0.999, warmup_steps=self.warmup_steps,
            decay="constant", clip=self.clip,
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
        self.step = 0

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
        for stage in self.stages:
            stage.reduce(attempt)
        self.step += 1
        for stage in self.stages:
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
        tokens = torch.from_numpy(windows).long()
        x = tokens[:, :-1]
        visits = route(self.size.stages, 0)
        for visit, index in enumerate(visits[:-1]):
            x = self.stages[index].forward(((0, 0), 0, visit), x, save=False)
        return self.stages[visits[-1]].evaluate(x, tokens[:, 1:])

    def forward_again(self, iteration: int) -> None:
        """The forward pass of every block stage once more and nothing kept: what redundant computation adds to a step
        (Bamboo, section 5: each node also runs its successor's)."""
        for number, tokens in enumerate(self._training_tokens(iteration)):
            x = tokens[:, :-1]
            for visit, index in enumerate(route(self.size.stages, number, self.swap)[:-1]):
                x = self.stages[index].forward(((0, iteration), number, visit), x, save=False)

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
        visits = route(self.size.stages, number, self.swap and attempt[1] % self.swap_every == 0)
        x = tokens[:, :-1]
        for visit, index in enumerate(visits[:-1]):
            x = self.stages[index].forward((attempt, number, visit), x, save=visit > 0)
        last = len(visits) - 1
        lesson = self.stages[0].learn((attempt, number, last), x, tokens[:, 1:])
        gradient = lesson.gradient
        for visit in range(last - 1, 0, -1):
            assert gradient is not None
            gradient = self.stages[visits[visit]].backward((attempt, number, visit), gradient, None).gradient
        assert gradient is not None
        self.stages[0].backward((attempt, number, 0), gradient, tokens[:, :-1])
        return lesson.loss


def commit_name(step: int) -> str:
    return f"lab-{step}"


def version_of(step: int) -> StageVersion:
    return StageVersion(step, commit_name(step), (-1, 0))
