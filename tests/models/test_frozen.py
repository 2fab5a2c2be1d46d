"""A model that exists, of which a part is trained, or adapters: as transformers computes it, and nothing else moves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ftnode.models import llama
from ftnode.models.config import ModelConfig
from ftnode.models.first_weights import Checkpoint, open_checkpoint
from ftnode.models.frozen import frozen_bytes
from ftnode.models.huggingface import read_config
from ftnode.models.low_copy import copied_numbers
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.parameters import is_trained
from ftnode.models.stage import BEFORE, Stage, StageVersion
from tests.models.families import saved
from tests.models.test_families import ATTEMPT, STAGES, step, tokens
from tests.models.test_first_weights import layers_of
from tests.models.tiny import DEVICE

OPTIMISER = OptimiserConfig(1e-2, 10, clip=0.0, weight_decay=0.1)
LORA = {"lora": 3, "lora_alpha": 6}
TRAINED: list[dict[str, Any]] = [{"train": "norms+mlp"}, {"train": "last 1 layer"}, {"train": "last 3 layers"}, LORA]


def begun(folder: Path, products: str = "float32", **part: Any) -> list[Stage]:
    """All stages with the weights in `folder`, of which `part` is trained."""
    checkpoint = open_checkpoint(folder, read_config(folder).model)
    return [stage_of(checkpoint, index, replace(checkpoint.config, **part), products) for index in range(STAGES + 1)]


def stage_of(checkpoint: Checkpoint, index: int, config: ModelConfig, products: str = "float32") -> Stage:
    stage = Stage(config, STAGES, index, OPTIMISER, 1, DEVICE[0], products)
    stage.begin_with(layers_of(checkpoint, index), StageVersion(0, "lineage", BEFORE), seed=4)
    return stage


def disturb(stages: list[Stage]) -> None:
    """Adapters that give something, as after some steps."""
    generator = torch.Generator().manual_seed(2)
    for stage in stages:
        stage.weights.add_(torch.randn(stage.weights.shape, generator=generator).to(stage.device), alpha=0.2)


def commit(stages: list[Stage], number: int = 1) -> None:
    for stage in stages:
        stage.reduce(ATTEMPT)
        stage.apply(StageVersion(number, f"c{number}", ATTEMPT), skipped=False)


def rows(stages: list[Stage], which: str) -> dict[str, Tensor]:
    """Each trained tensor's row: its weights, or its gradient."""
    return {
        name: stage.layout.view(getattr(stage, which), name).cpu() for stage in stages for name in stage.layout.entries
    }


def merged(model: torch.nn.Module, adapters: dict[str, Tensor], scale: float = 2.0) -> dict[str, Tensor]:
    """The model's parameters with what adapters add, differentiable."""
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for name in [name for name in found if name.replace(".weight", ".lora_A.weight") in adapters]:
        narrow, wide = (adapters[name.replace(".weight", f".{half}.weight")] for half in ("lora_A", "lora_B"))
        found[name] = found[name] + scale * wide @ narrow
    return found


@pytest.mark.parametrize("part", TRAINED[:3], ids=str)
@pytest.mark.parametrize("name", ["llama-3", "qwen-2"])
def test_a_part_has_the_gradients_of_transformers(name: str, part: dict[str, Any], tmp_path: Path) -> None:
    model, windows = saved(name, tmp_path), tokens()
    stages = begun(tmp_path, **part)
    loss = step(stages, windows)
    expected = llama.mean_loss(model(windows[:, :-1]).logits, windows[:, 1:])
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    expected.backward()
    ours = rows(stages, "gradient")
    theirs = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert ours.keys() == {name for name in theirs if is_trained(stages[0].config, name)} < theirs.keys()
    for tensor, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[tensor], rtol=1e-4, atol=1e-6, msg=tensor)


@pytest.mark.parametrize("name", ["llama-3", "qwen-2"])
def test_adapters_add_what_they_say_and_have_its_gradients(name: str, tmp_path: Path) -> None:
    model, windows = saved(name, tmp_path), tokens()
    stages = begun(tmp_path, **LORA)
    before = llama.mean_loss(model(windows[:, :-1]).logits, windows[:, 1:]).item()
    assert step(stages, windows) == pytest.approx(before, abs=1e-5), "they begin with nothing"
    stages = begun(tmp_path, **LORA)
    disturb(stages)
    adapters = {tensor: row.clone().requires_grad_() for tensor, row in rows(stages, "weights").items()}
    given = torch.func.functional_call(model, merged(model, adapters), (windows[:, :-1],))
    expected = llama.mean_loss(given.logits, windows[:, 1:])
    assert abs(expected.item() - before) > 1e-2
    assert step(stages, windows) == pytest.approx(expected.item(), abs=1e-5)
    expected.backward()
    for tensor, gradient in rows(stages, "gradient").items():
        torch.testing.assert_close(gradient, adapters[tensor].grad, rtol=1e-4, atol=1e-5, msg=tensor)
    assert len(adapters) == 4 * 7 * 2


@pytest.mark.parametrize("part", TRAINED, ids=str)
def test_nothing_else_moves(part: dict[str, Any], tmp_path: Path) -> None:
    """Stages with nothing to train take part in a step, and are updated to a next version."""
    saved("llama-2", tmp_path)
    stages = begun(tmp_path, **part)
    trained = {name: row.clone() for name, row in rows(stages, "weights").items()}
    kept = {name: stage.frozen.view(name).clone() for stage in stages for name in stage.plan.frozen(stage.index)}
    losses = []
    for number in range(1, 4):
        losses.append(step(stages, tokens()))
        commit(stages, number)
    assert losses[2] < losses[0]
    assert all(not torch.equal(row, trained[name]) for name, row in rows(stages, "weights").items())
    assert all(
        torch.equal(stage.frozen.view(name), kept[name]) for stage in stages for name in stage.plan.frozen(stage.index)
    )
    assert all(stage.version is not None and stage.version.step == 3 for stage in stages)


@pytest.mark.parametrize("part", [{}, *TRAINED], ids=str)
@pytest.mark.parametrize("name", ["llama-3", "smollm"])
def test_what_is_frozen_is_kept_as_products_read_it_and_counted_before_it_is_there(
    part: dict[str, Any], name: str, tmp_path: Path
) -> None:
    saved(name, tmp_path, torch.bfloat16)
    exact, low = begun(tmp_path, **part), begun(tmp_path, "bfloat16", **part)
    for stage in low:
        entries = stage.plan.frozen(stage.index)
        assert stage.frozen.bytes + (stage.tensors.low.bytes if stage.tensors.low else 0) == (
            frozen_bytes(entries, not stage.index, 4, 2) + 2 * copied_numbers(stage.layout.entries, not stage.index)
        )
        assert {row.dtype for row in map(stage.frozen.view, entries) if row.dim() == 2 and stage.index} <= {
            torch.bfloat16
        }
    assert step(low, tokens()) == pytest.approx(step(exact, tokens()), abs=0.05)


def test_weights_from_elsewhere_need_the_frozen_ones_of_the_model(tmp_path: Path) -> None:
    """A stage whose adapters come from a donor. The planted bug: what is frozen is not read."""
    saved("llama-2", tmp_path)
    checkpoint = open_checkpoint(tmp_path, read_config(tmp_path).model)
    stages = begun(tmp_path, **LORA)
    disturb(stages)
    expected = step(stages, tokens())
    for forgotten in (False, True):
        taker = Stage(stages[1].config, STAGES, 1, OPTIMISER, 1, DEVICE[0], "float32")
        if not forgotten:
            taker.take_frozen(layers_of(checkpoint, 1))
        taker.state("all").copy_(stages[1].state("all"))
        taker.become(StageVersion(0, "lineage", BEFORE), 0, 1.0, 0.0)
        for stage in (stages[0], stages[2]):
            stage.discard(None)
        loss = step([stages[0], taker, stages[2]], tokens())
        assert (loss == expected) is not forgotten


def test_a_planted_bug_in_the_scale_of_an_adapter_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = llama.product

    def wrong(x: Tensor, weights: Tensor, adapter: Any, bias: Tensor | None = None) -> Tensor:
        return right(x, weights, adapter and replace(adapter, scale=1.0), bias)

    monkeypatch.setattr(llama, "product", wrong)
    with pytest.raises(AssertionError):
        test_adapters_add_what_they_say_and_have_its_gradients("llama-3", tmp_path)
