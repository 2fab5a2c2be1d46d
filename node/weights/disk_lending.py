"""A snapshot that is lent: chunk by chunk from the disk, as fast as whoever borrows it takes them.

Between two chunks nothing of it is in memory and nothing is held that others wait for, so that a borrower that reads
slowly costs an open file and no more. The files are open from the first chunk to the last: one that is removed
meanwhile is lent to its end. Its hashes were compared before (known_snapshots.py).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ftnode.models.state_plan import PARTS
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError
from ftnode.node.snapshots.format import KeptSnapshot, SnapshotError, Unreadable, part_header
from ftnode.node.snapshots.store import not_read, part_bytes
from ftnode.node.weights.reading import Chunk, take_slot
from ftnode.protocol.wire.frames import StateHeader

Piece = tuple[bytes, bytes]
"""A chunk and its blake2b."""


@dataclass(frozen=True, slots=True)
class OpenParts:
    """Where the numbers of a snapshot lie, one part behind the other: (descriptor, offset, bytes)."""

    spans: tuple[tuple[int, int, int], ...]

    def read(self, start: int, length: int) -> Piece:
        """Raises SnapshotError."""
        found = []
        for descriptor, offset, size in self.spans:
            wanted = min(length, size - start)
            if wanted > 0:
                found.append(_read(descriptor, offset + start, wanted))
                start, length = start + wanted, length - wanted
            start -= size
        chunk = b"".join(found)
        return chunk, hashlib.blake2b(chunk, digest_size=16).digest()


@contextmanager
def opened(kept: KeptSnapshot) -> Iterator[OpenParts]:
    """Raises SnapshotError when it is gone, and Unreadable when the disk does not give it out now."""
    spans: list[tuple[int, int, int]] = []
    index = kept.index
    try:
        for part in PARTS:
            path = kept.folder / index.parts[part].file
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                raise not_read(path, error) from None
            header = part_header(index.plan, index.stage, part)
            spans.append((descriptor, len(header), part_bytes(index, part)))
        yield OpenParts(tuple(spans))
    finally:
        for descriptor, _, _ in spans:
            os.close(descriptor)


class DiskReading:
    """`read`: OpenParts.read, in a thread that nobody waits for who is cancelled."""

    def __init__(
        self, header: StateHeader, arena: Arena, lengths: Sequence[int], read: Callable[[int, int], Awaitable[Piece]]
    ) -> None:
        self.header = header
        self._arena, self._lengths, self._read = arena, lengths, read

    async def chunk(self, index: int) -> Chunk:
        """As of Reading."""
        length = self._lengths[index]
        try:
            content, found = await self._read(sum(self._lengths[:index]), length)
        except SnapshotError as error:
            raise ComputeError("invalid", str(error)) from None
        handle = await take_slot(self._arena)
        self._arena.view(handle)[:length] = content
        return Chunk(handle, length, found)


def _read(descriptor: int, offset: int, length: int) -> bytes:
    try:
        found = os.pread(descriptor, length, offset)
    except OSError as error:
        raise Unreadable(f"a snapshot cannot be read: {error.strerror}") from None
    if len(found) < length:
        raise SnapshotError("a snapshot ends too early")
    return found
