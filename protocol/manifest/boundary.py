"""How the numbers of a boundary tensor are encoded, and how many bytes they take then.

A boundary tensor has one row per token: `width` numbers. float64, float32 and bfloat16 are sent number by number. The
others cut a row into blocks, each with a scale of its own: all scales first, then the numbers, `bits` each, without
gaps. No block reaches over the end of a row, so that no token learns of another one through a scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ftnode.protocol.words.types import Direction

PLAIN_BITS: Final = {"float64": 64, "float32": 32, "bfloat16": 16}
BLOCK_BITS: Final = {"int8": 8, "int4": 4}
ENCODINGS: Final = (*PLAIN_BITS, *BLOCK_BITS)
SCALE_BITS: Final = 16
"""A bfloat16."""
BLOCK_MAX: Final = 128
"""Numbers. A power of two, for the rotation."""


def block_numbers(width: int) -> int:
    """Numbers of one block: the largest power of two that divides a row, and is not above BLOCK_MAX."""
    return min(BLOCK_MAX, width & -width)


def encoded_bytes(encoding: str, rows: int, width: int) -> int:
    """Of `rows` × `width` numbers. Raises KeyError for an encoding that is none."""
    numbers = rows * width
    if encoding in PLAIN_BITS:
        return numbers * PLAIN_BITS[encoding] // 8
    scales = numbers // block_numbers(width)
    return (SCALE_BITS * scales + BLOCK_BITS[encoding] * numbers) // 8


@dataclass(frozen=True, slots=True)
class BoundaryBytes:
    """Of one boundary tensor in either direction: activations go forward, their gradients backward."""

    forward: int
    backward: int

    def of(self, direction: Direction) -> int:
        return self.forward if direction is Direction.FORWARD else self.backward

    @property
    def largest(self) -> int:
        """What a slot has room for."""
        return max(self.forward, self.backward)

    @property
    def both(self) -> int:
        return self.forward + self.backward
