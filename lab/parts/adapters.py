"""`ftnode lab adapters`: what training a part of a model costs and saves, and what a lost stage of it is worth.

A model of six block stages is trained on Python's standard library in one process, by the swarm's own stages. It is the
model that exists, and training goes on from it on another text, the library's `encodings`: all weights, or a part, or
adapters. Then a stage is lost, and filled anew as a swarm could: from its neighbours, or with the model's own weights.
Numbers are differences from the undamaged run at the same step, in nats per byte.

Beside that, by arithmetic: what one of two holders of a stage keeps and sends, of two models that people share.
"""

from __future__ import annotations

import encodings
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from ftnode.lab.recovery.rebuilding import WAYS, rebuild
from ftnode.lab.recovery.whole_model import SIZES, Size, WholeModel, version_of
from ftnode.models.config import ModelConfig
from ftnode.models.data import load_corpus
from ftnode.models.stage import Stage
from ftnode.models.state_plan import StatePlan
from ftnode.node.manifests.presets import PRESETS
from ftnode.protocol.lines.stage_work import traffic
from ftnode.protocol.manifest.parse import Batch, Model

LOSSES: Final = ((3,), (1,), (6,), (3, 4))
"""Stages that are lost together."""
AFTER: Final = 40
"""Steps after a loss at which it is looked again."""


@dataclass(frozen=True, slots=True)
class Part:
    """What is trained, and at which rate."""

    name: str
    rate: float
    train: str = "all"
    lora: int = 0


PARTS: Final = (
    Part("all", 3e-4), Part("norms+mlp", 3e-4, train="norms+mlp"), Part("last 2 layers", 3e-4, train="last 2 layers"),
    Part("adapters of rank 8", 3e-3, lora=8),
)  # fmt: skip


SHAPES: Final = {
    "135M": (5, Model(
        vocabulary=49152, dim=576, heads=9, layers=30, context=1024, hidden=1536, rope_theta=1e5, norm_eps=1e-5,
        kv_heads=3, tied=True,
    )),
    "8B": (32, Model(
        vocabulary=128256, dim=4096, heads=32, layers=32, context=1024, hidden=14336, rope_theta=5e5, norm_eps=1e-5,
        kv_heads=8,
    )),
}  # fmt: skip
"""Block stages, and a shape: SmolLM-135M's, and that of Llama 3 with 8 thousand million parameters."""
HOLDERS: Final = 2
UP: Final = 20e6 / 8
"""Bytes a second of a home's line."""


def shares() -> list[dict[str, Any]]:
    """Of one of HOLDERS volunteers with one block stage, the last one: bytes of its weights, gradient and moments, of
    what a newcomer gets from it, and of what it sends in a step; sums as int8."""
    base, rows = PRESETS["small"], []
    for name, (stages, model) in SHAPES.items():
        for part in PARTS:
            manifest = replace(
                base, model=replace(model, train=part.train, lora=part.lora, lora_alpha=2 * part.lora),
                batch=Batch(microbatches=16, sequences=4),
                pipeline=replace(base.pipeline, stages=stages, boundary="int8", sums="int8"),
            )  # fmt: skip
            plan = StatePlan(ModelConfig.of(manifest.model), stages, "adam")
            sent = traffic(manifest, stages, HOLDERS)
            rows.append({
                "model": name, "part": part.name, "memory": plan.held_size(stages), "state": plan.size(stages, "all"),
                "tensors": sent.tensors, "sums": sent.sums, "seconds": sent.total / UP,
            })  # fmt: skip
    return rows


def run(json_output: bool, steps: int, more: int, seeds: int) -> dict[str, Any]:
    """Measure, print tables or JSON, and return the figures. `steps`: of the model that exists; `more`: of a run that
    goes on from it."""
    torch.set_num_threads(1)
    bases = [_existing(steps, seed) for seed in range(seeds)]
    rows = [row for part in PARTS for row in _part(part, bases, more)]
    figures: dict[str, Any] = {
        "size": "tiny",
        "steps": steps,
        "more": more,
        "seeds": seeds,
        "after": AFTER,
        "rows": rows,
        "shares": shares(),
    }
    if json_output:
        print(json.dumps(figures, indent=2))
        return figures
    table = Table("trained", "numbers", "nats before", "nats after", "lost", "from", "at once", f"{AFTER} later")
    for row in rows:
        lost = "+".join(map(str, row["lost"]))
        table.add_row(
            row["part"], f"{row['trained']:,}", f"{row['before']:.3f}", f"{row['learnt']:.3f}", lost, row["way"],
            f"{row['at_once']:+.3f}", f"{row['later']:+.3f}",
        )  # fmt: skip
    sent = Table("model", "trained", "memory, MB", "state, MB", "tensors, MB", "sums, MB", "s at 20 Mbit/s")
    for row in figures["shares"]:
        sizes = (f"{row[name] / 1e6:,.1f}" for name in ("memory", "state", "tensors", "sums"))
        sent.add_row(row["model"], row["part"], *sizes, f"{row['seconds']:,.1f}")
    console = Console()
    console.print(table)
    console.print(sent)
    return figures


def _part(part: Part, bases: list[WholeModel], more: int) -> list[dict[str, Any]]:
    """Means over the seeds."""
    found: dict[tuple[tuple[int, ...], str], list[tuple[float, float]]] = {}
    before, learnt, trained = [], [], 0
    for base in bases:
        model = _goes_on(part, base)
        before.append(model.validate())
        _train(model, more)
        learnt.append(model.validate())
        trained = sum(stage.layout.size for stage in model.stages)
        kept = model.keep()
        clean = _watched(model)
        for lost in LOSSES:
            for way, fill in _ways(model).items():
                model.restore(kept)
                for stage in lost:
                    fill(model, base, stage, frozenset(lost))
                seen = _watched(model)
                found.setdefault((lost, way), []).append((seen[0] - clean[0], seen[1] - clean[1]))
    return [
        {
            "part": part.name, "trained": trained, "before": mean(before), "learnt": mean(learnt), "lost": list(lost),
            "way": way, "at_once": mean(one for one, _ in seen), "later": mean(two for _, two in seen),
        }
        for (lost, way), seen in found.items()
    ]  # fmt: skip


def _existing(steps: int, seed: int) -> WholeModel:
    model = WholeModel(SIZES["tiny"], load_corpus(""), seed)
    _train(model, steps)
    return model


def _goes_on(part: Part, base: WholeModel) -> WholeModel:
    size = base.size
    config = replace(size.config, train=part.train, lora=part.lora, lora_alpha=2 * part.lora)
    other: Size = replace(size, config=config, learning_rate=part.rate)
    model = WholeModel(other, load_corpus(str(Path(encodings.__file__).parent)), base.seed)
    for stage, from_ in zip(model.stages, base.stages):
        _begin(stage, from_)
    return model


def _begin(stage: Stage, base: Stage) -> None:
    """Adapters are those that were drawn."""
    for name in base.layout.entries:
        numbers = base.layout.view(base.weights, name).detach()
        if name in stage.layout.entries:
            stage.layout.view(stage.weights, name).copy_(numbers)
        else:
            stage.frozen.view(name).copy_(numbers)


def _with_first(model: WholeModel, base: WholeModel, index: int, _lost: frozenset[int]) -> None:
    stage = model.stages[index]
    stage.initialise(model.seed, "")
    _begin(stage, base.stages[index])
    stage.become(version_of(model.step), 0, 1.0, 0.0)


def _with_neighbours(model: WholeModel, _base: WholeModel, index: int, lost: frozenset[int]) -> None:
    """As CheckFree does."""
    rebuild(model, index, WAYS["squared-norm"], lost=lost)


def _ways(model: WholeModel) -> dict[str, Callable[[WholeModel, WholeModel, int, frozenset[int]], None]]:
    """Neighbours have a state of the same shape, or nothing to give."""
    alike = len({stage.layout.size for stage in model.blocks}) == 1
    return {"the model": _with_first} | ({"neighbours": _with_neighbours} if alike else {})


def _train(model: WholeModel, steps: int) -> None:
    for _ in range(steps):
        model.train(model.step + 1)


def _watched(model: WholeModel) -> tuple[float, float]:
    """Validation now, and AFTER steps later."""
    now = model.validate()
    _train(model, AFTER)
    return now, model.validate()
