"""Files of a run that are missing here, from whoever has them: one at a time, each held against its hash.

    lock the folder → survey → rounds, until nothing is missing
    round           → sources in turn, the fastest first → the index, if it is missing → files
    file            → grows in a part of this source alone → its hash fits → kept

A source that has nothing for us, or whose turn is over, gives way to the next one. After a round in which nothing came
there is a pause. Token shards and the layers of the model that a run began with are fetched alike (shards.py,
first_layers.py). The whole story: docs/explanation/data.md.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, Final

import trio

from ftnode.models.shards import BLOCK_BYTES, StoredFile
from ftnode.node.data.file_store import PARTS_MAX, FileStore, NoRoom
from ftnode.node.data.shard_sources import NotFetched, ShardSource

log = logging.getLogger(__name__)

PAUSES_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""After rounds in which nobody had anything for us; the last one repeats."""
AGAIN_SECONDS: Final = (10.0, 30.0, 60.0)
"""After what may pass, as a full disk, for as long as it lasts; the last one repeats."""
LOCK_SECONDS: Final = 2.0
FILE_SECONDS: Final = 60.0
SLOWEST: Final = 20_000
"""Bytes per second; a file that takes longer than FILE_SECONDS and its size at this pace is given up for now."""
TURN_SECONDS: Final = 60.0
"""Of a source with each file, in the first round. After a round in which turns ended, and no file became whole, they
are twice as long."""
BEST_TURNS: Final = 4
"""For the source that was fastest lately, so that finding a faster one takes less time than it has."""
FASTER: Final = 1.25
"""Than the fastest one so far, of which a part has come already."""
GROWN_BYTES: Final = 128 << 10
"""A source that gave so much of a file gave something: a slow line gets that in a turn of its own (turns.py)."""
ABSENT_MAX: Final = 8
"""So many files in a row that a source does not have, and another one is asked."""


class Fetching:
    """What is missing in a store. It is the only one who changes that: `run` is one task of the node."""

    def __init__(
        self, store: FileStore, local: Path | None, sources: Callable[[], Sequence[ShardSource]], chance: Random,
        tell: Callable[[str], None],
    ) -> None:  # fmt: skip
        """`local`: the owner's folder with some or all of it. `sources`: whom to ask now, those first that are
        preferred. `tell`: one line for people."""
        self.store = store
        self.surveyed = False
        """What is here is known."""
        self.trouble = ""
        """Why nothing comes now, for people; empty while nothing is wrong."""
        self._local, self._sources, self._chance, self._tell = local, sources, chance, tell
        self._told: set[str] = set()
        self._passing = ""
        """What kind of trouble was said last. Nothing has come since."""
        self._turn = TURN_SECONDS
        self._paces: dict[str, float] = {}
        """Bytes per second that each source gave when it was asked last."""
        self._favourite = ""
        """Who was fastest lately."""
        self._cut_off = False
        """Whether somebody's turn has ended in this round before it had given all that was asked for."""

    async def _persist(self, work: Callable[[], Awaitable[None]], changed: Callable[[], None] | None = None) -> None:
        """Do `work` to its end. What may pass, as a full disk, is said once, and `work` begins again after a while.

        `changed` is called when something is said. Raises DataError of what does not pass.
        """
        for tries in count():
            try:
                self.trouble = ""
                await work()
                return
            except NoRoom as error:
                news = self._hold_up(str(error), "room")
            except OSError as error:
                news = self._hold_up(f"{self._cannot(error)}; tries again", str(error.errno))
            finally:
                self.store.unlock()
            if news and changed is not None:
                changed()
            await trio.sleep(AGAIN_SECONDS[min(tries, len(AGAIN_SECONDS) - 1)])

    def _hold_up(self, why: str, kind: str) -> bool:
        """Whether this is news."""
        self.trouble = why
        if self._passing == kind:
            return False
        self._passing = kind
        self._tell(why)
        return True

    def _cannot(self, error: OSError) -> str:
        place = Path(str(error.filename or self.store.folder))
        verb = "keep" if place.is_relative_to(self.store.folder) else "read"
        return f"cannot {verb} {self.store.what} in {place}: {error.strerror}"

    async def _survey(self) -> None:
        """Look at what is here, in a thread. Raises DataError of what is of no use, OSError."""
        look: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        survey = await look(self.store.look, self._local, abandon_on_cancel=True)
        self.store.take_over(survey)
        for trouble in survey.troubles:
            self._tell(trouble)

    async def _take_turn(self) -> None:
        """Be the one of this home's nodes that fetches, and look again at what is here: another one may have fetched
        some of it. Raises as `_survey`."""
        while not self.store.lock():
            await trio.sleep(LOCK_SECONDS)
        if self.store.lacks_files():  # every file that is here is hashed below, which takes long
            self.store.check_room()
        await self._survey()

    async def _fetch_all(self) -> None:
        """Until nothing is missing. Raises DataError when it may not be fetched, NoRoom, OSError."""
        await self._take_turn()
        idle = 0
        while not self.store.complete:
            sources = self._sources()
            if not sources:
                await trio.sleep(PAUSES_SECONDS[0])  # we know nobody yet
            elif await self._round(sources):
                idle = 0
            else:
                await trio.sleep(PAUSES_SECONDS[min(idle, len(PAUSES_SECONDS) - 1)])
                idle += 1

    async def _round(self, sources: Sequence[ShardSource]) -> bool:
        """Ask sources for what is missing, until as many as may have parts here have had their turns. Whether anything
        came."""
        came, gave, lacking, self._cut_off = False, 0, len(self.store.missing()), False
        self._paces = {each.label: self._paces[each.label] for each in sources if each.label in self._paces}
        if self._paces.get(self._favourite, 0.0) * FASTER <= max(self._paces.values(), default=0.0):
            self._favourite = max(self._paces, key=self._paces.__getitem__, default="")
        for source in sorted(sources, key=self._rank):
            self._paces.pop(source.label, None)
            turns = BEST_TURNS if source.label == self._favourite else 1
            try:
                came = await self._ask(source, turns * self._turn) or came
            except NotFetched as error:
                self._tell_once(f"nothing from {source.label}: {error}")
            gave += source.label in self._paces
            if self.store.complete or gave == PARTS_MAX:
                break
        if self._cut_off and len(self.store.missing()) == lacking:
            self._turn *= 2
        return came

    def _rank(self, source: ShardSource) -> tuple[int, float]:
        """The favourite comes first, then those of which nothing is known, then the others."""
        if source.label == self._favourite:
            return 0, 0.0
        pace = self._paces.get(source.label)
        return (1, 0.0) if pace is None else (2, -pace)

    async def _ask(self, source: ShardSource, turn: float) -> bool:
        """`turn`: seconds for each file. Raises NotFetched when the source is of no more use."""
        if self.store.index is None:
            await self._fetch_index(source, turn)
        came, absent = False, 0
        missing = self.store.missing()
        if missing:
            self.store.check_room()
        self._chance.shuffle(missing)  # those who fetch at the same time then have something for each other
        missing.sort(key=lambda file: not self.store.part(file, source.label).exists())
        for number, file in enumerate(missing, 1):
            grown = self._grown(source, file)
            try:
                await self._fetch(source, file, turn)
                came, absent = True, 0
            except NotFetched as error:
                absent += 1
                came |= self._grown(source, file) >= grown + GROWN_BYTES
                if error.absent and absent < ABSENT_MAX and number < len(missing):
                    continue
                if not came:
                    raise
                break
        return came

    def _grown(self, source: ShardSource, file: StoredFile) -> int:
        """Bytes that are here of what this source gives of a file."""
        try:
            return self.store.part(file, source.label).stat().st_size
        except OSError:
            return 0

    async def _fetch_index(self, source: ShardSource, turn: float) -> None:
        data, size_max = bytearray(), self.store.index_bytes_max
        with trio.move_on_after(_patience(size_max, turn)) as scope:
            async with source.open(self.store.index_name, 0, size_max) as delivery:
                async for block in delivery.blocks:
                    data += block
                    if len(data) > size_max:
                        raise NotFetched("an index that is too large")
        if scope.cancelled_caught:
            self._cut_off = True
            raise NotFetched("too slow")
        if hashlib.sha256(data).hexdigest() != self.store.sha256:
            source.blame("an index that is not the run's")
            raise NotFetched("its index is not the run's")
        self.store.take_index(bytes(data))

    async def _fetch(self, source: ShardSource, file: StoredFile, turn: float) -> None:
        """One file, whole and with its hash, or NotFetched. What has come stays for the next time."""
        part, came, began = self.store.part(file, source.label), 0, trio.current_time()
        self.store.begin(part)
        try:
            with trio.move_on_after(_patience(file.size, turn)) as scope, part.open("a+b") as opened:
                start, digest = await trio.to_thread.run_sync(_begin, opened, file.size)
                async with source.open(file.name, start, file.size) as delivery:
                    if delivery.start != start:
                        start, digest = await trio.to_thread.run_sync(_begin, opened, 0)
                    async for block in delivery.blocks:
                        start, came = start + len(block), came + len(block)
                        if start > file.size:
                            break
                        await trio.to_thread.run_sync(_append, opened, digest, block)
        finally:
            if came:
                self._paces[source.label] = came / max(trio.current_time() - began, 1e-3)
        if scope.cancelled_caught:
            self._cut_off = True
            raise NotFetched(f"{file.name} was too slow")
        if start < file.size:
            raise NotFetched(f"{file.name} ended early")
        if start > file.size or digest.hexdigest() != file.sha256:
            part.unlink()
            self._tell_once(f"{file.name} of {source.label} does not have its hash: thrown away")
            source.blame(f"{file.name} does not have its hash")
            raise NotFetched(f"{file.name} does not have its hash")
        await trio.to_thread.run_sync(self.store.keep, file, part)
        self._passing = ""
        log.info("%s came from %s", file.name, source.label)

    def _tell_once(self, text: str) -> None:
        if text not in self._told and len(self._told) < 100:
            self._told.add(text)
            self._tell(text)


def _patience(size: int, turn: float) -> float:
    """Seconds for so many bytes, in a turn."""
    return min(turn, FILE_SECONDS + size / SLOWEST)


def _begin(file: BinaryIO, kept_max: int) -> tuple[int, hashlib._Hash]:
    """Go on behind what `file` holds, unless that is more than `kept_max` or all of it: then from its beginning."""
    digest = hashlib.sha256()
    size = file.seek(0, 2)
    if size >= kept_max:
        file.truncate(0)
        return 0, digest
    file.seek(0)
    while block := file.read(BLOCK_BYTES):
        digest.update(block)
    return size, digest


def _append(file: BinaryIO, digest: hashlib._Hash, block: bytes) -> None:
    digest.update(block)
    file.write(block)
