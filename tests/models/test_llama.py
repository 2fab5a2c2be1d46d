"""The staged model against two independent ones: Hugging Face's, and plain autograd through the whole."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ftnode.models import llama
from ftnode.models.stage import Stage
from tests.models.tiny import CONFIG, LAST_VISIT, MICROBATCHES, run_microbatch, stages, windows


def staged_logits(swarm: list[Stage], tokens_bt: Tensor) -> Tensor:
    x = swarm[0].forward(((0, 0), 0, 0), tokens_bt, save=False)
    for stage in swarm[1:]:
        x = stage.forward(((0, 0), 0, stage.index), x, save=False)
    head = llama.head_weights(CONFIG, swarm[0].layout.of(swarm[0].weights))
    return llama.logits(x, head, CONFIG).cpu()


def named(swarm: list[Stage], rows: list[Tensor]) -> dict[str, Tensor]:
    return {
        name: stage.layout.view(row, name).cpu() for stage, row in zip(swarm, rows) for name in stage.layout.entries
    }


def reference(swarm: list[Stage]) -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=CONFIG.vocabulary, hidden_size=CONFIG.dim, intermediate_size=CONFIG.hidden,
        num_hidden_layers=CONFIG.layers, num_attention_heads=CONFIG.heads, num_key_value_heads=CONFIG.heads,
        max_position_embeddings=CONFIG.context, rms_norm_eps=CONFIG.norm_eps, tie_word_embeddings=False,
        rope_parameters={"rope_type": "default", "rope_theta": CONFIG.rope_theta}, attn_implementation="eager",
    )  # fmt: skip
    model: torch.nn.Module = transformers.LlamaForCausalLM(config).float()
    missing, unexpected = model.load_state_dict(
        {name: weight.clone() for name, weight in named(swarm, [stage.weights for stage in swarm]).items()},
        strict=False,
    )
    assert not missing and not unexpected
    return model


def roughen(swarm: list[Stage]) -> None:
    """Weights far from their small initial values, so that a wrong convention shows."""
    generator = torch.Generator().manual_seed(3)
    for stage in swarm:
        stage.weights.add_(torch.randn(stage.layout.size, generator=generator).to(stage.device), alpha=0.2)


def test_logits_equal_transformers() -> None:
    swarm = stages()
    roughen(swarm)
    tokens_bt = windows(0)[:, :-1]
    with torch.no_grad():
        expected = reference(swarm)(tokens_bt).logits
    torch.testing.assert_close(staged_logits(swarm, tokens_bt), expected, rtol=1e-5, atol=1e-5)


def test_gradients_of_the_pipeline_equal_autograd_through_transformers() -> None:
    swarm = stages()
    roughen(swarm)
    model = reference(swarm)
    losses = [run_microbatch(swarm, microbatch) for microbatch in range(MICROBATCHES)]
    for microbatch, loss in enumerate(losses):
        tokens = windows(microbatch)
        expected = llama.mean_loss(model(tokens[:, :-1]).logits, tokens[:, 1:])
        assert loss == pytest.approx(expected.item(), abs=1e-5)
        (expected / MICROBATCHES).backward()
    ours = named(swarm, [stage.gradient for stage in swarm])
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(ours[name], parameter.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_evaluation_is_the_loss_without_a_gradient() -> None:
    swarm = stages()
    tokens = windows(0)
    expected = float(llama.mean_loss(staged_logits(swarm, tokens[:, :-1]), tokens[:, 1:]))
    x = swarm[0].forward(((0, 0), 0, 0), tokens[:, :-1], save=False)
    for stage in swarm[1:]:
        x = stage.forward(((0, 0), 0, stage.index), x, save=False)
    assert swarm[0].evaluate(x, tokens[:, 1:]) == pytest.approx(expected, abs=1e-6)
    assert all(not stage.gradient.any() and not stage.saved for stage in swarm)
    assert len(swarm) == LAST_VISIT
