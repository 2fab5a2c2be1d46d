"""Adam with decoupled weight decay on flat buffers, and the learning-rate schedule.

Every operation rounds once: no addcmul, no addcdiv, no `alpha=` (which may or may not become a fused multiply-add),
no division by a scalar (CUDA multiplies by its reciprocal instead). So replicas with equal gradients agree to the bit.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import cos, isfinite, pi, sqrt
from typing import Final

import torch
from torch import Tensor

from ftnode.models.tensors import PASS_NUMBERS

DECAYS: Final = ("cosine", "constant")


@dataclass(frozen=True, slots=True)
class OptimiserConfig:
    """Adam (Kingma & Ba 2014) with decay outside the moments (Loshchilov & Hutter 2017). Raises ValueError."""

    learning_rate: float
    steps: int
    """At which the decay has reached `minimum_factor`."""
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup_steps: int = 0
    decay: str = "cosine"
    minimum_factor: float = 0.1
    clip: float = 1.0
    """Largest norm of one stage's gradient; 0 does not clip."""

    def __post_init__(self) -> None:
        for name in ("learning_rate", "eps"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} must be a positive number, not {getattr(self, name)}")
        for name in ("beta1", "beta2", "minimum_factor"):
            if not 0 <= getattr(self, name) <= 1 or (name != "minimum_factor" and getattr(self, name) == 1):
                raise ValueError(f"{name} must lie between 0 and 1, not {getattr(self, name)}")
        for name in ("weight_decay", "clip", "steps", "warmup_steps"):
            if not (isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} must not be negative, not {getattr(self, name)}")
        if self.decay not in DECAYS:
            raise ValueError(f"decay must be one of {', '.join(DECAYS)}, not {self.decay}")


def learning_rate_at(config: OptimiserConfig, step: int) -> float:
    """Of global step 1, 2, ...: linear warm-up, then constant or half a cosine down to `minimum_factor`."""
    if step <= config.warmup_steps:
        return config.learning_rate * step / config.warmup_steps
    if config.decay == "constant":
        return config.learning_rate
    progress = min(1.0, (step - config.warmup_steps) / max(1, config.steps - config.warmup_steps))
    low = config.minimum_factor
    return config.learning_rate * (low + (1 - low) * (1 + cos(pi * progress)) / 2)


def clip_factor(config: OptimiserConfig, norm_squared: float) -> float:
    """What to multiply a gradient with, so that its norm is at most `clip`."""
    norm = sqrt(norm_squared)
    return config.clip / norm if 0 < config.clip < norm else 1.0


def adam(rows: Tensor, config: OptimiserConfig, rate: float, count: int, weight_decay: float) -> None:
    """Update number `count` (from 1) at learning rate `rate`, in place. Rows [4, n]: weights, m, v, gradient."""
    correct_m, correct_v = 1 / (1 - config.beta1**count), 1 / (1 - config.beta2**count)
    with torch.no_grad():
        for piece in torch.split(rows, PASS_NUMBERS, dim=1):
            weights_p, m_p, v_p, gradient_p = piece
            m_p.mul_(config.beta1).add_(gradient_p * (1 - config.beta1))
            v_p.mul_(config.beta2).add_((gradient_p * gradient_p).mul_(1 - config.beta2))
            update_p = m_p * correct_m
            update_p.div_((v_p * correct_v).sqrt_().add_(config.eps)).mul_(rate)
            if weight_decay:
                weights_p.mul_(1 - rate * weight_decay)
            weights_p.sub_(update_p)
