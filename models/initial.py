"""Initial weights: a pure function of (seed, stage), the same on every machine.

Integers from a counter-seeded generator, exact sums, one multiplication: no vectorised logarithm or cosine whose last
bit depends on the processor. Four 16-bit integers add up to nearly a normal number (Irwin-Hall, cut at 3.5 deviations).
"""

from __future__ import annotations

import hashlib
from math import prod, sqrt
from typing import Final

import torch
from torch import Tensor

from ftnode.models.config import ModelConfig
from ftnode.models.llama import RESIDUAL_OUTPUTS
from ftnode.models.tensors import PASS_NUMBERS, Layout

DEVIATION: Final = 0.02
_LEVELS: Final = 1 << 16
_TERMS: Final = 4
_UNIT: Final = sqrt(12 / (_TERMS * (_LEVELS**2 - 1)))
"""Makes a sum of four integers below 65536 have deviation 1."""


def initialise(flat: Tensor, layout: Layout, config: ModelConfig, seed: int, stage: int) -> None:
    """Fill the flat weights [layout.size] of any precision: norms 1, biases 0, matrices of deviation 0.02, some
    smaller."""
    name_of_stream = hashlib.blake2b(f"ftnode/initial/{seed}/{stage}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(name_of_stream, "little") >> 1)
    for name, (offset, shape) in layout.entries.items():
        if len(shape) == 1:
            flat[offset : offset + prod(shape)] = 0.0 if name.endswith(".bias") else 1.0
        else:
            residual = name.endswith(RESIDUAL_OUTPUTS)
            deviation = DEVIATION / sqrt(2 * config.layers) if residual else DEVIATION
            for piece in torch.split(flat[offset : offset + prod(shape)], PASS_NUMBERS):
                piece.copy_(_nearly_normal(piece.numel(), generator, flat.dtype) * (deviation * _UNIT))


def _nearly_normal(count: int, generator: torch.Generator, dtype: torch.dtype) -> Tensor:
    draws = torch.randint(_LEVELS, (_TERMS, count), generator=generator, dtype=torch.int32)
    return (2 * draws.sum(0) - _TERMS * (_LEVELS - 1)).to(dtype) / 2
