"""Adam (Kingma & Ba 2014)."""

from __future__ import annotations

from ftnode.models.optimiser import OptimiserConfig, Parameter, Turn, learning_rate_at
from ftnode.models.tensors import pieces, take_root


def adam(parameter: Parameter, config: OptimiserConfig, turn: Turn) -> None:
    """Moments: exp_avg, exp_avg_sq. Any shape."""
    rate = learning_rate_at(config, turn.step) * turn.rate_factor
    correct_m, correct_v = 1 / (1 - config.beta1**turn.count), 1 / (1 - config.beta2**turn.count)
    parameter.decay(config, rate)
    flat = (each.view(-1) for each in (parameter.weights, *parameter.moments, parameter.gradient))
    for weights_p, m_p, v_p, gradient_p in zip(*map(pieces, flat)):
        m_p.mul_(config.beta1).add_(gradient_p * (1 - config.beta1))
        v_p.mul_(config.beta2).add_((gradient_p * gradient_p).mul_(1 - config.beta2))
        update_p = m_p * correct_m
        update_p.div_(take_root(v_p * correct_v).add_(config.eps)).mul_(rate)
        weights_p.sub_(update_p)
