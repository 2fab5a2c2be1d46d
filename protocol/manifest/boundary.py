"""How the numbers of a boundary tensor are encoded, and how many bytes they take then.

A boundary tensor has one row per token: `width` numbers. Where the model has a subspace, the tokens themselves come
behind the numbers of activations, since every stage adds what is fixed of them.

float64, float32 and bfloat16 are sent number by number. The others cut a row into blocks, each with a scale of its own:
all scales first, then the numbers, `bits` each, without gaps. No block reaches over the end of a row, so that no token
learns of another one through a scale.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import Final

from ftnode.protocol.words.types import Direction

PLAIN_BITS: Final = {"float64": 64, "float32": 32, "bfloat16": 16}
BLOCK_BITS: Final = {"int8": 8, "int4": 4}
ENCODINGS: Final = (*PLAIN_BITS, *BLOCK_BITS)
SCALE_BYTES: Final = 2
"""A bfloat16, little-endian."""
BLOCK_MAX: Final = 128
"""Numbers. A power of two, for the rotation."""
TOKENS_SHORT: Final = 1 << 16
"""Up to so many tokens of a vocabulary take two bytes each, more take four."""
BLOCK_MIN: Final = 16
"""In a manifest. With smaller blocks, the scales would cost what the numbers save."""
_SOUND: Final = bytes(range(0x71))
"""High bytes of scales from 0 to just below 2**99. Those above have another sign, are no numbers, or would overflow."""


def block_numbers(width: int) -> int:
    """Numbers of one block: the largest power of two that divides a row, and is not above BLOCK_MAX."""
    return min(BLOCK_MAX, width & -width)


def scale_bytes(encoding: str, rows: int, width: int) -> int:
    """Of `rows` × `width` numbers, the bytes that are scales. They come first."""
    return 0 if encoding in PLAIN_BITS else SCALE_BYTES * rows * (width // block_numbers(width))


def encoded_bytes(encoding: str, rows: int, width: int) -> int:
    """Of `rows` × `width` numbers, scales included. Raises KeyError for an encoding that is none."""
    bits = (PLAIN_BITS | BLOCK_BITS)[encoding]
    return scale_bytes(encoding, rows, width) + rows * width * bits // 8


def token_bytes(vocabulary: int) -> int:
    """Of one token as it travels, an unsigned number, little-endian."""
    return 2 if vocabulary <= TOKENS_SHORT else 4


def sound_tokens(content: bytes | bytearray | memoryview, vocabulary: int) -> bool:
    """Whether all tokens are of the vocabulary."""
    tokens = array("H" if token_bytes(vocabulary) == 2 else "I", bytes(content))
    if sys.byteorder == "big":
        tokens.byteswap()
    return max(tokens, default=-1) < vocabulary


def sound_scales(content: bytes | bytearray | memoryview) -> bool:
    """Whether all scales are finite, not negative, and small enough that no number behind them overflows."""
    return not bytes(content)[1::SCALE_BYTES].translate(None, _SOUND)


@dataclass(frozen=True, slots=True)
class BoundaryBytes:
    """Of one boundary tensor in either direction: activations go forward, their gradients backward."""

    forward: int
    backward: int
    forward_scales: int = 0
    """So many of them, the first ones, are scales."""
    backward_scales: int = 0
    forward_tokens: int = 0
    """So many of them, the last ones, are tokens."""
    vocabulary: int = 0
    """Of these."""

    @classmethod
    def encoded(cls, encodings: tuple[str, str], rows: int, width: int, vocabulary: int = 0) -> BoundaryBytes:
        """Of `rows` × `width` numbers in the encodings of the two directions. `vocabulary`: of the tokens that go
        forward with them, one a row; 0: none do."""
        forward, backward = (encoded_bytes(encoding, rows, width) for encoding in encodings)
        forward_scales, backward_scales = (scale_bytes(encoding, rows, width) for encoding in encodings)
        tokens = rows * token_bytes(vocabulary) if vocabulary else 0
        return cls(forward + tokens, backward, forward_scales, backward_scales, tokens, vocabulary)

    def of(self, direction: Direction) -> int:
        return self.forward if direction is Direction.FORWARD else self.backward

    def scales_of(self, direction: Direction) -> int:
        return self.forward_scales if direction is Direction.FORWARD else self.backward_scales

    def tokens_in(self, direction: Direction) -> slice:
        """Where they are."""
        return slice(self.forward - self.forward_tokens, self.forward) if direction is Direction.FORWARD else slice(0)

    @property
    def largest(self) -> int:
        """What a slot has room for."""
        return max(self.forward, self.backward)

    @property
    def both(self) -> int:
        return self.forward + self.backward
