"""The sum of one piece of a gradient at its owner: in the group's order, whatever comes first.

Addition that rounds is not associative, so replicas agree to the bit only because each number is summed in one place,
in one order, and copied from there. Contributions come in chunks, of which a few per contributor are in memory; who
is ahead waits until the slowest has sent the same chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import trio

from ftnode.protocol.words.errors import PeerError

CHUNK_BYTES: Final = 1 << 18
"""Summed at once: some 0.05 ms per contributor, in which nothing else of the node runs. It stays in the cache."""
AHEAD: Final = 4
"""Chunks of each contributor in memory."""


class Signal:
    """Something changed; look again."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()
        self._event = trio.Event()

    async def wait(self) -> None:
        """Until the next `set`."""
        await self._event.wait()


class PieceSum:
    """Sums into `place`, which holds what we contribute ourselves, if anything.

    done <= taken(k) <= done + AHEAD chunks for each contributor k but us.
    """

    def __init__(self, place: memoryview, contributors: int, ours: int, number_bytes: int) -> None:
        """`contributors`: how many; `ours`: our position among them; `number_bytes`: 4 or 8, of each number."""
        self.place = place
        self.done = 0
        """Bytes of `place` that are summed, from its start on."""
        self.grown = Signal()
        self._ours, self._number_bytes = ours, number_bytes
        self._rings = {
            k: memoryview(bytearray(min(AHEAD * CHUNK_BYTES, len(place)))) for k in range(contributors) if k != ours
        }
        self._taken = dict.fromkeys(self._rings, 0)
        self._add_up()

    @property
    def whole(self) -> bool:
        return self.done == len(self.place)

    def taken(self, contributor: int) -> int:
        """Bytes that have come from there: whole chunks only."""
        return self._taken[contributor]

    async def room(self, contributor: int) -> memoryview:
        """Where the next chunk of a contributor goes, in its full length. Waits for the others; empty at the end.

        Raises PeerError for who contributes nothing.
        """
        if contributor not in self._rings:
            raise PeerError("a contribution of somebody who has none")
        start = self._taken[contributor]
        while start >= self.done + AHEAD * CHUNK_BYTES:
            await self.grown.wait()
        return self._ring(contributor, start)

    def filled(self, contributor: int) -> None:
        """The room last given to a contributor holds its chunk now."""
        start = self._taken[contributor]
        self._taken[contributor] = min(start + CHUNK_BYTES, len(self.place))
        self._add_up()

    def _ring(self, contributor: int, start: int) -> memoryview:
        """The chunk that begins at byte `start` of the piece."""
        ring = self._rings[contributor]
        at = start % (AHEAD * CHUNK_BYTES)
        return ring[at : at + min(CHUNK_BYTES, len(self.place) - start)]

    def _add_up(self) -> None:
        """As far as everybody's chunks are here."""
        before = self.done
        while self.done < min([len(self.place), *self._taken.values()]):
            size = min(CHUNK_BYTES, len(self.place) - self.done)
            own = self.place[self.done : self.done + size]
            order = range(len(self._rings) + 1)
            _sum([own if k == self._ours else self._ring(k, self.done) for k in order], own, self._number_bytes)
            self.done += size
        if self.done != before:
            self.grown.set()


def _sum(parts: Sequence[memoryview], into: memoryview, number_bytes: int) -> None:
    """One after the other from the first, each sum rounded once. `into` may be one of the parts."""
    import numpy as np  # nodes that reduce in no group do without

    dtype = {4: np.float32, 8: np.float64}[number_bytes]
    arrays: list[Any] = [np.frombuffer(part, dtype=dtype) for part in parts]
    if len(arrays) == 1:
        return
    total = np.add(arrays[0], arrays[1])
    for array in arrays[2:]:
        np.add(total, array, out=total)
    np.frombuffer(into, dtype=dtype)[:] = total
