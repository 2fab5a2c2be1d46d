"""The lending side of `/ftnode/state/1`: a stage's state out of compute, chunk by chunk, or a copy kept in memory.

A request for a version that we have not applied yet waits for it: the borrower hears of a commit when we do. One with
the optimiser's state goes on while we train, from what compute freezes (compute/exports.py), and whoever asks for the
same meanwhile reads along. A copy is lent as it is kept. source.py is the other side.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from ftnode.node.links.streams import STREAM_ERRORS, FrameReader, write_frame
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError, ComputePort
from ftnode.node.weights.copies import Copy, CopyStore, copy_digest
from ftnode.node.weights.known_snapshots import KnownSnapshots
from ftnode.node.weights.lent_dump import LentDump
from ftnode.node.weights.reading import CopyReading, Reading, StageReading, begin_reading, closing
from ftnode.protocol.wire.frames import (
    PARTS,
    Refusal,
    StateChunk,
    StateHeader,
    StateRequest,
    history_pieces,
    read_transfer,
)
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.messages import Commit
from ftnode.protocol.words.types import LentCopy, Version

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 5.0
VERSION_SECONDS: Final = 20.0
"""How long we wait to reach the version asked for; less than the newcomer waits for the header."""
VERSION_POLL_SECONDS: Final = 0.25
CHUNK_SECONDS: Final = 30.0
SLOWEST: Final = 1 << 16
"""Bytes per second on the whole; a borrower that takes less is hung up on, and its place is free."""
LENDINGS_MAX: Final = 8
LENDINGS_PER_PEER_MAX: Final = 4
"""Two stages rebuilt at once, each blended from two stages that are here."""


@dataclass(frozen=True, slots=True)
class Exported:
    """Peer `to` is getting our weights; for the trace. `dump`: name of the file that they are written to, or ""."""

    stage: int
    step: int
    commit: str
    purpose: str
    """install; keep: it will keep a copy; copy: what it gets is the copy that we keep; sample: it
    looks how we train."""
    to: str
    norm_squared: float
    digest: str
    dump: str


@dataclass(frozen=True, slots=True)
class Lending:
    """What is being lent to whom."""

    stage: int
    to: str


class NotLent(Exception):
    """Why a request is refused. `retry`: asking again later may help."""

    def __init__(self, reason: str, retry: bool) -> None:
        super().__init__(reason)
        self.retry = retry


class Waits:
    """How long a borrower may keep us waiting: CHUNK_SECONDS for each frame, and `seconds` for all of them together.
    What compute takes, and what limits of ours do, does not count."""

    def __init__(self, seconds: float) -> None:
        self._left = seconds

    @contextmanager
    def one(self) -> Iterator[trio.CancelScope]:
        """For one frame. Raises trio.TooSlowError when it is over."""
        began = trio.current_time()
        with trio.fail_after(min(CHUNK_SECONDS, max(self._left, 0.0))) as patience:
            deadline = patience.deadline
            yield patience
            self._left -= trio.current_time() - began - (patience.deadline - deadline)


class StateDonor:
    """Answers the requests of newcomers. `serve` is the stream handler of STATE_PROTOCOL."""

    def __init__(
        self,
        run: str,
        arena: Arena,
        compute: ComputePort,
        strike: Callable[[str, str], None],
        on_export: Callable[[Exported], None],
        dump_folder: Path | None = None,
        *,
        dumped_parts: tuple[str, ...] = ("weights",),
        copies: CopyStore | None = None,
        allowed: Callable[[str], bool] | None = None,
        held: Callable[[int], Version | None] | None = None,
        history: Callable[[int], tuple[Commit, ...]] | None = None,
        on_lent: Callable[[LentCopy], None] = lambda copy: None,
    ) -> None:
        """`dump_folder`: where weights that are lent for a rebuild are also written, for the audit.

        `allowed`: may a PeerId borrow now? `held`: the version that a stage here has, or will have when compute has
        done what it was told; None when we do not hold it. `history`: the commits after a step. `on_lent`: is told what
        a peer gets from us to keep, before it has all of it.
        """
        self._run = run
        self._arena = arena
        self._compute = compute
        self._strike = strike
        self._on_export, self._on_lent = on_export, on_lent
        self._dump_folder = dump_folder
        self._dumped_parts = dumped_parts
        self._allowed = allowed or (lambda peer_id: True)
        self._held = held
        self._copies = copies or CopyStore()
        self._history = history or (lambda since: ())
        self.disk: KnownSnapshots | None = None
        self._advance = trio.Event()
        self._lendings: list[Lending] = []

    def advanced(self) -> None:
        """A stage has a new version: look again whether somebody waits for it."""
        self._advance.set()
        self._advance = trio.Event()

    def next_advance(self) -> trio.Event:
        """Set when a stage has a new version."""
        return self._advance

    async def serve(self, peer_id: str, stream: trio.SocketStream) -> None:
        """One request, from its first byte to the end of the stream."""
        try:
            with trio.fail_after(REQUEST_SECONDS):
                request = read_transfer(*await FrameReader(stream).header(), 0)
            if not isinstance(request, StateRequest):
                raise PeerError("a stream that does not begin with a proper StateRequest")
            try:
                if not self._allowed(peer_id):
                    raise NotLent("no member of the run, as far as we know", retry=True)
                async with self.lend(request, peer_id) as reading:
                    await self._send(reading, stream, request, peer_id)
                if request.since >= 0:
                    await self._tell(request.since, stream)
            except (NotLent, ComputeError) as error:
                log.info("stage %d not lent to %s: %s", request.stage, peer_id, error)
                with trio.fail_after(REQUEST_SECONDS):
                    await write_frame(stream, Refusal(str(error), isinstance(error, NotLent) and error.retry))
        except PeerError as error:
            self._strike(peer_id, str(error))
        except STREAM_ERRORS as error:
            log.info("lending to %s ended: %s", peer_id, error or type(error).__name__)

    @asynccontextmanager
    async def lend(self, request: StateRequest, to: str) -> AsyncIterator[Reading]:
        """The state asked for, once we have that version; recorded, and dumped where wanted.

        Raises NotLent, and ComputeError when compute fails.
        """
        if request.run != self._run:
            raise NotLent("another run", retry=False)
        if sum(lending.to == to for lending in self._lendings) >= LENDINGS_PER_PEER_MAX:
            raise NotLent("busy lending to you", retry=True)
        if len(self._lendings) >= LENDINGS_MAX:
            raise NotLent("busy lending to others", retry=True)
        lending = Lending(request.stage, to)
        self._lendings.append(lending)
        try:
            if request.copy:
                kept = CopyReading(self._arena, self._kept(request))
                self._record(request, to, kept.header, "")
                yield kept
                return
            if self._may_be_on_disk(request):
                assert self.disk is not None
                async with self.disk.lend(request, self._arena) as saved:
                    if saved is not None:
                        self._record(request, to, saved.header, "")
                        yield saved
                        return
            async with AsyncExitStack() as stack:
                reading = await stack.enter_async_context(closing(await self._reach(request)))
                name = ""
                if (dump := self._open_dump(request, to)) is not None:
                    stack.callback(dump.close)
                    reading.dump, name = dump, dump.name
                self._record(request, to, reading.header, name)
                yield reading
        finally:
            self._lendings.remove(lending)

    def _may_be_on_disk(self, request: StateRequest) -> bool:
        """A whole state that compute does not have at that version."""
        held = None if self._held is None else self._held(request.stage)
        return self.disk is not None and request.parts == "all" and (held is None or held.commit != request.commit)

    def _kept(self, request: StateRequest) -> Copy:
        copy = self._copies.held.get(request.stage)
        if copy is None or copy.parts != request.parts:
            raise NotLent(f"no copy of stage {request.stage} is kept here", retry=True)
        if copy.header.version.step > request.step:
            raise NotLent(f"the copy here is of step {copy.header.version.step}, after {request.step}", retry=False)
        return copy

    def _check_version(self, request: StateRequest) -> None:
        """Raises NotLent when waiting would not help: we shall never have what is asked for."""
        if self._held is None:
            return
        held = self._held(request.stage)
        if held is None:
            raise NotLent(f"no weights of stage {request.stage} here", retry=True)
        if held.step > request.step and request.parts != "all":
            raise NotLent(f"the weights here are of step {held.step}, not {request.step}", retry=False)
        if held.step == request.step and held.commit != request.commit:
            raise NotLent(f"the weights after step {request.step} are of another history", retry=False)

    def _check_not_over(self, request: StateRequest) -> None:
        """Compute does not have it, not even frozen. Raises NotLent when it never will again."""
        held = None if self._held is None else self._held(request.stage)
        if held is not None and held.step > request.step:
            raise NotLent(
                f"the weights here are of step {held.step}, and those of {request.step} were not being read when it "
                "came", retry=False,
            )  # fmt: skip

    async def _reach(self, request: StateRequest) -> StageReading:
        """To be closed. Commands of compute come in order, so that its version is the one that was looked up."""
        last = "too slow"
        with trio.move_on_after(VERSION_SECONDS):
            while True:
                advance = self._advance
                self._check_version(request)
                try:
                    reading = await begin_reading(
                        self._compute, self._arena, request.stage, request.step, request.parts, request.encoding,
                        request.freeze,
                    )  # fmt: skip
                except ComputeError as error:
                    if error.kind != "invalid":
                        raise
                    self._check_not_over(request)
                    last = error.reason
                else:
                    if reading.header.version.commit == request.commit:
                        return reading
                    await reading.end()
                    raise NotLent(f"the weights after step {request.step} are of another history", retry=False)
                with trio.move_on_after(VERSION_POLL_SECONDS):
                    await advance.wait()
        raise NotLent(last, retry=True)

    async def _send(self, reading: Reading, stream: trio.SocketStream, request: StateRequest, to: str) -> None:
        header, hashes = reading.header, list[bytes]()
        waits = Waits(CHUNK_SECONDS + header.size / SLOWEST)
        with waits.one():
            await write_frame(stream, header)
        for index in range(header.chunks):
            chunk = await reading.chunk(index)
            hashes.append(chunk.hash)
            if request.freeze and request.parts in PARTS and len(hashes) == header.chunks:
                digest = copy_digest(request.stage, request.parts, header, hashes)
                self._on_lent(LentCopy(request.stage, to, header.version, digest))
            try:
                with waits.one() as patience:
                    payload = self._arena.view(chunk.handle)[: chunk.length]
                    await write_frame(stream, StateChunk(index, chunk.hash), payload, patience)
            finally:
                self._arena.release(chunk.handle)

    async def _tell(self, since: int, stream: trio.SocketStream) -> None:
        for piece in history_pieces(self._history(since)):
            with trio.fail_after(CHUNK_SECONDS):
                await write_frame(stream, piece)

    def _open_dump(self, request: StateRequest, to: str) -> LentDump | None:
        """Exact copies need none: equal digests say all. What is kept is checked when it is used."""
        if self._dump_folder is None or request.freeze or request.parts not in self._dumped_parts:
            return None
        name = f"lent-{request.stage}-{request.step}-{request.commit[:12]}-{to[-6:]}.weights"
        return LentDump(self._dump_folder / name, self._dump_no_more)

    def _dump_no_more(self, error: OSError) -> None:
        if self._dump_folder is not None:
            log.warning("what is lent is not written to %s any more: %s", self._dump_folder, error.strerror)
        self._dump_folder = None

    def _record(self, request: StateRequest, to: str, header: StateHeader, dump: str) -> None:
        kept = "keep" if request.parts in PARTS else "sample"
        purpose = "copy" if request.copy else kept if request.freeze else "install"
        version, norm, digest = header.version, header.norm_squared, header.digest
        self._on_export(Exported(request.stage, version.step, version.commit, purpose, to, norm, digest, dump))
