"""Copies of others' stages in this node's own memory: they outlive a compute process (protocol/recovery/copies.py).

A copy lies here as it came, encoded, with the hash of every chunk, and is lent without anybody looking into it.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftnode.protocol.wire.frames import StateHeader


@dataclass(frozen=True, slots=True)
class Copy:
    """A whole copy: its chunks, encoded as the header says, and the hash of each."""

    header: StateHeader
    parts: str
    chunks: tuple[bytearray, ...]
    hashes: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return sum(map(len, self.chunks))


class CopyStore:
    """Stage → what we keep of it. One copy each: a newer one takes its place when it is whole."""

    def __init__(self) -> None:
        self.held: dict[int, Copy] = {}
