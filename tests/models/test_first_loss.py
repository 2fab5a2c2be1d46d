"""The loss of a run before its first step is that of transformers, on the same text and from the same files."""

from __future__ import annotations

import io
import json
import re
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ftnode.models import llama
from ftnode.models.huggingface import huggingface_config
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion
from ftnode.node.export.widened import write_widened
from tests.models.families import FAMILIES, saved
from tests.models.test_families import CONTEXT, STAGES, config_of
from tests.models.test_first_weights import layers_of, opened

TEXTS = 32


def windows(seed: int) -> Tensor:
    """[B, T + 1]."""
    return torch.randint(256, (3, CONTEXT + 1), generator=torch.Generator().manual_seed(seed))


def theirs(folder: Path, dtype: torch.dtype) -> list[float]:
    """Of transformers, which reads the files itself, in this type."""
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="eager").eval()
    with torch.no_grad():
        wide = torch.promote_types(dtype, torch.float32)
        return [
            llama.mean_loss(model(text[:, :-1]).logits.to(wide), text[:, 1:]).item()
            for text in map(windows, range(TEXTS))
        ]


def begun(folder: Path, model: Any, products: str = "") -> list[Stage]:
    """All stages, as a node begins them."""
    checkpoint, stages = opened(folder), []
    for index in range(STAGES + 1):
        stage = Stage(config_of(model), STAGES, index, OptimiserConfig(1e-3, 10), 1, "cpu", products)
        stage.begin_with(layers_of(checkpoint, index), StageVersion(0, "lineage", (-1, 0)))
        stages.append(stage)
    return stages


def ours(stages: list[Stage]) -> list[float]:
    found = []
    for text in map(windows, range(TEXTS)):
        x = text[:, :-1]
        for stage in stages:
            x = stage.forward(((0, 1), 0, stage.index), x, False)
        found.append(stages[0].evaluate(x, text[:, 1:]))
    return found


def furthest(ones: list[float], others: list[float]) -> float:
    return max(abs(one - other) for one, other in zip(ones, others, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_in_float32_the_loss_is_that_of_transformers(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model = saved(name, tmp_path, dtype)
    assert furthest(ours(begun(tmp_path, model)), theirs(tmp_path, torch.float32)) < 1e-5


def mean(found: list[float]) -> float:
    return sum(found) / len(found)


def away(ones: list[float], others: list[float]) -> float:
    """Root mean square."""
    return sqrt(mean([(one - other) ** 2 for one, other in zip(ones, others, strict=True)]))


@pytest.mark.parametrize("name", FAMILIES)
def test_products_in_bfloat16_are_no_further_from_exact_than_transformers(name: str, tmp_path: Path) -> None:
    """transformers rounds the residual stream, norms, RoPE and logits to bfloat16, too; here only what is multiplied is
    rounded. Either is about 2e-3 from float64 on one text (root mean square), so means of many are compared. Those of
    transformers and of ours differ by 1.1e-3 at most, more than half of which is transformers' own."""
    model = saved(name, tmp_path, torch.bfloat16)
    exact, rounded = theirs(tmp_path, torch.float64), theirs(tmp_path, torch.bfloat16)
    found = ours(begun(tmp_path, model, "bfloat16"))
    print(f"{name}: from float64 {away(found, exact):.2e}, transformers {away(rounded, exact):.2e}; means differ by "
          f"{mean(found) - mean(rounded):.2e}, from float64 by {mean(found) - mean(exact):.2e}")  # fmt: skip
    assert mean(found) == pytest.approx(mean(rounded), abs=1.5e-3)
    assert mean(found) == pytest.approx(mean(exact), abs=1e-3)
    assert away(found, exact) < 1.3 * away(rounded, exact)


def exported(stages: list[Stage], model: Any, out: Path, dtype: str) -> None:
    """As `ftnode export` writes it."""
    out.mkdir()
    config, files = config_of(model), {}
    for stage in stages:
        flat = io.BytesIO(stage.weights.numpy().tobytes())
        name = f"model-{stage.index}.safetensors"
        with (out / name).open("wb") as file:
            write_widened(flat, file, config, STAGES, stage.index, dtype)
        files |= dict.fromkeys(stage.layout.entries, name)
    (out / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (out / "config.json").write_text(json.dumps(huggingface_config(config, 0, dtype)))


@pytest.mark.parametrize(("dtype", "within"), [("float32", 0.0), ("bfloat16", 1.5e-2), ("float16", 2e-3)])
@pytest.mark.parametrize("name", ["llama-3", "smollm", "qwen-2"])
def test_a_run_from_an_export_has_the_loss_of_the_run_before(
    name: str, dtype: str, within: float, tmp_path: Path
) -> None:
    """In float32 the very same. Else each weight is off by 2^-9 (bfloat16) or 2^-12 (float16) of itself at most."""
    model = saved(name, tmp_path / "model")
    first = begun(tmp_path / "model", model)
    exported(first, model, tmp_path / "out", dtype)
    again = begun(tmp_path / "out", model)
    for before, after in zip(first, again, strict=True):
        limit = {"float32": 0.0, "bfloat16": 2.0**-8, "float16": 2.0**-11}[dtype]
        assert bool(((after.weights - before.weights).abs() <= limit * before.weights.abs() + 1e-7 * (limit > 0)).all())
    print(f"{name} {dtype}: {furthest(ours(first), ours(again)):.2e}")
    assert furthest(ours(first), ours(again)) <= within


@pytest.mark.parametrize("value", [65520.0, -1e6])
def test_a_weight_beyond_float16_is_one_line_and_no_infinity(value: float, tmp_path: Path) -> None:
    model = saved("llama-2", tmp_path / "model")
    stages = begun(tmp_path / "model", model)
    stages[1].weights[7] = 65504.0
    exported(stages, model, tmp_path / "largest", "float16")
    stages[1].weights[7] = value
    with pytest.raises(OverflowError, match=re.escape(f"a weight of {value:g} is no number of float16")):
        exported(stages, model, tmp_path / "out", "float16")
