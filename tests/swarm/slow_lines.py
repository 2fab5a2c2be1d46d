"""Slow lines between real processes: a TCP proxy in front of each, with a delay, a rate and jitter.

What is sent to a line's `address` arrives at its target: every byte a delay later, never before one that was sent
earlier on its connection, and no faster than the line carries. The two directions of a line are separate, and all
connections of a line share them, like the access line of a household. What is on its way, delayed or waiting for its
turn, is bounded, so that a sender feels the rate. `ftnode join --announce` names a proxy instead of the node itself.

A line to a dead target still takes connections, and resets them: a node behind it is silent, and its port says nothing.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from random import Random
from typing import Any

HOST = "127.0.0.1"
READY_SECONDS = 10.0
SOCKET_BUFFER_BYTES = 1 << 16
"""Of what leads to a line: the kernel's megabytes would be a queue that no real line has."""


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
    """All lines of a test. They run in a process of their own, so that nothing that a test does slows them down."""

    def __init__(self, commands: Connection) -> None:
        self._commands = commands

    def lead_to(self, target: int) -> str:
        """The address of a new line to a port of this machine, where nobody needs to listen yet."""
        address: str = self._ask(target)
        return address

    def carried(self) -> int:
        """Bytes through all lines, both ways."""
        count: int = self._ask(None)
        return count

    def _ask(self, target: int | None) -> Any:
        self._commands.send(target)
        assert self._commands.poll(READY_SECONDS), "the lines do not answer"
        return self._commands.recv()


def serve(commands: Connection, quality: Quality, seed: int) -> None:
    """Open lines as they are asked for, until nobody is there to ask: a port opens one, None counts bytes."""
    chance, lines = Random(seed), list[Line]()

    async def lead(loop: asyncio.AbstractEventLoop) -> None:
        while True:
            try:
                target = await loop.run_in_executor(None, commands.recv)
            except EOFError:
                return
            if target is None:
                commands.send(sum(line.inwards.carried + line.outwards.carried for line in lines))
                continue
            lines.append(Line(target, quality, Random(chance.random())))
            await lines[-1].open()
            commands.send(lines[-1].address)

    loop = asyncio.SelectorEventLoop()
    loop.run_until_complete(lead(loop))


@contextmanager
def open_lines(quality: Quality) -> Iterator[Lines]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs, quality, 1), name="slow lines", daemon=True)
    process.start()
    theirs.close()
    try:
        yield Lines(ours)
    finally:
        ours.close()
        process.join(READY_SECONDS)
        process.kill()
        process.join()


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
