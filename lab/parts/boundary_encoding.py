"""`ftnode lab encoding`: what it takes to encode and decode boundary tensors, beside the work of a stage.

A block stage of the preset runs one microbatch forward and backward. For that it decodes one activation and one
gradient, and encodes one of each. All of it runs on one thread of the CPU, a round of everything after the other, so
that a machine that is busy with something else slows both sides.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from torch import Tensor

    from ftnode.models.boundary import BoundaryCodec
    from ftnode.models.stage import Stage

ENCODINGS: Final = ("float32", "bfloat16", "int8", "int4")
SHARE_MAX: Final = 0.05
"""Of the stage's work."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one encoding. `seconds`: of all that a stage encodes and decodes for one microbatch."""

    encoding: str
    bits_per_number: float
    seconds: float
    share: float


def run(as_json: bool, preset_name: str = "small", rounds: int = 5) -> dict[str, Any]:
    """Measure, print and return the figures."""
    figures = summary(*measure(preset_name, rounds))
    if as_json:
        print(json.dumps(figures))
    else:
        Console().print(table(figures))
    return figures


def summary(stage: list[float], codecs: dict[str, tuple[float, list[float]]]) -> dict[str, Any]:
    """From the seconds of each round: the stage's, and by encoding its bits per number and its seconds."""
    work = median(stage)
    costs = []
    for encoding, (bits, seconds) in codecs.items():
        share = median(each / whole for each, whole in zip(seconds, stage, strict=True))
        costs.append(Cost(encoding, bits, median(seconds), share))
    return {
        "stage_seconds": work,
        "encodings": [asdict(cost) for cost in costs],
        "passed": all(cost.share <= SHARE_MAX for cost in costs),
    }


def table(figures: dict[str, Any]) -> Table:
    made = Table(title=f"one microbatch forward and backward: {figures['stage_seconds']:.2f} s")
    for name in ("encoding", "bits per number", "encode and decode", "of the stage's work"):
        made.add_column(name, justify="right" if name != "encoding" else "left")
    for cost in figures["encodings"]:
        took = f"{1e3 * cost['seconds']:.1f} ms"
        made.add_row(cost["encoding"], f"{cost['bits_per_number']:.3f}", took, f"{cost['share']:.2%}")
    return made


def measure(preset_name: str, rounds: int) -> tuple[list[float], dict[str, tuple[float, list[float]]]]:
    """Seconds of `rounds` rounds, after one that warms up; see `summary`."""
    import torch

    from ftnode.models.boundary import BoundaryCodec
    from ftnode.models.config import ModelConfig
    from ftnode.models.optimiser import OptimiserConfig
    from ftnode.models.stage import Stage
    from ftnode.node.manifests.presets import preset

    torch.set_num_threads(1)
    manifest, device = preset(preset_name), torch.device("cpu")
    model = ModelConfig.of(manifest.model)
    shape = (manifest.batch.sequences, model.context, model.dim)
    stage = Stage(model, manifest.pipeline.stages, 1, OptimiserConfig(1e-3, 1), rounds + 1, "cpu")
    stage.initialise(1, "")
    x_btd = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    codecs = {
        name: (BoundaryCodec(name, shape, device, dither=False), BoundaryCodec(name, shape, device, dither=True))
        for name in ENCODINGS
    }
    slots = {name: torch.empty(codec.bytes, dtype=torch.uint8) for name, (codec, _) in codecs.items()}
    work: list[float] = []
    seconds: dict[str, list[float]] = {name: [] for name in ENCODINGS}
    for number in range(rounds + 1):
        work.append(_seconds(_train, stage, number, x_btd))
        for name, pair in codecs.items():
            seconds[name].append(_seconds(_carry, pair, x_btd, slots[name], number))
    bits = {name: 8 * len(slot) / x_btd.numel() for name, slot in slots.items()}
    return work[1:], {name: (bits[name], seconds[name][1:]) for name in ENCODINGS}


def _train(stage: Stage, microbatch: int, x_btd: Tensor) -> None:
    key = ((0, 0), microbatch, 1)
    stage.backward(key, stage.forward(key, x_btd, save=True), None)


def _carry(pair: tuple[BoundaryCodec, BoundaryCodec], x_btd: Tensor, slot: Tensor, microbatch: int) -> None:
    for codec in pair:
        codec.encode(x_btd, slot, (microbatch,))
        codec.decode(slot)


def _seconds(action: Callable[..., None], *arguments: object) -> float:
    started = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - started
