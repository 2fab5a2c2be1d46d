"""Slow lines between real processes: a TCP proxy in front of each, with a delay, a rate and jitter.

What is sent to a line's `address` arrives at its target: every byte a delay later, never before one that was sent
earlier on its connection, and no faster than the line carries. The two directions of a line are separate, and all
connections of a line share them, like the access line of a household. What is on its way, delayed or waiting for its
turn, is bounded, so that a sender feels the rate. `ftnode join --announce` names a proxy instead of the node itself.

A line to a dead target still takes connections, and resets them: a node behind it is silent, and its port says nothing.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

HOST = "127.0.0.1"
READY_SECONDS = 10.0
SOCKET_BUFFER_BYTES = 1 << 16
"""Of what leads to a line: the kernel's megabytes would be a queue that no real line has."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Quality:
    """Of one direction of a line. Bytes in transit beyond what it holds by itself wait in a router's queue."""

    delay_seconds: float = 0.08
    jitter_seconds: float = 0.02
    """A piece takes up to this much more or less."""
    bytes_per_second: float = 20e6 / 8
    queue_seconds: float = 0.25

    @property
    def transit_bytes_max(self) -> int:
        return int(self.bytes_per_second * (self.delay_seconds + self.queue_seconds))


@dataclass(slots=True)
class Direction:
    """One way along a line. `carried`: bytes so far. `free_at`: when it has sent all that it was given."""

    quality: Quality
    chance: Random
    free_at: float = 0.0
    carried: int = 0

    def depart(self, now: float, count: int) -> float:
        """When `count` bytes that are offered now arrive at the other end, if nothing comes before them."""
        quality = self.quality
        self.free_at = max(self.free_at, now) + count / quality.bytes_per_second
        self.carried += count
        return self.free_at + quality.delay_seconds + self.chance.uniform(-1, 1) * quality.jitter_seconds


class End(asyncio.Protocol):
    """One end of a connection through a line; what it reads goes out at `other` when its time has come."""

    def __init__(self, direction: Direction, loop: asyncio.AbstractEventLoop) -> None:
        self._direction, self._loop = direction, loop
        self.transport: asyncio.Transport | None = None
        self.other: End | None = None
        self._transit: deque[bytes] = deque()
        """In the order in which it was read; timers of the same moment have none."""
        self._transit_bytes = 0
        self._last_arrival = 0.0
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        connection = transport.get_extra_info("socket")
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
        transport.pause_reading()
        self.transport = transport

    def begin(self, other: End) -> None:
        """Carry what comes to `other`, from now on."""
        assert self.transport is not None
        self.other = other
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        self._transit_bytes += len(data)
        self._arrive(self._direction.depart(self._loop.time(), len(data)), data)
        if self._transit_bytes > self._direction.quality.transit_bytes_max and not self._paused:
            assert self.transport is not None
            self._paused = True
            self.transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrive(self._direction.depart(self._loop.time(), 0), b"")

    def _arrive(self, when: float, data: bytes) -> None:
        """`data`: b"" for the end of the connection."""
        self._transit.append(data)
        self._last_arrival = max(self._last_arrival, when)
        self._loop.call_at(self._last_arrival, self._deliver)

    def _deliver(self) -> None:
        data = self._transit.popleft()
        self._transit_bytes -= len(data)
        if self._paused and self._transit_bytes <= self._direction.quality.transit_bytes_max // 2:
            assert self.transport is not None
            self._paused = False
            self.transport.resume_reading()
        out = self.other.transport if self.other is not None else None
        if out is None or out.is_closing():
            return
        if data:
            out.write(data)
        else:
            out.close()


@dataclass
class Line:
    """One proxy. `target`: the port that it leads to."""

    target: int
    quality: Quality
    chance: Random
    port: int = 0
    inwards: Direction = field(init=False)
    outwards: Direction = field(init=False)

    def __post_init__(self) -> None:
        self.inwards, self.outwards = (Direction(self.quality, self.chance) for _ in range(2))

    @property
    def address(self) -> str:
        return f"/ip4/{HOST}/tcp/{self.port}"

    async def open(self) -> None:
        loop = asyncio.get_running_loop()
        connecting: set[asyncio.Task[None]] = set()

        def accept() -> End:
            near = End(self.inwards, loop)
            # A dial takes a round trip before the first byte, as it does to a host that is far away.
            loop.call_later(2 * self.quality.delay_seconds, begin, near)
            return near

        def begin(near: End) -> None:
            task = loop.create_task(self._connect(near, loop))
            connecting.add(task)
            task.add_done_callback(connecting.discard)

        server = await loop.create_server(accept, sock=bound_socket())
        self.port = server.sockets[0].getsockname()[1]

    async def _connect(self, near: End, loop: asyncio.AbstractEventLoop) -> None:
        far = End(self.outwards, loop)
        try:
            await loop.create_connection(lambda: far, HOST, self.target)
        except OSError:
            if near.transport is not None:
                near.transport.abort()
            return
        near.begin(far)
        far.begin(near)


class Lines:
    """All lines of a test, in one thread of their own."""

    def __init__(self, quality: Quality, seed: int = 1) -> None:
        self.quality = quality
        self.lines: dict[str, Line] = {}
        self._chance = Random(seed)
        self._loop = asyncio.SelectorEventLoop()  # hivemind, once loaded, makes another kind the usual one

    def lead_to(self, name: str, target: int) -> Line:
        """A new line to a port of this machine, where nobody needs to listen yet."""
        line = self.lines[name] = Line(target, self.quality, Random(self._chance.random()))
        self._call(line.open())
        return line

    def carried(self) -> int:
        """Bytes through all lines, both ways."""
        return sum(line.inwards.carried + line.outwards.carried for line in self.lines.values())

    def _call(self, work: Coroutine[None, None, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(READY_SECONDS)

    def run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)


@contextmanager
def open_lines(quality: Quality) -> Iterator[Lines]:
    lines = Lines(quality)
    thread = threading.Thread(target=lines.run, name="slow lines", daemon=True)
    thread.start()
    try:
        yield lines
    finally:
        lines.stop()
        thread.join(READY_SECONDS)


def bound_socket() -> socket.socket:
    """Connections that it accepts inherit the small buffer; later is too late to make the window small."""
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    bound.bind((HOST, 0))
    return bound


def free_port() -> int:
    """One that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port
