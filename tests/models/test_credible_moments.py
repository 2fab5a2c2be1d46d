"""Moments that training makes keep to their bounds, and others are refused."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ftnode.models.adam import adam
from ftnode.models.credible_moments import ratio_max, require_credible
from ftnode.models.faults import StageFault
from ftnode.models.muon import muon
from ftnode.models.optimiser import OptimiserConfig, Parameter, Turn, clip_factor

CONFIG = OptimiserConfig(1e-3, 1000, 0.9, 0.999, clip=1.0)
SHAPE = (8, 16)


def trained(config: OptimiserConfig, steps: int, seed: int, dtype: torch.dtype = torch.float32) -> list[Parameter]:
    """Two parameters after so many updates, with gradients that are now and then a thousand times as large, all the
    same, or tiny."""
    chance = torch.Generator().manual_seed(seed)
    made = [torch.zeros((6, *SHAPE), dtype=dtype) for _ in range(2)]
    first = Parameter("adam", made[0][0], made[0][1], (made[0][2], made[0][3]))
    second = Parameter("muon" if config.kind == "muon" else "adam", made[1][0], made[1][1], tuple(made[1][2:4]))
    if config.kind == "muon":
        second = replace(second, moments=(made[1][2],))
    for step in range(1, steps + 1):
        for each in (first, second):
            scale = 10.0 ** float(torch.randint(-12, 4, (1,), generator=chance))
            each.gradient.copy_(torch.randn(SHAPE, generator=chance) * scale if step % 7 else scale * torch.ones(SHAPE))
        norm = sum(float((each.gradient.double() ** 2).sum()) for each in (first, second))
        for each in (first, second):
            each.gradient.mul_(clip_factor(config, norm))
            (muon if each.rule == "muon" else adam)(each, config, Turn(step, step, 1.0))
    return [first, second]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("steps", [1, 2, 30, 400])
@pytest.mark.parametrize(
    "config", [CONFIG, replace(CONFIG, beta2=0.95), replace(CONFIG, kind="muon"), replace(CONFIG, beta2=0.7)]
)
def test_what_training_makes_is_credible(config: OptimiserConfig, steps: int, seed: int) -> None:
    require_credible(trained(config, steps, seed), config, steps, 1)


@pytest.mark.parametrize("seed", range(4))
def test_a_blend_of_what_training_makes_is_credible(seed: int) -> None:
    one, other = trained(CONFIG, 3, seed), trained(CONFIG, 50, seed + 100)
    for mine, its in zip(one, other):
        for moment, another in zip(mine.moments, its.moments):
            moment.mul_(0.9).add_(another * 0.1)
    require_credible(one, CONFIG, round(0.9 * 3 + 0.1 * 50), 1)


def test_the_bound_is_reached_by_the_gradients_that_it_is_for() -> None:
    """Those that grow by b2 / b1 from one update to the next, the worst case of Cauchy and Schwarz."""
    m = v = 0.0
    for step in range(200):
        gradient = (CONFIG.beta2 / CONFIG.beta1) ** -(199 - step)
        m, v = 0.9 * m + 0.1 * gradient, 0.999 * v + 0.001 * gradient**2
    assert ratio_max(CONFIG, 200) * 0.999 < m / v**0.5 <= ratio_max(CONFIG, 200) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("which", "lie", "reason"),
    [
        (0, lambda m: m * 30, "larger than the second one allows"),
        (1, lambda v: v / 1e4, "larger than the second one allows"),
        (1, lambda v: -v, "negative"),
        (1, lambda v: v * 1e9, "clipped"),
        (1, torch.zeros_like, "larger than the second one allows"),
    ],
)
def test_what_no_training_makes_is_refused(which: int, lie: object, reason: str) -> None:
    found = trained(CONFIG, 30, 1)
    moment = found[0].moments[which]
    moment.copy_(lie(moment))  # type: ignore[operator]
    with pytest.raises(StageFault, match=reason):
        require_credible(found, CONFIG, 30, 1)


def test_new_moments_are_credible() -> None:
    require_credible(trained(CONFIG, 0, 1), CONFIG, 0, 1)
