"""`ftnode lab optimisers`: the loss after equally many steps by kind and rate, and what an update costs.

A model of eight block stages of one layer trains in one process, by the swarm's own stages, batches and schedule, on
Python's standard library as bytes. Every kind has the same seeds: the same initial weights and the same batches. The
loss is that of held-out windows, the same for all.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from statistics import mean, median
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from ftnode.lab.recovery.whole_model import Size, WholeModel
from ftnode.models.config import ModelConfig
from ftnode.models.data import load_corpus
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion
from ftnode.models.state_plan import KINDS
from ftnode.models.whole_gradient import Staged

LAYERS: Final = 8
MICROBATCHES: Final = 2
SEQUENCES: Final = 8
CONTEXT: Final = 128
"""2,048 tokens in a step."""
WARMUP_STEPS: Final = 20
VALIDATION_MICROBATCHES: Final = 8
MEASURED: Final = 5
"""Updates of which the median counts."""
POINTS: Final = 8
"""At which the loss is taken."""


@dataclass(frozen=True)
class Trained(Size):
    """A model with an optimiser of its own."""

    settings: OptimiserConfig | None = None

    def optimiser(self) -> OptimiserConfig:
        return self.settings or super().optimiser()


def parse_trial(text: str) -> tuple[str, float]:
    """(kind, rate) of KIND:RATE. Raises ValueError."""
    kind, _, rate = text.partition(":")
    OptimiserConfig(float(rate), 1, kind=kind)
    return kind, float(rate)


def run(
    json_output: bool, dim: int, steps: int, seeds: int, trials: tuple[tuple[str, float], ...], dims: tuple[int, ...]
) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures. `trials`: (kind, rate). `dims`: of the models of whose
    block an update is timed."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        result = {
            "dim": dim, "steps": steps, "seeds": seeds,
            "losses": [trained(dim, steps, seeds, kind, rate) for kind, rate in trials],
            "updates": [update_seconds(each) for each in dims],
        }  # fmt: skip
    finally:
        torch.set_num_threads(threads)
    if json_output:
        print(json.dumps(result, indent=2))
    else:
        for table in tables(result):
            Console().print(table)
    return result


def trained(dim: int, steps: int, seeds: int, kind: str, rate: float) -> dict[str, Any]:
    """Mean losses over the seeds, at POINTS steps and the last."""
    points = sorted({max(1, steps * point // POINTS) for point in range(1, POINTS + 1)})
    by_seed = [_losses(_size(dim, steps, kind, rate), seed, points) for seed in range(1, seeds + 1)]
    curve = {step: mean(losses[step] for losses in by_seed) for step in points}
    return {"kind": kind, "rate": rate, "curve": curve, "last": [losses[steps] for losses in by_seed]}


def update_seconds(dim: int) -> dict[str, Any]:
    """Of one block of this width, for each kind: of the processor, since the machine may be busy."""
    found: dict[str, Any] = {"dim": dim}
    for kind in KINDS:
        size = _size(dim, 1, kind, 1e-3)
        stage = Stage(size.config, LAYERS, 1, size.optimiser(), 1, "cpu")
        stage.initialise(1, "lab")
        taken = [_timed_update(stage, step) for step in range(1, MEASURED + 2)]
        found[kind] = median(taken[1:])
        found["parameters"] = stage.layout.size
    return found


def tables(result: dict[str, Any]) -> list[Table]:
    losses = Table(title=f"Loss in nats per byte, dim {result['dim']}, mean of {result['seeds']} seeds")
    steps = list(result["losses"][0]["curve"]) if result["losses"] else []
    for name in ("optimiser", "rate", *(f"step {step}" for step in steps), "each seed at the end"):
        losses.add_column(name, justify="right")
    for row in result["losses"]:
        last = ", ".join(f"{loss:.3f}" for loss in row["last"])
        losses.add_row(row["kind"], f"{row['rate']:g}", *(f"{loss:.3f}" for loss in row["curve"].values()), last)
    updates = Table(title="Processor seconds of an update of one block")
    for name in ("dim", "parameters", "adam", "muon"):
        updates.add_column(name, justify="right")
    for row in result["updates"]:
        updates.add_row(str(row["dim"]), f"{row['parameters']:,}", f"{row['adam']:.4f}", f"{row['muon']:.4f}")
    return [losses, updates]


def _size(dim: int, steps: int, kind: str, rate: float) -> Trained:
    model = ModelConfig(dim, max(1, dim // 32), LAYERS, CONTEXT, -(-8 * dim // 3 // 16) * 16)
    settings = OptimiserConfig(rate, steps, beta2=0.99, warmup_steps=WARMUP_STEPS, kind=kind)
    return Trained(
        f"{kind}-{dim}", model, LAYERS, MICROBATCHES, SEQUENCES, rate, WARMUP_STEPS, VALIDATION_MICROBATCHES,
        settings=settings,
    )  # fmt: skip


def _losses(size: Size, seed: int, points: list[int]) -> dict[int, float]:
    model, found = WholeModel(size, load_corpus(""), seed), {}
    for step in range(1, points[-1] + 1):
        model.train(step)
        if step in points:
            found[step] = model.validate()
    return found


def _timed_update(stage: Stage, step: int) -> float:
    """Of a gradient whose norm and hash are known."""
    gradient = torch.randn(stage.layout.size, generator=torch.Generator().manual_seed(step))
    staged = Staged(gradient, 1.0, 1.0, "")
    started = time.process_time()
    stage.apply(StageVersion(step, "lab", (0, step)), False, staged)
    return time.process_time() - started
