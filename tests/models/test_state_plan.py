"""What a stage's state consists of, by the kind of its optimiser."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import pytest

from ftnode.models.config import ModelConfig
from ftnode.models.parameters import EMBEDDING, FINAL_NORM, LM_HEAD
from ftnode.models.state_plan import KINDS, MOMENTS, StatePlan, rule_of
from ftnode.models.update import RULES
from ftnode.node.manifests.presets import PRESETS
from tests.models.tiny import CONFIG, STAGES

BLOCK = "model.layers.0"


def test_every_rule_has_its_moments() -> None:
    assert RULES.keys() == MOMENTS.keys()


def test_muon_is_for_matrices_of_blocks() -> None:
    for name in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"):
        assert rule_of("muon", f"{BLOCK}.{name}.weight", (16, 16)) == "muon"
        assert rule_of("adam", f"{BLOCK}.{name}.weight", (16, 16)) == "adam"
    for name, shape in (
        (EMBEDDING, (32, 16)), (LM_HEAD, (32, 16)), (FINAL_NORM, (16,)), (f"{BLOCK}.input_layernorm.weight", (16,)),
    ):  # fmt: skip
        assert rule_of("muon", name, shape) == "adam"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", range(STAGES + 1))
@pytest.mark.parametrize("part", ["weights", "optimiser"])
def test_tensors_lie_one_behind_the_other(kind: str, stage: int, part: str) -> None:
    plan, end = StatePlan(CONFIG, STAGES, kind), 0
    for offset, shape in plan.entries(stage, part).values():
        assert offset == end
        end += prod(shape)
    assert end == plan.numbers(stage, part)
    assert plan.numbers(stage, "all") == plan.numbers(stage, "weights") + plan.numbers(stage, "optimiser")
    assert plan.size(stage, part) == 4 * end


def test_adams_moments_are_two_rows_of_the_weights() -> None:
    """As snapshots have them that were written when there was no other kind."""
    plan = StatePlan(CONFIG, STAGES, "adam")
    weights, moments = plan.entries(1, "weights"), plan.entries(1, "optimiser")
    size = plan.numbers(1, "weights")
    assert moments == {
        f"{name}.{moment}": (row * size + offset, shape)
        for row, moment in enumerate(("exp_avg", "exp_avg_sq"))
        for name, (offset, shape) in weights.items()
    }


def test_muon_has_one_moment_for_each_matrix() -> None:
    plan = StatePlan(CONFIG, STAGES, "muon")
    moments = plan.entries(1, "optimiser")
    assert f"{BLOCK}.mlp.up_proj.weight.momentum_buffer" in moments
    assert f"{BLOCK}.input_layernorm.weight.exp_avg_sq" in moments
    assert f"{BLOCK}.mlp.up_proj.weight.exp_avg" not in moments
    norms = 2 * CONFIG.dim * CONFIG.layers_per_stage(STAGES)
    assert plan.numbers(1, "optimiser") == plan.numbers(1, "weights") + norms
    assert plan.entries(0, "optimiser") == StatePlan(CONFIG, STAGES, "adam").entries(0, "optimiser")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", PRESETS)
def test_a_manifest_counts_the_same_bytes(name: str, kind: str) -> None:
    manifest = replace(PRESETS[name], optimiser=replace(PRESETS[name].optimiser, kind=kind))
    plan = StatePlan(ModelConfig.of(manifest.model), manifest.pipeline.stages, kind)
    assert (manifest.head_state_bytes, manifest.stage_state_bytes) == (plan.size(0, "all"), plan.size(1, "all"))
    assert manifest.state_bytes == max(plan.size(0, "all"), plan.size(1, "all"))
    assert manifest.gradient_bytes == max(plan.size(0, "weights"), plan.size(1, "weights"))


PARTS = [
    {"train": "norms+mlp"}, {"train": "last 1 layer"}, {"train": "last 5 layers"}, {"lora": 4, "lora_alpha": 8},
    {"lora": 16, "lora_alpha": 8, "qkv_bias": True}, {"train": "norms+mlp", "tied": True, "qkv_bias": True},
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_manifest_counts_the_same_bytes_of_a_part_of_a_model(part: dict[str, Any], kind: str) -> None:
    """Of block stages the last one has most."""
    base = PRESETS["small"]
    manifest = replace(
        base, optimiser=replace(base.optimiser, kind=kind), model=replace(base.model, kv_heads=4, head_dim=24, **part)
    )
    stages = manifest.pipeline.stages
    plan = StatePlan(ModelConfig.of(manifest.model), stages, kind)
    counted = [plan.size(stage, "all") for stage in range(stages + 1)]
    assert (manifest.head_state_bytes, manifest.stage_state_bytes) == (counted[0], counted[stages])
    assert manifest.stage_state_bytes == max(counted[1:])
    assert manifest.gradient_bytes == max(plan.size(stage, "weights") for stage in range(stages + 1))
    assert (manifest.head_every > 0) is (counted[0] > 0), "nobody keeps copies of a head that is as it was"


def test_what_is_trained_and_what_is_frozen_is_the_model() -> None:
    for part in PARTS[:3]:
        config = replace(CONFIG, **part | ({"train": "last 3 layers"} if "5" in str(part) else {}))
        plan, whole = StatePlan(config, STAGES, "adam"), StatePlan(CONFIG, STAGES, "adam")
        for stage in range(STAGES + 1):
            trained, frozen = plan.entries(stage, "weights"), plan.frozen(stage)
            assert not trained.keys() & frozen.keys() and whole.frozen(stage) == {}
            assert trained.keys() | frozen.keys() == whole.entries(stage, "weights").keys()


def test_adapters_are_updated_by_adam() -> None:
    plan = StatePlan(replace(CONFIG, lora=2, lora_alpha=4), STAGES, "muon")
    assert plan.numbers(1, "optimiser") == 2 * plan.numbers(1, "weights") > 0
    assert plan.numbers(0, "all") == 0


def test_a_stage_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="there is no stage 3"):
        StatePlan(CONFIG, STAGES, "adam").numbers(STAGES + 1, "all")
