"""How many bytes numbers take in each encoding. No torch here: whoever keeps a copy only has to know its size."""

from __future__ import annotations

from typing import Final

ENCODINGS: Final = ("raw", "bfloat16", "int8")
BLOCK_NUMBERS: Final = 256
"""A scale of 4 bytes for 256 of one byte: 1.6 % on top."""


def encoded_bytes(n: int, encoding: str, number_bytes: int = 4) -> int:
    """Size of `n` encoded numbers, which had `number_bytes` each before, and have them when raw.

    Raises ValueError for an unknown encoding or a negative n.
    """
    if n < 0:
        raise ValueError(f"{n} numbers cannot be encoded")
    if encoding == "raw":
        return number_bytes * n
    if encoding == "bfloat16":
        return 2 * n
    if encoding == "int8":
        return 4 * blocks(n) + n
    raise ValueError(f"an encoding is one of {', '.join(ENCODINGS)}, not {encoding}")


def blocks(n: int) -> int:
    """Blocks of `n` numbers, the last of which may not be full."""
    return -(-n // BLOCK_NUMBERS)
