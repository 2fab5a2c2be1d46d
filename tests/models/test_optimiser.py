"""Adam against torch's, the schedule against its definition."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ftnode.models.optimiser import OptimiserConfig, adam, clip_factor, learning_rate_at
from ftnode.models.tensors import PASS_NUMBERS

CONFIG = OptimiserConfig(learning_rate=1e-3, steps=100, weight_decay=0.1, warmup_steps=10, minimum_factor=0.1)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_equals_torch(weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    size = PASS_NUMBERS + 1000  # two pieces
    rows = torch.zeros(4, size)
    rows[0] = torch.randn(size, generator=generator)
    theirs = torch.nn.Parameter(rows[0].clone())
    reference = torch.optim.AdamW(
        [theirs], lr=1e-3, betas=(CONFIG.beta1, CONFIG.beta2), eps=CONFIG.eps, weight_decay=weight_decay
    )
    for count in range(1, 21):
        rows[3] = torch.randn(size, generator=generator)
        theirs.grad = rows[3].clone()
        reference.step()
        adam(rows, CONFIG, 1e-3, count, weight_decay)
    torch.testing.assert_close(rows[0], theirs.detach(), rtol=1e-6, atol=1e-6)


def test_adam_does_not_depend_on_threads_or_on_where_pieces_end() -> None:
    size = 3 * PASS_NUMBERS // 2
    rows = torch.randn(4, size, generator=torch.Generator().manual_seed(1))
    rows[2].abs_()
    whole, halves = rows.clone(), rows.clone()
    adam(whole, CONFIG, 1e-3, 3, 0.1)
    adam(halves[:, : size // 3], CONFIG, 1e-3, 3, 0.1)
    adam(halves[:, size // 3 :], CONFIG, 1e-3, 3, 0.1)
    assert not torch.equal(whole[0], rows[0])
    assert torch.equal(whole, halves)


def test_the_schedule() -> None:
    assert learning_rate_at(CONFIG, 1) == pytest.approx(1e-4)
    assert learning_rate_at(CONFIG, 10) == pytest.approx(1e-3)
    assert learning_rate_at(CONFIG, 55) == pytest.approx(1e-3 * (0.1 + 0.9 / 2))
    assert learning_rate_at(CONFIG, 100) == pytest.approx(1e-4)
    assert learning_rate_at(CONFIG, 1000) == pytest.approx(1e-4)
    assert learning_rate_at(replace(CONFIG, decay="constant"), 90) == 1e-3
    assert learning_rate_at(replace(CONFIG, warmup_steps=0), 1) < 1e-3


def test_clip_factor() -> None:
    assert clip_factor(CONFIG, 4.0) == 0.5
    assert clip_factor(CONFIG, 0.25) == 1.0
    assert clip_factor(replace(CONFIG, clip=0.0), 1e6) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [{"learning_rate": 0.0}, {"beta1": 1.0}, {"decay": "linear"}, {"weight_decay": -1.0}, {"eps": float("nan")}],
)
def test_impossible_numbers_are_refused(wrong: dict[str, float | str]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        replace(CONFIG, **wrong)  # type: ignore[arg-type]
