"""Copies of others' stages in this node's own memory: they outlive a compute process (protocol/recovery/copies.py).

A copy lies here as it came, encoded, with the hash of every chunk, and is lent without anybody looking into it. Its
digest is known to who lent it and to who gets it in the end: a keeper that lends something else is not believed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from ftnode.protocol.wire.frames import StateHeader
from ftnode.protocol.words.codec import encode_canonical


def copy_digest(stage: int, parts: str, header: StateHeader, hashes: Sequence[bytes]) -> str:
    """Of all that is in a copy: what its header says of it, and each of its chunks, by its hash. Weights, moments and
    counts are all in it."""
    said = (
        header.version, float(header.norm_squared), header.size, header.digest, header.step_count,
        float(header.rate_factor), header.encoding,
    )  # fmt: skip
    return hashlib.blake2b(encode_canonical((stage, parts, *said, tuple(hashes))), digest_size=16).hexdigest()


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
    """Stage → what we keep and lend of it, and what was fetched to take its place."""

    def __init__(self) -> None:
        self.held: dict[int, Copy] = {}
        self.fetched: dict[int, Copy] = {}

    def take(self, stage: int) -> None:
        self.held[stage] = self.fetched.pop(stage)

    def drop(self, stage: int) -> None:
        self.held.pop(stage, None)
        self.fetched.pop(stage, None)
