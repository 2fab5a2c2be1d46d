"""What a node tells the core of the snapshots on its disk, finds again for the core's plans, and lends to others.

They are told as they are found, so that nobody waits for gigabytes to be read, then read in the background, and told
again without those that are damaged. What the disk does not give out just now (rights, a busy disk) may be whole: it
is told of again as soon as it can be read. All nodes of one home share what lies there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event as Halt
from typing import Any, Final, TypeVar

import trio

from ftnode.models.state_plan import PARTS
from ftnode.node.compute.state_shape import StateShape
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.snapshots.format import KeptSnapshot, SnapshotError, Unreadable
from ftnode.node.snapshots.store import SnapshotStore, may_go, part_bytes
from ftnode.node.weights.disk_lending import DiskReading, OpenParts, Piece, opened
from ftnode.protocol.wire.frames import StateHeader, StateRequest
from ftnode.protocol.words.events import Event, Snapshots
from ftnode.protocol.words.records import TOLD_MAX
from ftnode.protocol.words.types import Snapshot, Version, spoken_stage

log = logging.getLogger(__name__)

Read = TypeVar("Read")

SAID_MAX: Final = 4
"""Lines for the owner about snapshots that do not count; what comes behind them is only logged."""
TRY_AGAIN_SECONDS: Final = 60.0
"""Between two looks at what could not be read."""


def snapshot_of(kept: KeptSnapshot) -> Snapshot:
    """As the core hears of it."""
    lineal = kept.index.lineal
    return Snapshot(kept.stage, kept.version, kept.whole_digest, lineal.epoch)


@dataclass
class KnownSnapshots:
    """Of one run. `store` None: this run keeps none, and nothing happens here."""

    store: SnapshotStore | None
    shape: StateShape
    deliver: Callable[[Event], None]
    say: Callable[..., None] = lambda kind, text, **fields: None
    """To the owner."""
    _said: int = 0
    _damaged: set[Path] = field(default_factory=set)
    _unread: set[Path] = field(default_factory=set)
    """What the disk did not give out when it was last asked."""
    _whole: set[Path] = field(default_factory=set)
    """Read once, with the hashes that they should have."""
    _reading: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    """Of whole snapshots: one disk."""
    _lending: trio.CapacityLimiter = field(default_factory=lambda: trio.CapacityLimiter(1))
    """Of chunks, which do not wait behind those."""

    def kept(self) -> tuple[KeptSnapshot, ...]:
        """Those that are whole, as far as we know, the newest first."""
        if self.store is None:
            return ()
        return tuple(kept for kept in self.store.kept() if kept.folder not in self._damaged | self._unread)

    def newest(self) -> dict[int, int]:
        """Stage → step of the newest."""
        return {kept.stage: kept.version.step for kept in reversed(self.kept())}

    def tell(self) -> None:
        """The disk has changed, or the node begins."""
        if self.store is not None:
            self.deliver(Snapshots(tuple(snapshot_of(kept) for kept in self.kept())))

    def damaged(self, kept: KeptSnapshot, reason: str) -> None:
        """Never to be told of again; it stays for its owner to look at."""
        self._damaged.add(kept.folder)
        self._unread.discard(kept.folder)
        self._say_of(kept, "is damaged on this disk", reason, "until newer ones are kept")
        self.tell()

    def unread(self, kept: KeptSnapshot, reason: str) -> None:
        """Not to be told of until it can be read."""
        if kept.folder not in self._unread:
            self._unread.add(kept.folder)
            self._say_of(kept, "cannot be read just now", reason, "and counts again as soon as it can be read")
        self.tell()

    def _withdraw(self, kept: KeptSnapshot, why: SnapshotError) -> None:
        (self.unread if isinstance(why, Unreadable) else self.damaged)(kept, str(why))

    def _say_of(self, kept: KeptSnapshot, trouble: str, reason: str, stays: str) -> None:
        what, step = reason.replace(f"{kept.folder}/", ""), kept.version.step
        text = f"{spoken_stage(kept.stage)} of step {step} {trouble} ({what}); it stays in {kept.folder} {stays}"
        self._say_unfit(text, stage=str(kept.stage), step=str(step))

    def _say_unfit(self, text: str, **fields: str) -> None:
        self._said += 1
        if self._said <= SAID_MAX:
            others = "another disk, an earlier snapshot or the neighbours' weights"
            self.say("snapshot", f"{text}; where the run needs that stage, it comes from {others}", **fields)
        else:
            log.warning("%s", text)

    async def check(self) -> None:
        """Read what others are told of, once, withdraw what is damaged, and say so."""
        store = self.store
        if store is not None:
            _, unfit = await trio.to_thread.run_sync(store.survey, limiter=self._reading)
            for why in unfit:
                trouble = "cannot be read just now" if isinstance(why, Unreadable) else "is not whole"
                self._say_unfit(
                    f"a snapshot {trouble} ({why}); it {'goes with the next save' if may_go(why) else 'stays'}"
                )
            for kept in self.kept()[:TOLD_MAX]:
                await self._look_at(store, kept)

    async def keep_trying(self) -> None:
        """What could not be read is tried again, for ever."""
        while self.store is not None:
            await trio.sleep(TRY_AGAIN_SECONDS)
            await self.try_again()

    async def try_again(self) -> None:
        """Whether what could not be read can be read now."""
        store = self.store
        if store is None or not self._unread:
            return
        there = {kept.folder: kept for kept in store.kept() if kept.folder in self._unread}
        self._unread &= there.keys()
        for kept in there.values():
            if await self._look_at(store, kept):
                log.info("%s can be read again", kept.folder)
        self.tell()

    async def _look_at(self, store: SnapshotStore, kept: KeptSnapshot) -> bool:
        """Whether it is whole: reads all of it."""
        trouble = await self._in_thread(store.trouble, kept)
        if trouble is None:
            self._whole.add(kept.folder)
            self._unread.discard(kept.folder)
        elif kept.folder.exists():
            self._withdraw(kept, trouble)
        return trouble is None

    def find(self, stage: int, version: Version, digest: str) -> KeptSnapshot | None:
        """The snapshot that a plan means."""
        wanted = stage, version, digest
        return next((kept for kept in self.kept() if (kept.stage, kept.version, kept.whole_digest) == wanted), None)

    def saved(self, request: StateRequest) -> KeptSnapshot | None:
        """What is here of what is asked for; None: nothing."""
        if request.parts != "all" or request.encoding != "raw" or request.freeze or request.copy:
            return None
        wanted = request.stage, request.step, request.commit
        fits = (kept for kept in self.kept() if (kept.stage, kept.version.step, kept.version.commit) == wanted)
        return next(fits, None)

    @asynccontextmanager
    async def lend(self, request: StateRequest, arena: Arena) -> AsyncIterator[DiskReading | None]:
        """What a request for a whole state finds on this disk; None: nothing. It is read once as a whole, and its
        hashes are compared, before the first loan of it."""
        with ExitStack() as stack:
            reading = None
            while reading is None and (kept := self.saved(request)) is not None:
                try:
                    parts = stack.enter_context(opened(kept))
                    await self._require_whole(kept)
                    reading = self._reading_of(kept, parts, arena)
                except SnapshotError as error:
                    self._withdraw(kept, error)
            yield reading

    async def _require_whole(self, kept: KeptSnapshot) -> None:
        """Raises SnapshotError."""
        assert self.store is not None
        if kept.folder not in self._whole:
            if trouble := await self._in_thread(self.store.trouble, kept):
                raise trouble
            self._whole.add(kept.folder)

    def _reading_of(self, kept: KeptSnapshot, parts: OpenParts, arena: Arena) -> DiskReading:
        lengths = self.shape.lengths(kept.stage, "all", "raw")
        size = sum(part_bytes(kept.index, part) for part in PARTS)
        if sum(lengths) != size:
            raise SnapshotError(f"{kept.folder} has {size} bytes of state, the run's model has {sum(lengths)}")
        said = kept.index.state
        header = StateHeader(
            kept.version, said.norm_squared, len(lengths), size, kept.digest, said.updates, said.rate_factor, "raw"
        )

        async def read(start: int, length: int) -> Piece:
            in_thread: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
            found: Piece = await in_thread(parts.read, start, length, limiter=self._lending, abandon_on_cancel=True)
            return found

        return DiskReading(header, arena, lengths, read)

    async def _in_thread(self, read: Callable[[KeptSnapshot, Halt], Read], kept: KeptSnapshot) -> Read:
        """In a thread. Who is cancelled does not wait for the disk; what was left behind ends at its next piece."""
        in_thread: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        halt = Halt()
        try:
            found: Read = await in_thread(read, kept, halt, limiter=self._reading, abandon_on_cancel=True)
            return found
        finally:
            halt.set()
