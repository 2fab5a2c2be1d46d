"""A contest of milliseconds, for the codecs lab's tests, and results that nobody has measured."""

from __future__ import annotations

from typing import Any

from ftnode.lab.codecs.plan import Contestant, Row, Scale
from ftnode.models.config import ModelConfig

MICRO = Scale(
    name="micro",
    start=Contestant("", ModelConfig(16, 2, 4, 16, 24), 4, 2, 2, 5e-3, 2, 1),
    rows=(Row("bfloat16", "adam"), Row("int8", "muon", 8)),
    vocabulary=256,
    target=0.0,
    steps_max=12,
    validate_every=2,
    below_trigram=False,
)
TRIGRAM = {"corpus": "", "loss": 4.0, "priors": [1.0, 2.0], "tokens": 9, "vocabulary": 256, "targets": 8}


def result(row: Row, seed: int, steps: float | None) -> dict[str, Any]:
    return {
        "row": row.name, **row.described(), "seed": seed,
        "rate": 4e-3, "hidden": 688, "parameters": 6_328_320, "steps_trained": 500, "steps": steps,
        "target": 3.6, "lowest": 3.7 + seed / 10, "processor_seconds_per_step": 1.5, "curve": [[0, 8.0], [10, 7.0]],
    }  # fmt: skip
