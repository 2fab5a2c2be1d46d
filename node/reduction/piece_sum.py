"""The sum of one piece of a gradient at its owner: in the group's order, whatever comes first.

Addition that rounds is not associative, so replicas agree to the bit only because each number is summed in one place,
in one order, and copied from there. What is copied are the bytes that travel: the owner itself has the numbers that
they mean. Contributions come in chunks, of which a few per contributor are in memory; who is ahead waits until the
slowest has sent the same chunk. No part counts for more than its bounds let it (part_bounds.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import trio

from ftnode.protocol.words.errors import PeerError

if TYPE_CHECKING:
    from ftnode.node.reduction.encoding import Numbers, Piece
    from ftnode.node.reduction.part_bounds import PartBounds
    from ftnode.node.reduction.sketch import Sketch

AHEAD: Final = 4
"""Chunks of each contributor in memory."""
WHOSE_SUM: Final = -1
NOBODY: Final = (-1, None)


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
    """Sums into the numbers of `piece`, which are what we contribute ourselves, if anything.

    done <= taken(k) <= done + AHEAD chunks for each contributor k but us. All are bytes on the wire.
    """

    def __init__(
        self, piece: Piece, contributors: int, ours: int, noted: tuple[int, Sketch | None] = NOBODY,
        bounds: PartBounds | None = None,
    ) -> None:  # fmt: skip
        """`contributors`: how many; `ours`: our position among them; `noted`: whose part is noted, by its position, and
        where. `bounds`: of the parts; None where nobody else contributes."""
        self.piece, (self._noted, self._sketch), self.bounds = piece, noted, bounds
        self.content = piece.for_sum()
        """The sum as it travels, the first `done` bytes of it."""
        self.done = 0
        self.grown = Signal()
        self._order, self._ours = range(contributors), ours
        self._rings = {k: piece.room(AHEAD) for k in self._order if k != ours}
        self._taken = dict.fromkeys(self._rings, 0)
        self._filled = Signal()

    @property
    def whole(self) -> bool:
        return self.done == self.piece.bytes

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
        while start < self.piece.bytes and start >= self.piece.end(self.done, AHEAD):
            await self.grown.wait()
        return self._ring(contributor, start)

    def filled(self, contributor: int) -> None:
        """The room last given to a contributor holds its chunk now. Raises PeerError for a chunk that is none."""
        start = self._taken[contributor]
        self.piece.check(self._ring(contributor, start))
        self._taken[contributor] = self.piece.end(start)
        self._filled.set()

    def _ring(self, contributor: int, start: int) -> memoryview:
        """The chunk that begins at byte `start` of the piece."""
        ring, size = self._rings[contributor], self.piece.end(start) - start
        at = start % len(ring) if ring else 0
        return ring[at : at + size]

    async def work(self) -> None:
        """Until the sum is whole. Others have their turn after each chunk of each contributor."""
        while not self.whole:
            while self.done >= min(self._taken.values(), default=self.piece.bytes):
                await self._filled.wait()
            await self._add_up()
            self.grown.set()
            await trio.lowlevel.checkpoint()

    async def _add_up(self) -> None:
        """The next chunk, one part after the other from the first, each sum rounded once."""
        at, bounds = self.done, self.bounds
        outside = bounds.outside if bounds is not None else ()
        total: Numbers | None = None
        parts: list[Numbers] = []
        for k in self._order:
            part = self._part(k, at)
            if self._sketch is not None and k == self._noted != self._ours:
                self._sketch.add(self.piece.position(at), part)
                await trio.lowlevel.checkpoint()
            parts.append(part if bounds is None else bounds.within_told(k, part))
            if k in outside:
                continue
            if total is None:
                total = parts[k].copy()
            else:
                total += parts[k]
            await trio.lowlevel.checkpoint()
        if total is None:
            total = parts[0] * 0
        if bounds is not None:
            total = bounds.centred(total, parts) if outside else total
            bounds.added(parts, total)
        end = self.piece.end(at)
        self.content[at:end] = self.piece.encode(at, total, WHOSE_SUM)
        self.piece.chunk(at)[:] = self.piece.decode(at, self.content[at:end])
        self.done = end

    def _part(self, contributor: int, at: int) -> Numbers:
        """What it has of the chunk that begins at byte `at`."""
        ours = contributor == self._ours
        return self.piece.chunk(at) if ours else self.piece.decode(at, self._ring(contributor, at))
