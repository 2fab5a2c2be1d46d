"""Stages of which a part is frozen, in the compute process: what is announced, and layers that are not the model's."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import pytest

from ftnode.models.first_weights import layer_names, layer_shapes
from tests.node.compute.computing import CONFIG, STAGES, Direct, Refused

PARTS: list[dict[str, Any]] = [
    {"train": "norms+mlp"}, {"train": "last 1 layer"}, {"lora": 2, "lora_alpha": 4},
]  # fmt: skip


def layers(folder: Path, stage: int, spoil: bool = False) -> dict[str, Any]:
    """Of a model of ones, each in a file of its own."""
    model, rows = Direct(CONFIG).backend.model, []
    for name in layer_names(model, STAGES, stage):
        numbers = sum(prod(shape) for shape in layer_shapes(model, name).values())
        data = b"\0\0\x80\x3f" * numbers
        (folder / name).write_bytes(data)
        sha256 = hashlib.sha256(data[4:] if spoil else data).hexdigest()
        rows.append([sha256, [[str(folder / name), 0, len(data)]]])
    return {"dtype": "float32", "layers": rows}


@pytest.mark.parametrize("products", ["float32", "bfloat16"])
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_no_stage_takes_more_than_is_announced(part: dict[str, Any], products: str, tmp_path: Path) -> None:
    made = Direct(replace(CONFIG, products=products, **part))
    ready = made.backend.ready()
    for stage in range(STAGES + 1):
        made.call("initialise", stage=stage, commit="lineage", first=layers(tmp_path, stage))
    held = [made.backend._stages[stage].bytes for stage in range(STAGES + 1)]
    assert (held[0], max(held[1:])) == (ready["head_bytes"], ready["stage_bytes"])


@pytest.mark.parametrize("op", ["initialise", "install_begin"])
def test_a_layer_that_is_not_the_models_is_said_and_no_stage_is_here(op: str, tmp_path: Path) -> None:
    made = Direct(replace(CONFIG, **PARTS[0]))
    made.backend.ready()
    more = {} if op == "initialise" else {"step": 3, "attempt": [0, 1], "parts": "all", "rate_factor": 1.0}
    with pytest.raises(Refused, match="does not have its hash") as refused:
        made.call(op, stage=1, commit="c", first=layers(tmp_path, 1, spoil=True), **more)
    assert refused.value.kind == "layers"
    assert not made.backend._stages and not made.backend._installs
