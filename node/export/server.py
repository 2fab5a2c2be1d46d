"""The holder's side of `/ftnode/export/1`: weights for a reader who need not be a member.

A reader of a run that goes on names a step to come; each holder freezes its stage when it has applied that step, and
training goes on (compute/exports.py). Strangers must cost little: one snapshot per stage at a time, made only so often,
given up when it is not read; of what is read no slot of the arena is held while a reader is slow. Once all steps are
done nothing is frozen, since nothing changes the weights any more.
"""

from __future__ import annotations

import logging
import select
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.export.wire import (
    WAIT_SECONDS,
    ExportOffer,
    ExportRequest,
    Holders,
    SendIt,
    WhoHolds,
    Written,
    hear_asked,
)
from ftnode.node.links.side_messages import say
from ftnode.node.links.streams import STREAM_ERRORS, write_all
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError, ComputePort
from ftnode.node.weights.donor import NotLent
from ftnode.node.weights.reading import AHEAD, StageReading, begin_reading, closing
from ftnode.protocol.wire.frames import Refusal
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.types import Version

log = logging.getLogger(__name__)

STREAMS_MAX: Final = 112
"""Of all readers: one for each stage that is here, which a reader of a model has at the same time. Those that wait cost
nothing else."""
READERS_MAX: Final = 4
"""That are sent something at a time; the others wait for their turn."""
BATCH_BYTES: Final = 16 << 20
"""Copied out of the arena for one reader."""
IDLE_SECONDS: Final = 600.0
"""Between two requests, and until the reader has written everything down."""
SEND_IT_SECONDS: Final = 60.0
"""A snapshot waits so long for a reader that has been offered it."""
WRITE_SECONDS: Final = 30.0
"""For one chunk."""
SLOWEST: Final = 1 << 16
"""Bytes per second on the whole, once it is sent something; who reads slower is hung up on."""
POLL_SECONDS: Final = 0.25
SNAPSHOTS_MAX: Final = 3
"""Of one stage, in a row; after that, one per SNAPSHOT_SECONDS: each costs compute a copy and a hash."""
SNAPSHOT_SECONDS: Final = 10.0
WRITTEN_MAX: Final = 256


@dataclass(slots=True)
class _Snapshot:
    """Of a stage that goes on. 0 < readers while it is kept."""

    step: int
    readers: int = 0


class Allowance:
    """A bucket of snapshots for each stage. 0 <= left <= SNAPSHOTS_MAX."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[float, float]] = {}

    def take(self, stage: int, now: float) -> bool:
        left, seen = self._left.get(stage, (float(SNAPSHOTS_MAX), now))
        left = min(float(SNAPSHOTS_MAX), left + (now - seen) / SNAPSHOT_SECONDS)
        self._left[stage] = (left - 1 if left >= 1 else left), now
        return left >= 1


class ExportServer:
    """Answers readers. `serve` is the stream handler of EXPORT_PROTOCOL."""

    def __init__(
        self,
        run: str,
        steps: int,
        arena: Arena,
        compute: ComputePort,
        held: Callable[[int], Version | None],
        next_advance: Callable[[], trio.Event],
        holders: Callable[[], Holders | None],
        on_written: Callable[[str, int], None],
    ) -> None:
        """`held`: the version that a stage here has, or will have when compute has done what it was told; None when
        we do not hold it. `next_advance`: set when it changes. `holders`: None while we know of no view. `on_written`:
        the reader with this PeerId says that it has written down the whole model of a step; once for each."""
        self._run, self._steps = run, steps
        self._arena, self._compute = arena, compute
        self._held, self._next_advance, self._holders = held, next_advance, holders
        self._on_written = on_written
        self._written: deque[tuple[str, int]] = deque(maxlen=WRITTEN_MAX)
        """Reader and step, of the last ones that were told of."""
        self._snapshots: dict[int, _Snapshot] = {}
        self._allowance = Allowance()
        self._readers = trio.CapacityLimiter(READERS_MAX)

    async def serve(self, peer_id: str, stream: trio.SocketStream) -> None:
        """One reader, until it hangs up. Never raises for what it does."""
        given: ExportRequest | None = None
        try:
            while True:
                with trio.fail_after(IDLE_SECONDS):
                    asked = await hear_asked(stream)
                match asked:
                    case WhoHolds():
                        await self._tell(asked, stream)
                    case ExportRequest():
                        given = None
                        await self._export(asked, stream)
                        given = asked
                    case Written() if given is not None:
                        self._hear_written(peer_id, given.step)
                        return  # which hangs up, and so says that it was heard
                    case _:
                        raise PeerError(f"{type(asked).__name__} out of turn")
        except (NotLent, ComputeError) as error:
            log.info("not exported to %s: %s", peer_id, error)
            await self._refuse(stream, error)
        except EOFError:
            pass  # the reader has what it wants
        except (PeerError, *STREAM_ERRORS) as error:
            log.info("exporting to %s ended: %s", peer_id, error or type(error).__name__)

    def _hear_written(self, peer_id: str, step: int) -> None:
        """A reader says it for every stage; once is enough."""
        if (peer_id, step) not in self._written:
            self._written.append((peer_id, step))
            self._on_written(peer_id, step)

    async def _refuse(self, stream: trio.SocketStream, error: NotLent | ComputeError) -> None:
        reason = error.reason if isinstance(error, ComputeError) else str(error)
        try:
            with trio.fail_after(WRITE_SECONDS):
                await say(stream, Refusal(reason, isinstance(error, ComputeError) or error.retry))
        except STREAM_ERRORS:
            log.info("the reader did not wait for the answer")

    async def _tell(self, asked: WhoHolds, stream: trio.SocketStream) -> None:
        self._check_run(asked.run)
        holders = self._holders()
        if holders is None:
            raise NotLent("nobody has told yet who holds what of the run", retry=True)
        with trio.fail_after(WRITE_SECONDS):
            await say(stream, holders)

    def _check_run(self, run: str) -> None:
        if run != self._run:
            raise NotLent(f"this peer takes part in the run {self._run[:12]}", retry=False)

    async def _export(self, request: ExportRequest, stream: trio.SocketStream) -> None:
        self._check_run(request.run)
        held = await self._reach(request, stream)
        async with self._reading(request, held) as reading:
            header = reading.header
            offer = ExportOffer(header.version.step, header.version.commit, header.size, header.digest)
            with trio.fail_after(WRITE_SECONDS):
                await say(stream, offer)
            with trio.fail_after(SEND_IT_SECONDS):
                asked = await hear_asked(stream)
            if not isinstance(asked, SendIt):
                raise PeerError(f"{type(asked).__name__} after an offer")
            await self._turn(stream)
            try:
                with trio.fail_after(IDLE_SECONDS + header.size / SLOWEST):
                    await self._send(reading, stream)
            finally:
                self._readers.release()

    async def _turn(self, stream: trio.SocketStream) -> None:
        """Wait to be one of few, however long: each of those before has its deadline. Raises EOFError when the reader
        hangs up meanwhile."""
        taken = False

        async def watch(scope: trio.CancelScope) -> None:
            while not hung_up(stream):
                await trio.sleep(POLL_SECONDS)
            scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, nursery.cancel_scope)
            await self._readers.acquire()
            taken = True
            nursery.cancel_scope.cancel()
        if not taken:
            raise EOFError("the reader has gone")

    async def _reach(self, request: ExportRequest, stream: trio.SocketStream) -> Version:
        """What is held here once it is at least of the step that is wanted."""
        stage = request.stage
        with trio.move_on_after(WAIT_SECONDS):
            while True:
                advance, held = self._next_advance(), self._held(stage)
                if held is None:
                    raise NotLent(f"stage {stage} is not here", retry=True)
                if held.step >= request.step:
                    return held
                if hung_up(stream):
                    raise EOFError("the reader has gone")
                with trio.move_on_after(POLL_SECONDS):
                    await advance.wait()
        raise NotLent(f"step {request.step} of stage {stage} did not come within {WAIT_SECONDS:g} s", retry=True)

    @asynccontextmanager
    async def _reading(self, request: ExportRequest, held: Version) -> AsyncIterator[StageReading]:
        """Commands of compute come in order, so that its version is the one that was looked up."""
        stage, step, over = request.stage, request.step, held.step >= self._steps
        kept = self._snapshots.get(stage)
        if held.step > step and (over or kept is None or kept.step != step):
            raise NotLent(f"stage {stage} is at step {held.step} here", retry=True)
        if not over:
            kept = self._keep(stage, step)
            kept.readers += 1
        try:
            begun = await begin_reading(self._compute, self._arena, stage, step, "weights", freeze=not over)
            async with closing(begun) as reading:
                yield reading
        finally:
            if not over and kept is not None:
                kept.readers -= 1
                if not kept.readers:
                    del self._snapshots[stage]

    def _keep(self, stage: int, step: int) -> _Snapshot:
        """The snapshot of that step, a new one if there is none. Raises NotLent."""
        kept = self._snapshots.get(stage)
        if kept is None:
            if not self._allowance.take(stage, trio.current_time()):
                raise NotLent(f"snapshots of stage {stage} were made too often; try again in a minute", retry=True)
            kept = self._snapshots[stage] = _Snapshot(step)
        if kept.step != step:
            raise NotLent(f"the snapshot of stage {stage} is of step {kept.step}, and somebody reads it", retry=True)
        return kept

    async def _send(self, reading: StageReading, stream: trio.SocketStream) -> None:
        """Copied out of the arena first: a stranger who reads slowly holds no slot of the step in progress."""
        header = reading.header
        reading.ahead = max(1, min(AHEAD, BATCH_BYTES // self._arena.slot_bytes))
        index = 0
        while index < header.chunks:
            pieces: list[bytes] = []
            while not pieces or reading.ready:
                chunk = await reading.chunk(index)
                pieces.append(bytes(self._arena.view(chunk.handle)[: chunk.length]))
                self._arena.release(chunk.handle)
                index += 1
            for piece in pieces:
                with trio.fail_after(WRITE_SECONDS):
                    await write_all(stream, [memoryview(piece)])


def hung_up(stream: trio.SocketStream) -> bool:
    """Whether the other side has closed, told without reading."""
    poll = select.poll()
    poll.register(stream.socket.fileno(), select.POLLRDHUP | select.POLLHUP | select.POLLERR)
    return bool(poll.poll(0))
