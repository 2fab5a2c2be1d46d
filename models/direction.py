"""Which way an activation points, in a few small whole numbers by which two of them can be compared (rule 42).

The mean over all places of a microbatch is much the same for each microbatch: a stage adds some of the same to every
token. It is projected with fixed random signs (Achlioptas 2003), which keeps angles roughly whatever the width.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import Final

import numpy as np
import torch
from torch import Tensor

NUMBERS: Final = 16
LARGEST: Final = 127
"""The length of what is told, so that each number fits into a byte."""


def direction(x: Tensor) -> Tensor:
    """[NUMBERS], float32, of an activation [..., S] on any device. One pass. Nothing waits for the device."""
    mean_s = x.detach().reshape(-1, x.shape[-1]).mean(0, dtype=torch.float32)
    return mean_s @ _signs(x.shape[-1], x.device)


def rounded(numbers: Sequence[float]) -> tuple[int, ...]:
    """As a vector of length LARGEST; all zeros for what has no length."""
    size = sqrt(sum(number * number for number in numbers))
    return tuple(round(LARGEST * (number / size)) if 0 < size < float("inf") else 0 for number in numbers)


@lru_cache(maxsize=4)
def _signs(width: int, device: torch.device) -> Tensor:
    """[S, NUMBERS], each 1 or -1."""
    bits = np.random.Philox(key=width).random_raw(width) >> np.arange(NUMBERS, dtype=np.uint64)[:, None] & np.uint64(1)
    return torch.from_numpy(1.0 - 2.0 * bits.T.astype(np.float32)).contiguous().to(device)
