"""A step's gradient once it is whole: its norm, what it is clipped with, and its hash.

The numbers themselves are left as they are. A reduction may be repeated, without somebody who died in it, from what
this peer accumulated; so clipping is a factor that `apply` multiplies with, and the hash is that of the product.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ftnode.models.faults import StageFault
from ftnode.models.optimiser import OptimiserConfig, clip_factor
from ftnode.models.tensors import bits_digest, squared_norm

NORM_SQUARED_MAX: Final = torch.finfo(torch.float32).max
"""Beyond it, Adam's squares overflow in float32 and the stage would stand still for ever; far below, training has
exploded. The same in float64, so that runs that are compared skip the same steps."""


@dataclass(frozen=True, slots=True)
class Staged:
    """`flat` · `factor` is what `apply` uses. `norm_squared`: before clipping; `gradient`: hash after it, empty where
    nobody compares it."""

    flat: Tensor
    factor: float
    norm_squared: float
    gradient: str

    def into(self, gradient: Tensor) -> None:
        """Write the clipped gradient there; `gradient` may be `flat` itself."""
        if gradient.data_ptr() != self.flat.data_ptr():
            gradient.copy_(self.flat)
        if self.factor < 1:
            gradient.mul_(self.factor)


def stage_gradient(flat: Tensor, optimiser: OptimiserConfig, stage: int, compared: bool) -> Staged:
    """Flat [n] of the model's precision, on any device. `compared`: the stage has replicas, which must have the same.
    Raises StageFault for a norm that is none."""
    norm_squared = squared_norm(flat)
    if not norm_squared < NORM_SQUARED_MAX:
        raise StageFault(f"the step's gradient has a squared norm of {norm_squared:g}", stage)
    factor = clip_factor(optimiser, norm_squared)
    return Staged(flat, factor, norm_squared, bits_digest(flat, factor) if compared else "")
