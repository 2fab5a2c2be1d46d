"""Where chunks of state come from: a donor at the other end of a stream, or this very node.

    borrower → donor   StateRequest
    donor → borrower   StateHeader, then every StateChunk in order, then its commits if wanted; or a Refusal

Who is given state checks every word of it before there is room for it: the sizes are the manifest's.
"""

from __future__ import annotations

import hashlib
import logging
from contextlib import AsyncExitStack
from typing import Final, Protocol

import trio

from ftnode.node.compute.state_shape import StateShape
from ftnode.node.links.link import LinkBroken, describe
from ftnode.node.links.streams import STREAM_ERRORS, FrameReader, write_frame
from ftnode.node.links.undigested import asking
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError, StreamOpener
from ftnode.node.weights.donor import NotLent, StateDonor
from ftnode.node.weights.reading import Reading, take_slot
from ftnode.protocol.chronicle import ENTRIES_KEPT
from ftnode.protocol.wire.admission import credible
from ftnode.protocol.wire.frames import (
    HEADER_BYTES_MAX,
    STATE_PROTOCOL,
    Refusal,
    StateChunk,
    StateHeader,
    StateHistory,
    StateRequest,
    Transfer,
    clean_reason,
    read_transfer,
)
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.events import History
from ftnode.protocol.words.messages import Donor
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Handle, Peer

log = logging.getLogger(__name__)

HEADER_SECONDS: Final = 30.0
"""Longer than a donor waits to reach the version (donor.py)."""
CHUNK_SECONDS: Final = 30.0
HISTORY_SECONDS: Final = 5.0
FAULTS: Final = (LinkBroken, NotLent, PeerError, *STREAM_ERRORS)
"""How a donor fails us."""


class TransferFailed(Exception):
    """Why a transfer cannot be finished. `donor` is None when it is our own fault."""

    def __init__(self, donor: Peer | None, reason: str) -> None:
        super().__init__(reason)
        self.donor = donor
        self.reason = reason


class StateSource(Protocol):
    """One donor's state, chunk by chunk. Everything raises PeerError, NotLent or one of STREAM_ERRORS."""

    header: StateHeader
    remote: bool
    hashes: list[bytes]
    """Of the chunks that were read so far."""

    async def next_chunk(self, index: int) -> tuple[Handle, int]:
        """Chunk `index` in a slot that the caller releases, and its length in bytes."""
        ...

    async def read(self, index: int, room: memoryview) -> bytes:
        """Chunk `index` into `room`, which has exactly its length; its hash."""
        ...

    async def history(self) -> tuple[History, ...]:
        """After the last chunk: the donor's commits, if they were asked for."""
        ...


class RemoteSource:
    """A donor at the other end of a stream. `lengths`: of its chunks."""

    remote = True

    def __init__(
        self, peer_id: str, arena: Arena, settings: Settings, reader: FrameReader, header: StateHeader,
        lengths: tuple[int, ...], since: int,
    ) -> None:  # fmt: skip
        self.header, self.hashes = header, list[bytes]()
        self._peer_id = peer_id
        self._arena, self._settings, self._reader = arena, settings, reader
        self._lengths, self._since = lengths, since

    async def next_chunk(self, index: int) -> tuple[Handle, int]:
        expected = await self._announced(index)
        handle = await take_slot(self._arena)
        try:
            await self._fill(index, self._arena.view(handle)[: self._lengths[index]], expected)
        except BaseException:
            self._arena.release(handle)
            raise
        return handle, self._lengths[index]

    async def read(self, index: int, room: memoryview) -> bytes:
        expected = await self._announced(index)
        await self._fill(index, room, expected)
        return expected

    async def history(self) -> tuple[History, ...]:
        pieces: list[History] = []
        newest, told = self._since, 0
        while self._since >= 0:
            answer, _ = await self._frame()
            if not isinstance(answer, StateHistory):
                raise PeerError("something else than its commits")
            if not answer.commits:
                break
            told += len(answer.commits)
            late = answer.commits[0].step <= newest
            with asking(self._peer_id, STATE_PROTOCOL):
                if late or told > ENTRIES_KEPT or not credible(answer.commits, self._settings):
                    raise PeerError("commits that cannot be")
            newest = answer.commits[-1].step
            pieces.append(History(answer.commits))
        return tuple(pieces)

    async def _frame(self) -> tuple[Transfer, int]:
        """The next frame, and the length of what follows it."""
        with asking(self._peer_id, STATE_PROTOCOL):
            with trio.fail_after(CHUNK_SECONDS):
                data, length = await self._reader.header(HEADER_BYTES_MAX)
            found = read_transfer(data, length, self._arena.slot_bytes)
        if isinstance(found, Refusal):
            raise NotLent(clean_reason(found.reason), found.retry)
        return found, length

    async def _announced(self, index: int) -> bytes:
        """The hash of the chunk that comes next."""
        chunk, length = await self._frame()
        if not isinstance(chunk, StateChunk) or chunk.index != index or length != self._lengths[index]:
            raise PeerError(f"something else than chunk {index}")
        return chunk.hash

    async def _fill(self, index: int, room: memoryview, expected: bytes) -> None:
        with trio.fail_after(CHUNK_SECONDS):
            await self._reader.payload(room)
        if hashlib.blake2b(room, digest_size=16).digest() != expected:
            raise PeerError(f"chunk {index} does not have its hash")
        self.hashes.append(expected)


class LocalSource:
    """This node holds the donating stage itself, or keeps the copy."""

    remote = False

    def __init__(self, arena: Arena, reading: Reading) -> None:
        self.header, self.hashes = reading.header, list[bytes]()
        self._arena, self._reading = arena, reading

    async def next_chunk(self, index: int) -> tuple[Handle, int]:
        try:
            chunk = await self._reading.chunk(index)
        except ComputeError as error:
            raise NotLent(error.reason, retry=False) from None
        self.hashes.append(chunk.hash)
        return chunk.handle, chunk.length

    async def read(self, index: int, room: memoryview) -> bytes:
        handle, length = await self.next_chunk(index)
        try:
            room[:] = self._arena.view(handle)[:length]
        finally:
            self._arena.release(handle)
        return hashlib.blake2b(room, digest_size=16).digest()

    async def history(self) -> tuple[History, ...]:
        return ()


class Borrower:
    """Asks donors for state. `donor` lends us what is here."""

    def __init__(
        self, me: Peer, settings: Settings, arena: Arena, transport: StreamOpener, donor: StateDonor, shape: StateShape
    ) -> None:
        self.me, self.settings, self.shape = me, settings, shape
        self._arena, self._transport, self._donor = arena, transport, donor

    async def open(self, donor: Donor, request: StateRequest, stack: AsyncExitStack) -> StateSource:
        """What the donor lends, until `stack` closes. Raises TransferFailed, and ComputeError for a fault of ours."""
        try:
            if donor.peer == self.me:
                reading = await stack.enter_async_context(self._donor.lend(request, self.me.id))
                self._check(request, reading.header)
                return LocalSource(self._arena, reading)
            stream = await self._transport.open(donor.peer.id, STATE_PROTOCOL)
            stack.callback(stream.socket.close)
            with asking(donor.peer.id, STATE_PROTOCOL, FAULTS):
                return await self._ask(donor.peer.id, stream, request)
        except FAULTS as error:
            raise self.blame(donor.peer, error) from None

    async def history(self, donor: Peer, source: StateSource) -> tuple[History, ...]:
        """What the donor tells behind its last chunk. The weights are whole by then, and worth more than its tale."""
        try:
            with trio.fail_after(HISTORY_SECONDS):
                return await source.history()
        except FAULTS as error:
            log.warning("no commits from %s: %s", donor, self.blame(donor, error).reason)
            return ()

    def blame(self, donor: Peer, error: BaseException) -> TransferFailed:
        """What a failure with a donor means for the transfer. A donor that is this node has no faults of a peer."""
        if donor == self.me:
            return TransferFailed(None, describe(error))
        if isinstance(error, PeerError):
            self._transport.strike(donor.id, str(error))
        return TransferFailed(donor, describe(error))

    async def _ask(self, peer_id: str, stream: trio.SocketStream, request: StateRequest) -> RemoteSource:
        reader = FrameReader(stream)
        with trio.fail_after(HEADER_SECONDS):
            await write_frame(stream, request)
            answer = read_transfer(*await reader.header(), 0)
        if isinstance(answer, Refusal):
            raise NotLent(clean_reason(answer.reason), answer.retry)
        if not isinstance(answer, StateHeader):
            raise PeerError("an answer that is not the state asked for")
        lengths = self._check(request, answer)
        return RemoteSource(peer_id, self._arena, self.settings, reader, answer, lengths, request.since)

    def _check(self, request: StateRequest, header: StateHeader) -> tuple[int, ...]:
        """Lengths of the chunks to come. Raises PeerError unless they are what was asked for and what we have room for.

        A kept copy may be older than what it stands for, and is encoded as it is kept.
        """
        version, encoding = header.version, header.encoding
        if request.copy:
            fits = version.step <= request.step and (encoding == "raw" or request.parts == "weights")
        else:
            fits = (version.step, version.commit, encoding) == (request.step, request.commit, request.encoding)
        if not fits:
            raise PeerError("an answer that is not the state asked for")
        size = self.shape.size(request.stage, request.parts)
        lengths = self.shape.lengths(request.stage, request.parts, encoding)
        if (header.size, header.chunks) != (size, len(lengths)):
            raise PeerError(f"it has {header.size} bytes in {header.chunks} chunks instead of {size} in {len(lengths)}")
        return lengths
