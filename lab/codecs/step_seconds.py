"""Seconds of a steady step of the model that the contest is about, by line and row.

The model, the batch and the first line are those of Protocol NanoGPT (Pluralis 2026): 203 million parameters, eight
stages of one layer, 512 sequences of 1,024 tokens a step. Nine volunteers hold a stage each. Seconds are the bound that
protocol/lines calculates, times what a step was measured to take of its bound. A swarm cannot be measured with all 512
microbatches here: nine volunteers would move 19 GB for a step with bfloat16.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from math import log
from pathlib import Path
from typing import Final

from ftnode.lab.codecs.plan import Row, Scale
from ftnode.models.config import ModelConfig
from ftnode.node.manifests.presets import preset
from ftnode.protocol.lines.stage_work import FLOAT64_SHARE, update_operations
from ftnode.protocol.lines.step_estimate import Line, estimate
from ftnode.protocol.manifest.parse import Batch, Manifest
from ftnode.protocol.words.errors import UserError

ERRORS = "lab_codecs"

LINES: Final = {
    "200/200Mbit+50ms": Line(200e6 / 8, 200e6 / 8, 0.05),
    "20/100Mbit+30ms": Line(20e6 / 8, 100e6 / 8, 0.03),
}
"""Theirs, and those of homes."""
MODEL: Final = ModelConfig(dim=1024, heads=8, layers=8, context=1024, hidden=2736, vocabulary=50304)
"""203.7 million parameters with its embedding and LM head."""
SEQUENCES: Final = 512
"""Of a step, each a microbatch."""
DEVICE_TFLOPS: Final = 40.0
"""About half of the peak in bfloat16 of a consumer's card as the RTX 3090 or 4080. Taken, not measured."""
STEP_OF_BOUND: Final = 1.3
"""docs/explanation/thin-lines.md: what a step of five volunteers took, of what lines of 20/100 Mbit/s allow."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a step took of its bound: `ratio`, where tensors had so many bytes. `line`: one of LINES, or "" where it
    counts for all."""

    line: str
    tensor_bytes: int
    ratio: float
    source: str


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """`seconds`: `ratio` times the `bound`, and the `update`. `way`: what a volunteer is busy with in the bound.
    `tensor_bytes`: of an activation of one microbatch."""

    seconds: float
    bound: float
    ratio: float
    update: float
    way: str
    tensor_bytes: int


ASSUMED: Final = Measured("", 983_040, STEP_OF_BOUND, "docs/explanation/thin-lines.md")


def read_measured(path: Path) -> Measured:
    """Out of what `ftnode lab lines --out` wrote. Raises UserError: 66 where there is none, 65 for another file."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        up, down = found["asked"]["rates"]
        delay = found["asked"]["delay_seconds"]
        size, ratio = int(found["tensor_bytes"]["forward"]), float(found["ratio"])
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give a lines.json of ftnode lab lines", 66) from None
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is no lines.json; give what ftnode lab lines --out has written", 65) from None
    ways = {(one.up, one.down, one.delay_seconds): name for name, one in LINES.items()}
    line = ways.get((up, down, delay), "")
    if not line or size < 1:
        raise UserError(f"{path} is of another line; measure on one of {', '.join(LINES)}", 65)
    return Measured(line, size, ratio, path.name)


def manifest_of(row: Row, scale: Scale) -> Manifest:
    """Of the large model with this row's codec. A subspace has the same share of the coordinates as in `scale`."""
    config = MODEL.in_subspace(row.subspace * MODEL.dim // scale.start.config.dim) if row.subspace else MODEL
    start = preset("medium")
    sizes = {name: getattr(config, name) for name in asdict(start.model)}
    return replace(
        start,
        model=replace(start.model, **sizes),
        batch=Batch(microbatches=SEQUENCES, sequences=1),
        optimiser=replace(start.optimiser, kind=row.optimiser),
        pipeline=replace(
            start.pipeline,
            stages=config.layers,
            window=SEQUENCES,
            live_activations=SEQUENCES,
            boundary=row.boundary,
            boundary_gradients=row.encodings[1],
        ),
    )


def seconds_of(manifest: Manifest, line: str, device_tflops: float, measured: Sequence[Measured]) -> StepSeconds:
    """With the ratio that was `measured` on this line, of tensors whose size is nearest to ours. Nothing travels while
    Muon updates."""
    found = estimate(manifest, LINES[line], device_tflops * 1e12)
    size = manifest.boundary_bytes.forward
    candidates = [one for one in measured if one.line in ("", line)] or [ASSUMED]
    nearest = min(candidates, key=lambda one: abs(log(one.tensor_bytes / size)))
    update = update_operations(manifest, 1) / (device_tflops * 1e12 * FLOAT64_SHARE)
    if manifest.optimiser.kind != "muon":
        update = 0.0
    return StepSeconds(nearest.ratio * found.seconds + update, found.seconds, nearest.ratio, update, found.way, size)
