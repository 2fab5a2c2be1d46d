"""Muon: a matrix moves along its momentum, all of whose singular values are made about equal.

Jordan et al. 2024, "Muon: An optimizer for hidden layers in neural networks". The update is as large as Adam's usually
is, 0.2 times the rate on average, so that both can share a rate (Liu et al. 2025, "Muon is Scalable for LLM Training",
section 2.2; torch.optim.Muon's `match_rms_adamw`).

The matrix products here are exact. Their factors are rounded to multiples of 2^-25, so products are multiples of 2^-50,
and no sum of them reaches 8: every partial sum fits into the 53 bits of a float64. So neither the order of a sum nor a
fused multiply-add shows, and all machines find the same bits. The error is a hundredth of that in bfloat16, in which
Muon is usually computed.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

import torch
from torch import Tensor

from ftnode.models.optimiser import OptimiserConfig, Parameter, Turn, matrix_rate_at
from ftnode.models.tensors import squared_norm

UPDATE_SIZE: Final = 0.2
"""Root mean square of an update at rate 1."""
COEFFICIENTS: Final = (3.4445, -4.7750, 2.0315)
"""Of the odd polynomial that is applied ITERATIONS times. It takes singular values of 0 to 1.21 to 0 to 1.21, and small
ones up fast; none of the sums below exceeds 4 there."""
ITERATIONS: Final = 5
NORM_MIN: Final = 1e-7
"""A smaller momentum makes a smaller update, down to none for none."""
STEP: Final = 2.0**-25
"""Between two numbers of a factor."""


def muon(parameter: Parameter, config: OptimiserConfig, turn: Turn) -> None:
    """Moments: momentum_buffer. Matrices [A, B]."""
    rate = matrix_rate_at(config, turn.step) * turn.rate_factor
    weights_ab, (momentum_ab,), gradient_ab = parameter.weights, parameter.moments, parameter.gradient
    fresh_ab = gradient_ab * (1 - config.momentum)
    momentum_ab.mul_(config.momentum).add_(fresh_ab)
    direction_ab = orthogonalised((momentum_ab * config.momentum).add_(fresh_ab))  # Nesterov's
    parameter.decay(config, rate)
    weights_ab.sub_(direction_ab.to(weights_ab.dtype).mul_(rate * UPDATE_SIZE * sqrt(max(weights_ab.shape))))


def orthogonalised(g_ab: Tensor) -> Tensor:
    """About U V^T of G = U S V^T, float64, by Newton and Schulz's iteration: singular values of about 0.7 to 1.2."""
    a, b, c = COEFFICIENTS
    tall = g_ab.shape[0] > g_ab.shape[1]
    x_mn = (g_ab.T if tall else g_ab).to(torch.float64, copy=True).contiguous()
    x_mn = _rounded(x_mn.mul_(1 / max(sqrt(squared_norm(x_mn.view(-1))), NORM_MIN)))
    for _ in range(ITERATIONS):
        gram_mm = _rounded(x_mn @ x_mn.T)
        polynomial_mm = _rounded((gram_mm @ gram_mm).mul_(c).add_(gram_mm.mul_(b)))
        x_mn = _rounded((polynomial_mm @ x_mn).add_(x_mn.mul_(a)))
    return x_mn.T if tall else x_mn


def scratch_bytes(shape: tuple[int, ...], number_bytes: int) -> int:
    """Most memory that the update of one such matrix takes besides the stage's own."""
    m, n = sorted(shape)
    return 8 * (2 * m * n + 2 * m * m) + 2 * number_bytes * m * n


def _rounded(x: Tensor) -> Tensor:
    """In place, to a multiple of STEP."""
    return x.mul_(1 / STEP).round_().mul_(STEP)
