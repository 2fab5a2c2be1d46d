"""Frames on a p2pd stream: big reads straight into their place, header and payload in one write."""

from __future__ import annotations

import os
import select
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from ftnode.node.links.bandwidth import LimitedStream
from ftnode.protocol.wire.frames import HEADER_BYTES_MAX, PREFIX_BYTES, Framed, encode_frame, read_prefix
from ftnode.protocol.words.errors import PeerError

BUFFER_BYTES: Final = 1 << 16
"""Holds a few dozen control frames; of a tensor, at most this much is copied once more on its way."""

TURN_SECONDS: Final = 0.002
"""How long other tasks may have to wait for one stream on which data keeps coming in; a millisecond more at worst."""
PIECE_BYTES: Final = 1 << 14
"""Half of what p2pd hands over at once. Whoever sends less at a time is slow, and waits in the event loop."""
PATIENT_SHARE: Final = 0.25
"""Of all time, how much may be waited in the kernel, however many streams there are."""

RECEIPT: Final = struct.Struct(">QQ")
"""What a reader of tensors answers with: how many bytes it has taken since the handshake, and at which microsecond of a
clock of its own."""
RECEIPT_EVERY_BYTES: Final = 1 << 16
RECEIPT_EVERY_SECONDS: Final = 0.005
RECEIPT_BYTES_MAX: Final = 3 << 16
"""There is a receipt after so many bytes and so much time, and after so many bytes at the latest. A sender's window is
larger than that, so that it never waits for a receipt that waits for it."""

STRANGER_HEADER_MAX: Final = 1 << 17
"""Of greetings, requests and certificates; what is larger comes from members only."""

STREAM_ERRORS: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, trio.TooSlowError, EOFError)
"""How a stream fails. None of it is the peer's fault for sure, so none of it is a PeerError."""

PeerStream = trio.SocketStream | LimitedStream

Took = Callable[[int], Awaitable[None]]
"""Called with a number of bytes as soon as they were read."""

StreamHandler = Callable[[str, trio.SocketStream], Awaitable[None]]
"""Called with the opener's PeerId and the stream, which it must close; runs in a task of its own."""


def carry_bulk(stream: PeerStream, *, up: bool) -> None:
    """From now on what the stream carries in this direction can wait, where there is a limit."""
    if isinstance(stream, LimitedStream):
        stream.carry_bulk(up)


def at_most(count: int, handler: StreamHandler, each: int | None = None) -> StreamHandler:
    """`handler` for so many streams at a time, and for `each` of one peer; those beyond are closed without a word."""
    busy = Counter[str]()

    async def handle(peer_id: str, stream: trio.SocketStream) -> None:
        if busy.total() >= count or (each is not None and busy[peer_id] >= each):
            await trio.aclose_forcefully(stream)
            return
        busy[peer_id] += 1
        try:
            await handler(peer_id, stream)
        finally:
            busy[peer_id] -= 1
            if not busy[peer_id]:
                del busy[peer_id]

    return handle


async def read_some(stream: PeerStream, view: memoryview) -> int:
    """What there is, up to the size of `view`, straight from the kernel; waits for at least one byte. 0 at the end.

    Unlike trio's own calls this is no checkpoint when data is there, which halves the cost of a small frame.
    """
    if isinstance(stream, LimitedStream):
        return await stream.read_some(view)
    while True:
        try:
            return os.readv(stream.socket.fileno(), [view])
        except BlockingIOError:
            await trio.lowlevel.wait_readable(stream.socket.fileno())


class Patience:
    """Waits in the kernel, where every other task waits along: a bucket of seconds that fills with the time.

    0 <= left <= TURN_SECONDS before a wait; one wait may overdraw it by a millisecond.
    """

    def __init__(self) -> None:
        self._left = TURN_SECONDS
        self._seen = time.monotonic()

    def readable_soon(self, descriptor: int) -> bool:
        """Whether there is something to read within a millisecond; False at once when the bucket is empty."""
        now = time.monotonic()
        self._left = min(TURN_SECONDS, self._left + PATIENT_SHARE * (now - self._seen))
        self._seen = now
        if self._left <= 0:
            return False
        waiting = select.poll()
        waiting.register(descriptor, select.POLLIN)
        found = bool(waiting.poll(1))
        self._left -= time.monotonic() - now
        return found


PATIENCE: Final = Patience()
"""One for all streams: they share one event loop."""


async def read_into(stream: PeerStream, view: memoryview, took: Took | None = None) -> None:
    """Fill `view` from the stream, and tell `took` of every piece. Raises EOFError when it ends before.

    p2pd hands a tensor over in pieces of 32 KB. While they follow each other closely, waiting for the next one in
    the kernel is cheaper than a round of the event loop for each (a tenth of the time of 4 MB on loopback), so we do
    that while PATIENCE lasts, for TURN_SECONDS on end at most, and then let others run.
    """
    if isinstance(stream, LimitedStream):
        await _read_slowly(stream, view, took)
        return
    got, fresh, turn_ends = 0, 0, time.monotonic() + TURN_SECONDS
    descriptor = stream.socket.fileno()
    while got < len(view):
        in_turn = time.monotonic() < turn_ends
        if not in_turn:
            await trio.lowlevel.checkpoint()
            turn_ends = time.monotonic() + TURN_SECONDS
        try:
            count = os.readv(descriptor, [view[got:]])
        except BlockingIOError:
            if not in_turn or fresh < PIECE_BYTES or not PATIENCE.readable_soon(descriptor):
                await trio.lowlevel.wait_readable(descriptor)
                turn_ends = time.monotonic() + TURN_SECONDS
            fresh = 0
            continue
        if not count:
            raise EOFError("the stream ended")
        got += count
        fresh += count
        if took is not None:
            await took(count)


async def _read_slowly(stream: LimitedStream, view: memoryview, took: Took | None) -> None:
    got = 0
    while got < len(view):
        count = await stream.read_some(view[got:])
        if not count:
            raise EOFError("the stream ended")
        got += count
        if took is not None:
            await took(count)


async def read_exactly(stream: PeerStream, size: int) -> bytearray:
    """Reads no byte beyond. Raises EOFError when the stream ends before."""
    buffer = bytearray(size)
    await read_into(stream, memoryview(buffer))
    return buffer


def write_now(stream: PeerStream, rest: list[memoryview]) -> bool:
    """Write as much of `rest` as the kernel takes at once, and shorten it by that; True when nothing is left.

    Raises OSError.
    """
    if isinstance(stream, LimitedStream):
        return stream.write_now(rest)
    while rest:
        try:
            sent = os.writev(stream.socket.fileno(), rest)
        except BlockingIOError:
            return False
        while rest and sent >= len(rest[0]):
            sent -= len(rest.pop(0))
        if sent:
            rest[0] = rest[0][sent:]
    return True


async def write_all(stream: PeerStream, rest: list[memoryview], patience: trio.CancelScope | None = None) -> None:
    """Write the rest, waiting for room. The deadline of `patience` is for the peer: what a limit of ours (bandwidth.py)
    takes of it is put on again. Raises one of STREAM_ERRORS."""
    if isinstance(stream, LimitedStream):
        await stream.write_all(rest, patience)
        return
    while not write_now(stream, rest):
        await trio.lowlevel.wait_writable(stream.socket.fileno())


async def write_frame(
    stream: PeerStream, message: Framed, payload: memoryview | None = None, patience: trio.CancelScope | None = None
) -> None:
    """One frame; `patience` as for `write_all`. Raises one of STREAM_ERRORS."""
    head = memoryview(encode_frame(message, 0 if payload is None else len(payload)))
    await write_all(stream, [head] if payload is None else [head, payload], patience)


class FrameReader:
    """Reads frames from one stream: `header`, then `payload` when there is one, and so on.

    The buffer grows to the largest header that was announced, after its length was checked.
    """

    def __init__(self, stream: PeerStream) -> None:
        self._stream = stream
        self._taken: int | None = None
        """Since receipts are given; None: they are not."""
        self._told, self._told_at = 0, 0.0
        self._buffer = bytearray(BUFFER_BYTES)
        self._start = 0
        self._end = 0
        """0 <= start <= end <= len(buffer): what is read and not yet taken."""

    def give_receipts(self) -> None:
        """From here on the other side is told how much was taken, headers along with their payloads."""
        self._taken = 0

    async def wait(self) -> None:
        """Until a frame has begun. Raises EOFError when the stream ends before one does."""
        await self._fill(1)

    async def announced(self) -> tuple[int, int]:
        """How many bytes the next frame's header has, and its payload. Raises PeerError, EOFError, OSError."""
        await self._fill(PREFIX_BYTES)
        return read_prefix(self._buffer[self._start : self._start + PREFIX_BYTES])

    async def header(self, limit: int = STRANGER_HEADER_MAX) -> tuple[bytes, int]:
        """The header's bytes, at most `limit` of them, and the length of the payload behind it. Raises PeerError,
        EOFError, OSError."""
        header_bytes, payload_bytes = await self.announced()
        if header_bytes > limit:
            raise PeerError(f"a header of {header_bytes} bytes, where {limit} are enough")
        self._start += PREFIX_BYTES
        await self._fill(header_bytes)
        header = bytes(memoryview(self._buffer)[self._start : self._start + header_bytes])
        self._start += header_bytes
        if self._taken is not None:
            self._taken += PREFIX_BYTES + header_bytes
        return header, payload_bytes

    async def payload(self, view: memoryview) -> None:
        """Fill `view` with the payload: what the buffer holds of it, the rest straight from the kernel."""
        held = min(len(view), self._end - self._start)
        view[:held] = memoryview(self._buffer)[self._start : self._start + held]
        self._start += held
        if self._taken is None:
            await read_into(self._stream, view[held:])
            return
        await self._took(held)
        await read_into(self._stream, view[held:], self._took)
        await self._give_receipt()  # the frame ends here, and its sender wants to know at once

    async def skip(self, size: int) -> None:
        """Pass over a payload that is not wanted, without room for more than a buffer of it."""
        scratch = memoryview(bytearray(min(size, BUFFER_BYTES)))
        while size:
            part = scratch[:size]
            await self.payload(part)
            size -= len(part)

    async def _took(self, count: int) -> None:
        assert self._taken is not None
        self._taken += count
        fresh = self._taken - self._told
        late = time.monotonic() - self._told_at >= RECEIPT_EVERY_SECONDS
        if fresh >= RECEIPT_BYTES_MAX or (fresh >= RECEIPT_EVERY_BYTES and late):
            await self._give_receipt()

    async def _give_receipt(self) -> None:
        assert self._taken is not None
        if self._taken > self._told:
            self._told, self._told_at = self._taken, time.monotonic()
            await write_all(self._stream, [memoryview(RECEIPT.pack(self._told, int(self._told_at * 1e6)))])

    async def end(self) -> None:
        """Until the other side closes. Raises PeerError when it sends something instead."""
        if self._start == self._end and not await read_some(self._stream, memoryview(bytearray(1))):
            return
        raise PeerError("bytes where nothing may come")

    async def _fill(self, size: int) -> None:
        """Have `size` bytes in the buffer."""
        if self._start == self._end:
            self._start = self._end = 0
        if len(self._buffer) - self._start < size:
            held = self._buffer[self._start : self._end]
            if len(self._buffer) < size:
                self._buffer = bytearray(min(2 * size, HEADER_BYTES_MAX))
            self._buffer[: len(held)] = held
            self._start, self._end = 0, len(held)
        while self._end - self._start < size:
            count = await read_some(self._stream, memoryview(self._buffer)[self._end :])
            if not count:
                raise EOFError("the stream ended")
            self._end += count
