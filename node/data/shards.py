"""The corpus of a run that trains on token shards: looked for, fetched, checked, and then the head may be held.

    survey (home's folder, --data DIR) → fetch what is missing (--data URL, peers) → all is whole → may hold the head

Who lacks a shard fetches it before it offers itself for the head, one file at a time, whichever stage it holds
meanwhile; so the corpus outlives any holder of the head. What is here already is lent to others.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, Final

import trio

from ftnode.models.data import DataError
from ftnode.models.shards import BLOCK_BYTES, INDEX_BYTES_MAX, INDEX_NAME, StoredFile
from ftnode.node.data.shard_lending import ShardLender
from ftnode.node.data.shard_sources import NotFetched, PeerShards, ShardSource
from ftnode.node.data.shard_store import ShardStore
from ftnode.node.links.bandwidth import Bandwidth
from ftnode.node.owner.announcements import Speaking
from ftnode.node.owner.join_options import JoinConfig, shards_folder
from ftnode.node.ports import StreamOpener
from ftnode.protocol.picture import Picture

log = logging.getLogger(__name__)

PAUSES_SECONDS: Final = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""After rounds in which nobody had anything for us; the last one repeats."""
LOCK_SECONDS: Final = 2.0
FILE_SECONDS: Final = 60.0
SLOWEST: Final = 20_000
"""Bytes per second; a file that takes longer than FILE_SECONDS and its size at this pace is given up for now."""
PEERS_MAX: Final = 16
"""Asked in one round."""
ABSENT_MAX: Final = 8
"""So many files in a row that a source does not have, and another one is asked."""


class RunShards:
    """`run` is a task of the node. `changed` is called when `surveyed`, and when the shards are whole."""

    def __init__(
        self,
        store: ShardStore,
        lender: ShardLender,
        local: Path | None,
        sources: Callable[[], Sequence[ShardSource]],
        chance: Random,
        tell: Callable[[str], None],
        changed: Callable[[], None],
    ) -> None:
        """`sources`: whom to ask now, those first that are preferred."""
        self.store, self.lender = store, lender
        self.surveyed = False
        """What is here has been looked at."""
        self.trouble = ""
        """Why the corpus will never be whole here."""
        self._local, self._sources, self._chance = local, sources, chance
        self._tell, self._changed = tell, changed
        self._told: set[str] = set()

    def head(self) -> tuple[bool, str]:
        """Whether the head may be held, and why not."""
        if self.store.complete:
            return True, ""
        if self.trouble:
            return False, self.trouble
        if self.store.index is None:
            return False, "the index of the run's shards is not here yet"
        count = len(self.store.index.files)
        return False, f"{count - len(self.store.missing())} of {count} files of the run's shards are here"

    async def run(self) -> None:
        try:
            await self._survey()
            if not self.store.complete:
                await self._fetch_all()
        except DataError as error:
            self.trouble = str(error)
        except OSError as error:
            self.trouble = f"cannot keep shards in {self.store.folder}: {error.strerror}"
        finally:
            self.store.unlock()
        if self.trouble:
            self._tell(self.trouble)
        elif self.store.index is not None:
            files = self.store.index.files
            self._tell(f"all {len(files)} files of the run's shards are here, {self.store.index.size / 1e6:,.1f} MB")
        self.surveyed = True
        self._changed()

    async def _survey(self) -> None:
        look: Any = trio.to_thread.run_sync  # the stubs of trio-typing do not know that option
        for trouble in await look(self.store.survey, self._local, abandon_on_cancel=True):
            self._tell(trouble)

    async def _fetch_all(self) -> None:
        self._tell(self.head()[1])
        self.surveyed = True
        self._changed()
        while not self.store.lock():
            await trio.sleep(LOCK_SECONDS)  # another node of this home fetches them
        await self._survey()
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
        """Ask every source for what is missing. Whether anything came."""
        came = False
        for source in sources:
            try:
                came = await self._ask(source) or came
            except NotFetched as error:
                self._tell_once(f"nothing from {source.label}: {error}")
            if self.store.complete:
                break
        return came

    async def _ask(self, source: ShardSource) -> bool:
        """Raises NotFetched when the source is of no more use."""
        if self.store.index is None:
            await self._fetch_index(source)
        self.store.check_room()
        came, absent = False, 0
        missing = self.store.missing()
        self._chance.shuffle(missing)  # those who fetch at the same time then have something for each other
        for number, file in enumerate(missing, 1):
            try:
                await self._fetch(source, file)
                came, absent = True, 0
            except NotFetched as error:
                absent += 1
                if error.absent and absent < ABSENT_MAX and number < len(missing):
                    continue
                if not came:
                    raise
                break
        return came

    async def _fetch_index(self, source: ShardSource) -> None:
        data = bytearray()
        with trio.move_on_after(FILE_SECONDS + INDEX_BYTES_MAX / SLOWEST) as scope:
            async with source.open(INDEX_NAME, 0, INDEX_BYTES_MAX) as delivery:
                async for block in delivery.blocks:
                    data += block
                    if len(data) > INDEX_BYTES_MAX:
                        raise NotFetched("an index that is too large")
        if scope.cancelled_caught:
            raise NotFetched("too slow")
        if hashlib.sha256(data).hexdigest() != self.store.sha256:
            source.blame("an index that is not the run's")
            raise NotFetched("its index is not the run's")
        self.store.take_index(bytes(data))

    async def _fetch(self, source: ShardSource, file: StoredFile) -> None:
        """One file, whole and with its hash, or NotFetched."""
        part = self.store.part(file)
        with trio.move_on_after(FILE_SECONDS + file.size / SLOWEST) as scope, part.open("a+b") as opened:
            start, digest = await trio.to_thread.run_sync(_begin, opened, file.size if source.resumes else 0)
            async with source.open(file.name, start, file.size) as delivery:
                if delivery.start != start:
                    start, digest = await trio.to_thread.run_sync(_begin, opened, 0)
                async for block in delivery.blocks:
                    start += len(block)
                    if start > file.size:
                        break
                    await trio.to_thread.run_sync(_append, opened, digest, block)
        if scope.cancelled_caught:
            raise NotFetched(f"{file.name} was too slow")
        if start < file.size:
            raise NotFetched(f"{file.name} ended early")
        if start > file.size or digest.hexdigest() != file.sha256:
            part.unlink()
            self._tell_once(f"{file.name} of {source.label} does not have its hash: thrown away")
            source.blame(f"{file.name} does not have its hash")
            raise NotFetched(f"{file.name} does not have its hash")
        await trio.to_thread.run_sync(self.store.keep, file)
        log.info("%s came from %s", file.name, source.label)

    def _tell_once(self, text: str) -> None:
        if text not in self._told and len(self._told) < 100:
            self._told.add(text)
            self._tell(text)


def run_shards(
    config: JoinConfig,
    opener: StreamOpener,
    look: Callable[[], Picture],
    speaking: Speaking,
    changed: Callable[[], None],
    allowed: Callable[[str], bool],
    bandwidth: Bandwidth | None = None,
) -> RunShards:
    """The shards of the run that a node joins; its address is asked first, then peers in any order. `bandwidth`: what
    comes from the address counts, too."""
    manifest, chance = config.manifest, Random(secrets.randbits(64))
    folder = shards_folder(config.home, manifest.data.sha256)
    store = ShardStore(folder, manifest.data.sha256, manifest.model.vocabulary, config.data_bytes_max)

    served: list[ShardSource] = []
    if config.data_url:
        from ftnode.node.data.shard_http import HttpShards

        served.append(HttpShards(config.data_url, bandwidth.down if bandwidth else None))

    def sources() -> list[ShardSource]:
        picture = look()
        others = sorted({peer.id for peer in (*picture.members, *picture.presences)} - {picture.me.id})
        chance.shuffle(others)
        return served + [PeerShards(manifest.run_id, peer_id, opener) for peer_id in others[:PEERS_MAX]]

    lender = ShardLender(manifest.run_id, store, opener.strike, allowed)
    return RunShards(store, lender, config.data, sources, chance, lambda text: speaking.say("data", text), changed)


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
