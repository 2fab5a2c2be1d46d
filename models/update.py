"""One update of a stage: each parameter by its rule, in place.

Only gradients travel, and the weights of replicas are never compared, so replicas with equal gradients must agree to
the bit afterwards, whatever their processors, threads and cards. Every operation of a rule therefore rounds once, in an
order that is written down: no addcmul, no addcdiv, no `alpha=` (which may or may not become a fused multiply-add), no
division by a scalar (CUDA multiplies by its reciprocal instead), no root of torch's on a processor (`take_root`), and
no sum whose order is the machine's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import torch

from ftnode.models.adam import adam
from ftnode.models.muon import muon
from ftnode.models.optimiser import OptimiserConfig, Parameter, Turn

RULES: Final[dict[str, Callable[[Parameter, OptimiserConfig, Turn], None]]] = {"adam": adam, "muon": muon}
"""As MOMENTS names them (state_plan.py)."""


def update(parameters: Iterable[Parameter], config: OptimiserConfig, turn: Turn) -> None:
    with torch.no_grad():
        for parameter in parameters:
            RULES[parameter.rule](parameter, config, turn)
