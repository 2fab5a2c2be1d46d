"""Models of the LLaMA family as transformers computes them: loss, and all gradients."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from ftnode.models import llama
from ftnode.models.config import ModelConfig
from ftnode.models.huggingface import NoModel, described, huggingface_config
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage, StageVersion
from tests.models.families import FAMILIES, made
from tests.models.tiny import DEVICE

STAGES, CONTEXT = 2, 24
ATTEMPT = (0, 1)


def tokens(seed: int = 0) -> Tensor:
    """[B, T + 1]."""
    return torch.randint(256, (3, CONTEXT + 1), generator=torch.Generator().manual_seed(seed))


def staged(model: torch.nn.Module, config: ModelConfig) -> list[Stage]:
    """The same weights in stages of ours."""
    named = dict(model.named_parameters())
    stages = [
        Stage(config, STAGES, index, OptimiserConfig(1e-3, 10), 1, DEVICE[0], "float32") for index in range(STAGES + 1)
    ]
    for stage in stages:
        for name in stage.layout.entries:
            stage.layout.view(stage.weights, name).copy_(named.pop(name).detach().float())
        stage.become(StageVersion(0, "", (-1, 0)), 0, 1.0, 0.0)
    assert not named, "every parameter has a place"
    return stages


def step(stages: list[Stage], windows: Tensor) -> float:
    x = stages[0].forward((ATTEMPT, 0, 0), windows[:, :-1], True)
    for stage in stages[1:]:
        x = stage.forward((ATTEMPT, 0, stage.index), x, True)
    lesson = stages[0].learn((ATTEMPT, 0, STAGES + 1), x, windows[:, 1:])
    gradient = lesson.gradient
    for stage in reversed(stages[1:]):
        assert gradient is not None
        gradient = stage.backward((ATTEMPT, 0, stage.index), gradient, None).gradient
    assert gradient is not None
    stages[0].backward((ATTEMPT, 0, 0), gradient, windows[:, :-1])
    return lesson.loss


def config_of(model: torch.nn.Module) -> ModelConfig:
    return replace(described(model.config.to_dict()).model, context=CONTEXT)  # type: ignore[operator, union-attr]


@pytest.mark.parametrize("name", FAMILIES)
def test_loss_and_gradients_equal_transformers(name: str) -> None:
    model, windows = made(name), tokens()
    stages = staged(model, config_of(model))
    loss = step(stages, windows)
    expected = llama.mean_loss(model(windows[:, :-1]).logits, windows[:, 1:])
    assert loss == pytest.approx(expected.item(), abs=1e-5)
    expected.backward()
    ours = {name: stage.layout.view(stage.gradient, name).cpu() for stage in stages for name in stage.layout.entries}
    for parameter_name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[parameter_name], parameter.grad, rtol=1e-4, atol=1e-6, msg=parameter_name)


def test_heads_of_keys_in_the_wrong_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: head h reads the keys of h % G instead of h // (H / G)."""
    right = torch.nn.functional.scaled_dot_product_attention

    def wrong(q: Tensor, k: Tensor, v: Tensor, is_causal: bool, enable_gqa: bool) -> Tensor:
        times = q.shape[1] // k.shape[1]
        return right(q, k.repeat(1, times, 1, 1), v.repeat(1, times, 1, 1), is_causal=is_causal)

    model, windows = made("llama-3"), tokens()
    stages = staged(model, config_of(model))
    expected = llama.mean_loss(model(windows[:, :-1]).logits, windows[:, 1:]).item()
    monkeypatch.setattr(llama.F, "scaled_dot_product_attention", wrong)
    assert abs(step(stages, windows) - expected) > 1e-3


@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_written_is_read_as_the_same(name: str) -> None:
    found = described(made(name).config.to_dict())
    again = described(huggingface_config(found.model, 0, "float32", found.architecture))
    assert (again.model, again.architecture) == (found.model, found.architecture)
    assert again.ends == (0,)


REFUSED = [
    ("llama-3", {"model_type": "mixtral"}, "is of a mixtral; taken are llama, mistral, qwen2"),
    ("llama-3", {"hidden_act": "gelu"}, "has hidden_act gelu, which ftnode does not compute"),
    ("llama-3", {"attention_bias": True}, "has attention_bias,"),
    ("llama-3", {"mlp_bias": True}, "has mlp_bias,"),
    ("llama-3", {"quantization_config": {"bits": 4}}, "has a quantization_config,"),
    ("llama-3", {"num_local_experts": 8}, "has num_local_experts,"),
    ("llama-3", {"architectures": ["LlamaForSequenceClassification"]}, "has architectures"),
    ("llama-3", {"rope_parameters": {"rope_type": "longrope", "factor": 2.0}}, "has RoPE scaling longrope; taken are"),
    ("yarn", {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "RoPE scaling yarn with mscale"),
    ("llama-3", {"rope_parameters": {"rope_type": "linear"}}, "has no factor"),
    ("llama-3", {"num_attention_heads": 3}, "heads (3) must be a multiple of kv_heads"),
    ("mistral", {"sliding_window": 16}, "has a sliding_window of 16,"),
    ("qwen-2", {"use_sliding_window": True}, "has a sliding window in use,"),
]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": ["llama"]},
        {"rms_norm_eps": 10**400},
        {"rope_parameters": {"rope_type": ["linear"]}},
        {"rope_parameters": {"rope_type": "llama3", "factor": 10**400}},
        {"layer_types": 5, "model_type": "qwen2"},
    ],
    ids=lambda change: "-".join(change),
)
def test_values_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    name = "qwen-2" if "layer_types" in change else "llama-3"
    with pytest.raises(NoModel, match=r"config\.json"):
        described(made(name).config.to_dict() | change)


@pytest.mark.parametrize(("name", "change", "says"), REFUSED, ids=[says for _, _, says in REFUSED])
def test_what_is_not_computed_is_refused_with_its_name(name: str, change: dict[str, Any], says: str) -> None:
    with pytest.raises(NoModel, match=re.escape(says)):
        described(made(name).config.to_dict() | change)


def test_a_mistral_that_says_nothing_has_a_window() -> None:
    found = made("mistral").config.to_dict()
    del found["sliding_window"]
    with pytest.raises(NoModel, match="a sliding_window of 4096"):
        described(found)
