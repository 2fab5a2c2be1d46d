"""What moments can be, whatever was learnt: those that others lend are looked at before they count.

Adam's are means of gradients and of their squares. So by Cauchy and Schwarz, in every place and after t updates,

    |m| ≤ (1 - b1) · sqrt((1 - q^t) / ((1 - b2) · (1 - q))) · sqrt(v),   q = b1² / b2,

which is at most 7.3 · sqrt(v) for b1 = 0.9 and b2 = 0.999. The gradient of a stage is clipped before. So the norm of
all first moments, Muon's momentum among them, is at most `clip`, and the sum of all second ones its square. Blends of
moments keep to the same bounds, since the root is concave.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf, sqrt
from typing import Final

import torch
from torch import Tensor

from ftnode.models.faults import StageFault
from ftnode.models.optimiser import ADAM, OptimiserConfig, Parameter
from ftnode.models.tensors import pieces

SLACK: Final = 1.01
"""Every number was rounded at each update."""
UNDERFLOW: Final = 1e-15
"""A first moment as small as this may be all that is left: the square of its gradient was none in float32."""


def ratio_max(config: OptimiserConfig, updates: int) -> float:
    """The largest |m| / sqrt(v) after so many updates; infinite where there is no bound."""
    q = config.beta1**2 / config.beta2 if config.beta2 else inf
    if q < 1:  # what a blend has seen is a mean, so that the bound for any number is taken
        return (1 - config.beta1) / sqrt((1 - config.beta2) * (1 - q))
    terms = float(sum(q**n for n in range(updates))) if updates < 1000 and q < 2 else inf
    return (1 - config.beta1) * sqrt(terms / (1 - config.beta2))


def require_credible(parameters: Iterable[Parameter], config: OptimiserConfig, updates: int, stage: int) -> None:
    """Raises StageFault for moments that no training makes."""
    ratio, means, squares = SLACK * ratio_max(config, updates), 0.0, 0.0
    for parameter in parameters:
        means += _total(parameter.moments[0], squared=True)
        if parameter.rule != ADAM:
            continue
        m, v = (each.reshape(-1) for each in parameter.moments)
        for m_p, v_p in zip(pieces(m), pieces(v)):
            if bool((v_p < 0).any()):
                raise StageFault("a second moment is negative", stage)
            if ratio < inf and bool((m_p.abs() > v_p.sqrt() * ratio + UNDERFLOW).any()):
                raise StageFault("a first moment is larger than the second one allows", stage)
        squares += _total(v, squared=False)
    if config.clip and max(means, squares) > (SLACK * config.clip) ** 2:
        raise StageFault("moments are larger than those of clipped gradients", stage)


def _total(x: Tensor, squared: bool) -> float:
    total = 0.0
    for part in pieces(x.reshape(-1)):
        numbers = part.to(torch.float64)
        total += float((numbers * numbers if squared else numbers).sum())
    return total
