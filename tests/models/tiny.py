"""A model small enough for tests, and stages of it."""

from __future__ import annotations

import torch
from torch import Tensor

from ftnode.models.config import ModelConfig
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion

CONFIG = ModelConfig(dim=16, heads=2, layers=4, context=12, hidden=24, vocabulary=32)
OPTIMISER = OptimiserConfig(learning_rate=1e-2, steps=20, weight_decay=0.1, warmup_steps=2, clip=0.0)
STAGES = 2
LAST_VISIT = STAGES + 1
MICROBATCHES = 3
ATTEMPT = (0, 1)
DEVICE = ["cpu"]
"""Of the test that runs."""


def stages(
    optimiser: OptimiserConfig = OPTIMISER, seed: int = 5, config: ModelConfig = CONFIG, products: str = "float32",
    compiled: bool = False,
) -> list[Stage]:  # fmt: skip
    """On the device that the test is for (conftest.py)."""
    made = [
        Stage(config, STAGES, index, optimiser, MICROBATCHES, DEVICE[0], products, compiled)
        for index in range(STAGES + 1)
    ]
    for stage in made:
        stage.initialise(seed, "lineage")
    return made


def windows(microbatch: int) -> Tensor:
    """[B, T + 1] tokens."""
    generator = torch.Generator().manual_seed(microbatch)
    return torch.randint(CONFIG.vocabulary, (2, CONFIG.context + 1), generator=generator)


def run_microbatch(swarm: list[Stage], microbatch: int, attempt: tuple[int, int] = ATTEMPT, save: bool = True) -> float:
    """Forward and backward through all stages, explicitly at every boundary; returns the loss."""
    tokens = windows(microbatch)
    x = swarm[0].forward((attempt, microbatch, 0), tokens[:, :-1], save)
    inputs = []
    for stage in swarm[1:]:
        inputs.append(x)
        x = stage.forward((attempt, microbatch, stage.index), x, save)
    lesson = swarm[0].learn((attempt, microbatch, LAST_VISIT), x, tokens[:, 1:])
    gradient = lesson.gradient
    for stage in reversed(swarm[1:]):
        assert gradient is not None
        again = None if save else inputs[stage.index - 1]
        gradient = stage.backward((attempt, microbatch, stage.index), gradient, again).gradient
    assert gradient is not None
    swarm[0].backward((attempt, microbatch, 0), gradient, tokens[:, :-1])
    return lesson.loss


def run_step(
    swarm: list[Stage], step: int, attempt: tuple[int, int] = ATTEMPT, order: range = range(MICROBATCHES)
) -> float:
    """A whole step, committed; returns the mean loss."""
    losses = [run_microbatch(swarm, microbatch, attempt) for microbatch in order]
    for stage in swarm:
        stage.reduce(attempt)
        stage.apply(StageVersion(step, f"commit-{step}", attempt), skipped=False)
    return sum(losses) / len(losses)
