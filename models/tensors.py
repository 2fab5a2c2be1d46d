"""Flat buffers of a stage, all of the model's precision, and where each named tensor lies in them.

Norm, clipping, hash, export and blend are then single passes over contiguous memory, whatever the model.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod
from typing import Final

import torch
from torch import Tensor

from ftnode.models.parameters import Entries

PASS_NUMBERS: Final = 1 << 18
"""Numbers per piece of a pass over a flat buffer: 1 MiB, so that scratch stays in cache and memory stays bounded."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each named tensor lies, without gaps; `size`: of all, in numbers."""

    entries: Entries
    size: int

    def view(self, flat: Tensor, name: str) -> Tensor:
        """The named tensor, sharing the memory of `flat` [size]."""
        offset, shape = self.entries[name]
        return flat[offset : offset + prod(shape)].view(shape)

    def joined(self, flat: Tensor, first: str, shape: tuple[int, ...]) -> Tensor:
        """Neighbouring tensors seen as one, from `first` on: q, k and v make one matrix product."""
        offset, _ = self.entries[first]
        return flat[offset : offset + prod(shape)].view(shape)


def digest(flat: Tensor) -> str:
    """BLAKE2b (16 bytes, hex) of the numbers as little-endian bytes in order."""
    return hashlib.blake2b(as_bytes(flat.cpu()), digest_size=16).hexdigest()


def as_bytes(flat: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    if not (flat.is_contiguous() and flat.device.type == "cpu"):
        raise ValueError("only contiguous tensors in host memory have bytes")
    return flat.detach().view(-1).view(torch.uint8).numpy().data


def is_finite(x: Tensor) -> bool:
    """Whether no number is NaN or infinite. One pass: a sum is finite only if every term is.

    A sum that overflows though its terms do not (beyond 3e38 in float32) also counts as broken; it is.
    """
    return bool(torch.isfinite(x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32))))


def squared_norm(flat: Tensor) -> float:
    """Sum of squares of a flat tensor in float64: equal to the bit whatever the processor and its threads.

    Replicas clip by it, each for itself. A dot product adds in an order that depends on the machine; here halves are
    added to each other, number by number.
    """
    total = 0.0
    for piece in torch.split(flat.detach(), PASS_NUMBERS):
        wide = piece.double()
        wide = wide * wide
        while len(wide) > 1:
            half = len(wide) // 2
            rest = wide[2 * half :]
            wide = wide[:half] + wide[half : 2 * half]
            if len(rest):
                wide[0] += rest[0]
        total += float(wide[0]) if len(wide) else 0.0
    return total
