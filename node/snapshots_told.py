"""What a node tells the core of the snapshots on its disk, finds again for the core's plans, and lends to others.

They are told as they are found, so that nobody waits for gigabytes to be read, then read in the background, and told
again without those that are damaged. All nodes of one home share what lies there.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Halt
from typing import Any, TypeVar

import trio

from ftnode.node.copies import Copy
from ftnode.node.snapshots_format import SnapshotError
from ftnode.node.snapshots_store import KeptSnapshot, SnapshotStore
from ftnode.node.state_shape import StateShape
from ftnode.protocol.events import Event, Snapshots
from ftnode.protocol.snapshots import TOLD_MAX
from ftnode.protocol.types import Snapshot, Version
from ftnode.protocol.wire import StateHeader, StateRequest

log = logging.getLogger(__name__)

Read = TypeVar("Read")


def snapshot_of(kept: KeptSnapshot) -> Snapshot:
    """As the core hears of it."""
    lineal = kept.index.lineal
    return Snapshot(kept.stage, kept.version, kept.digest, lineal.epoch)


@dataclass
class ToldSnapshots:
    """Of one run. `store` None: this run keeps none, and nothing happens here."""

    store: SnapshotStore | None
    shape: StateShape
    deliver: Callable[[Event], None]
    _damaged: set[Path] = field(default_factory=set)
    _reading: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))

    def kept(self) -> tuple[KeptSnapshot, ...]:
        """Those that are whole, as far as we know, the newest first."""
        if self.store is None:
            return ()
        return tuple(kept for kept in self.store.kept() if kept.folder not in self._damaged)

    def tell(self) -> None:
        """The disk has changed, or the node begins."""
        if self.store is not None:
            self.deliver(Snapshots(tuple(snapshot_of(kept) for kept in self.kept())))

    def damaged(self, kept: KeptSnapshot, reason: str) -> None:
        """Never to be told of again; it stays for its owner to look at."""
        log.warning("a snapshot is not used: %s", reason)
        self._damaged.add(kept.folder)
        self.tell()

    async def check(self) -> None:
        """Read what others are told of, once, and withdraw what is damaged."""
        store = self.store
        for kept in self.kept()[:TOLD_MAX]:
            trouble = await self._read(store.verify, kept) if store else ""
            if trouble and kept.folder.exists():
                self.damaged(kept, trouble)

    def find(self, stage: int, version: Version, digest: str) -> KeptSnapshot | None:
        """The snapshot that a plan means."""
        fits = (kept for kept in self.kept() if (kept.stage, kept.version, kept.digest) == (stage, version, digest))
        return next(fits, None)

    async def lend(self, request: StateRequest) -> Copy | None:
        """What a request for a whole state finds on this disk, in memory for as long as it is read; None: nothing."""
        if request.parts != "all" or request.encoding != "raw" or request.freeze or request.copy:
            return None
        wanted = request.stage, request.step, request.commit
        for kept in self.kept():
            if (kept.stage, kept.version.step, kept.version.commit) == wanted:
                try:
                    return await self._read(self._copy, kept)
                except SnapshotError as error:
                    self.damaged(kept, str(error))
        return None

    async def _read(self, read: Callable[[KeptSnapshot, Halt], Read], kept: KeptSnapshot) -> Read:
        """In a thread. Who is cancelled does not wait for the disk; what was left behind ends at its next piece."""
        in_thread: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        halt = Halt()
        try:
            found: Read = await in_thread(read, kept, halt, limiter=self._reading, abandon_on_cancel=True)
            return found
        finally:
            halt.set()

    def _copy(self, kept: KeptSnapshot, halt: Halt) -> Copy:
        assert self.store is not None
        parts = self.store.load(kept, stop=halt)
        state = memoryview(b"".join((parts.pop("weights"), parts.pop("optimiser"))))
        lengths = self.shape.lengths(kept.stage, "all", "raw")
        if sum(lengths) != len(state):
            raise SnapshotError(f"{kept.folder} has {len(state)} bytes of state, the run's model has {sum(lengths)}")
        chunks, start = [], 0
        for length in lengths:
            if halt.is_set():
                raise SnapshotError(f"{kept.folder} was not read to its end: nobody wants it any more")
            chunks.append(bytearray(state[start : start + length]))
            start += length
        hashes = tuple(hashlib.blake2b(chunk, digest_size=16).digest() for chunk in chunks)
        said = kept.index.state
        header = StateHeader(
            kept.version, said.norm_squared, len(chunks), len(state), kept.digest, said.updates, said.rate_factor, "raw"
        )
        return Copy(header, "all", tuple(chunks), hashes)
