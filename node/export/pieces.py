"""Bytes from one file to another, a piece at a time."""

from __future__ import annotations

from typing import BinaryIO, Final

from ftnode.models.rounding import Writes

PASS_BYTES: Final = 1 << 22


def pass_on(source: BinaryIO, into: Writes, count: int) -> None:
    """Raises EOFError where the source is shorter."""
    while count:
        piece = source.read(min(count, PASS_BYTES))
        if not piece:
            raise EOFError("weights end in the middle of a tensor")
        into.write(piece)
        count -= len(piece)


def write_zeros(into: Writes, count: int) -> None:
    for start in range(0, count, PASS_BYTES):
        into.write(bytes(min(PASS_BYTES, count - start)))
