"""How many bytes a second go to peers and come from them: one token bucket per direction, for all streams of the node.

A bucket fills with the time, up to a small burst, and every byte takes one token out. Bulk (tensors, weights,
gradients, shards, exports) passes piece by piece, in the order in which its streams ask, so that each has an equal
share. What is urgent (the control lane's frames and heartbeats, greetings) never waits behind bulk: it passes at once
and leaves the bucket in debt, which bulk then waits for. The debt is bounded, so that the limit holds whatever comes.

Who sends to us feels the limit because we read no faster: p2pd's window of the stream fills, and the sender waits.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, cast

import trio

PIECE_SECONDS: Final = 0.02
PIECE_BYTES_MIN: Final = 1 << 10
PIECE_BYTES_MAX: Final = 1 << 16
"""What a bulk stream passes at a time, so that others have their turn: what the line carries in 20 ms, within these."""
PAUSE_SECONDS_MIN: Final = 1e-4
"""Rounding must not make anybody wait for nothing, again and again."""
BURST_SECONDS: Final = 0.25
"""Of the limit, what an idle line may make up for at once."""
DEBT_SECONDS: Final = 1.0
"""Of the limit, how far urgent bytes may be ahead. With the burst, 30 s exceed the limit by 4 % at most."""
OVERHEAD: Final = 1.03
"""Bytes on the wire per byte of ours: TLS records, yamux frames, acknowledgements (`ftnode lab limits` measures it)."""


class Bucket:
    """Tokens are bytes. -debt <= tokens <= burst."""

    def __init__(self, bytes_per_second: float, now: float) -> None:
        self.rate = bytes_per_second / OVERHEAD
        self.piece = int(min(PIECE_BYTES_MAX, max(PIECE_BYTES_MIN, self.rate * PIECE_SECONDS)))
        self._burst = max(self.rate * BURST_SECONDS, float(self.piece))
        self._debt = self.rate * DEBT_SECONDS
        self._tokens = self._burst
        self._seen = now
        self.passed = 0

    def grant(self, wanted: int, now: float, urgent: bool) -> int:
        """How many of `wanted` bytes may pass now, a piece at most; they are taken out. 0: none yet."""
        self._fill(now)
        count = min(wanted, self.piece)
        if self._tokens + (self._debt if urgent else 0.0) < count:
            return 0
        self._take(count)
        return count

    def wait(self, wanted: int, now: float, urgent: bool) -> float:
        """Seconds until `grant` gives something, if nobody else takes it."""
        self._fill(now)
        missing = min(wanted, self.piece) - self._tokens - (self._debt if urgent else 0.0)
        return max(0.0, missing / self.rate)

    def refund(self, count: int) -> None:
        """Bytes that were granted and did not pass."""
        self._take(-count)

    def charge(self, count: int, now: float) -> float:
        """Bytes that have passed already; seconds until they are made up for."""
        self._fill(now)
        self._take(count)
        return max(0.0, -self._tokens / self.rate)

    def _take(self, count: int) -> None:
        self._tokens -= count
        self.passed += count

    def _fill(self, now: float) -> None:
        self._tokens = min(self._burst, self._tokens + max(0.0, now - self._seen) * self.rate)
        self._seen = max(self._seen, now)


class Gate:
    """One direction's bucket and those who wait for it. Bulk waits in line; urgent bytes wait for the debt alone."""

    def __init__(self, bytes_per_second: float) -> None:
        self.bucket = Bucket(bytes_per_second, trio.current_time())
        self._line = trio.StrictFIFOLock()

    def grant_now(self, wanted: int, urgent: bool) -> int:
        """As many bytes as may pass without waiting, and without overtaking whoever waits already."""
        if not urgent and self._line.locked():
            return 0
        return self.bucket.grant(wanted, trio.current_time(), urgent)

    async def grant(self, wanted: int, urgent: bool, patience: trio.CancelScope | None = None) -> int:
        """Wait until some of `wanted` bytes may pass. The deadline of `patience` is put off by the wait: it is not the
        peer that is slow."""
        if wanted <= 0:
            return 0
        began = trio.current_time()
        if urgent:
            count = await self._granted(wanted, True)
        else:
            async with self._line:
                count = await self._granted(wanted, False)
        if patience is not None:
            patience.deadline += trio.current_time() - began
        return count

    async def spend(self, count: int) -> None:
        """Bytes that have come by another way than a peer's stream: wait until they are made up for."""
        await trio.sleep(self.bucket.charge(count, trio.current_time()))

    async def _granted(self, wanted: int, urgent: bool) -> int:
        while not (count := self.bucket.grant(wanted, trio.current_time(), urgent)):
            await trio.sleep(max(PAUSE_SECONDS_MIN, self.bucket.wait(wanted, trio.current_time(), urgent)))
        return count


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """A gate for each direction that is limited; streams of `urgent` protocols begin as urgent."""

    up: Gate | None = None
    down: Gate | None = None
    urgent: Collection[str] = ()

    def limited(self, stream: trio.SocketStream, protocol: str) -> trio.SocketStream:
        """The same stream, within the limits. It goes wherever a stream of p2pd goes; trio lets nobody derive from its
        SocketStream, so that the types cannot say it."""
        return cast(trio.SocketStream, LimitedStream(stream, self, protocol in self.urgent))


class LimitedStream:
    """A stream that asks the gates. A stream of an urgent protocol may carry bulk in one direction: of a link's two
    lanes one carries tensors, and their receipts the other way."""

    def __init__(self, stream: trio.SocketStream, limits: Bandwidth, urgent: bool) -> None:
        self.socket = stream.socket
        self._urgent_up = self._urgent_down = urgent
        self._stream = stream
        self._up, self._down = limits.up, limits.down

    def carry_bulk(self, up: bool) -> None:
        """From now on what goes in this direction is not urgent."""
        if up:
            self._urgent_up = False
        else:
            self._urgent_down = False

    async def read_some(self, view: memoryview) -> int:
        """As `streams.read_some`."""
        gate = self._down
        while True:
            await trio.lowlevel.wait_readable(self.socket.fileno())
            room = len(view) if gate is None else await gate.grant(len(view), self._urgent_down)
            count = 0
            try:
                count = os.readv(self.socket.fileno(), [view[:room]])  # its number now: it may be closed since
            except BlockingIOError:
                continue
            finally:
                if gate is not None:
                    gate.bucket.refund(room - count)
            return count

    def write_now(self, rest: list[memoryview]) -> bool:
        """As `streams.write_now`, as far as may pass now."""
        while rest:
            room = wanted = sum(map(len, rest))
            if self._up is not None:
                room = self._up.grant_now(wanted, self._urgent_up)
                if wanted and not room:
                    return False
            if not self._write(rest, room):
                return False
        return True

    async def write_all(self, rest: list[memoryview], patience: trio.CancelScope | None = None) -> None:
        """As `streams.write_all`; the deadline of `patience` is put off while the limit alone holds us up."""
        await trio.lowlevel.checkpoint()
        while rest:
            room = wanted = sum(map(len, rest))
            if self._up is not None and wanted:
                room = await self._up.grant(wanted, self._urgent_up, patience)
            if not self._write(rest, room):
                await trio.lowlevel.wait_writable(self.socket.fileno())

    def _write(self, rest: list[memoryview], room: int) -> bool:
        """At most `room` bytes of `rest`, which is shortened by what the kernel took; False when it took none."""
        sent = 0
        try:
            sent = os.writev(self.socket.fileno(), _beginning(rest, room))
        except BlockingIOError:
            return False
        finally:
            if self._up is not None:
                self._up.bucket.refund(room - sent)
        while rest and sent >= len(rest[0]):
            sent -= len(rest.pop(0))
        if sent:
            rest[0] = rest[0][sent:]
        return True

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytearray:
        """As trio's, within the limit; OSError becomes what trio makes of it."""
        data = bytearray(max_bytes or PIECE_BYTES_MAX)
        try:
            count = await self.read_some(memoryview(data))
        except trio.ClosedResourceError:
            raise
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error
        del data[count:]
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """As trio's, within the limit."""
        try:
            await self.write_all([memoryview(data)])
        except trio.ClosedResourceError:
            raise
        except OSError as error:
            raise trio.BrokenResourceError(str(error)) from error


def _beginning(rest: list[memoryview], room: int) -> list[memoryview]:
    """The first `room` bytes of what is to be written."""
    found = []
    for part in rest:
        if room <= 0:
            break
        found.append(part[:room])
        room -= len(found[-1])
    return found
