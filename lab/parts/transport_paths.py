"""One end of one path of the transport benchmark, as a process of its own: hivemind and libp2p cannot share one.

    python -m ftnode.lab.parts.transport_paths PATH receive            prints where it listens, as a line of JSON
    python -m ftnode.lab.parts.transport_paths PATH send WHERE         per line "BYTES COUNT" on stdin, prints seconds

Every path sends BYTES, waits for a short acknowledgement, and does so COUNT times. All are encrypted, on loopback;
the tensor path also does what a node does: tagged headers, checks before room is taken, arena slots, pins.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.p2pd import P2pd
from ftnode.node.links.transport import LinkEvent, Transport
from ftnode.node.machine.tensor_slots import Arena
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.words.events import LinkDown, Received
from ftnode.protocol.words.messages import Boundary, Stored
from ftnode.protocol.words.types import Attempt, Direction, Peer

BENCH_PROTOCOL = "/ftnode/bench/1"
LENGTH_BYTES = 8
SECONDS = 10.0
SIZES = (64 << 10, 4 << 20)
RUN = "bench"


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


async def serve_orders(measure: Callable[[int, int], Awaitable[float]]) -> None:
    """Carry out orders from stdin until it ends. The event loop runs on while we wait."""
    while line := await trio.to_thread.run_sync(sys.stdin.readline):
        size, count = map(int, line.split())
        say(await measure(size, count))


# The tensor path: a boundary's size belongs to a run, so there is a transport per size, on a p2pd of its own.


async def ours_receive() -> None:
    async with trio.open_nursery() as nursery:
        where = [await _ours_receiver(nursery, size) for size in SIZES]
        say(where)
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


async def _ours_receiver(nursery: trio.Nursery, size: int) -> tuple[str, tuple[str, ...]]:
    arena = Arena(size, 8)

    def deliver(event: LinkEvent) -> None:
        if isinstance(event, Received):
            transport.handled(event)
        if isinstance(event, Received) and isinstance(event.message, Boundary) and event.handle is not None:
            arena.release(event.handle)
            asked = event.message
            stored = Stored(asked.lineage, asked.step, asked.attempt, asked.microbatch, asked.visit, asked.direction)
            transport.send(event.sender, stored, None)

    p2pd = await _fresh_p2pd(nursery)
    transport = Transport(p2pd, arena, RUN, 1, BoundaryBytes(size, size), deliver)
    await transport.start(nursery)
    return p2pd.peer_id, await p2pd.addresses()


async def ours_send(where: list[tuple[str, list[str]]]) -> None:
    async with trio.open_nursery() as nursery:
        measures = {
            size: await _ours_sender(nursery, size, peer_id, addresses)
            for size, (peer_id, addresses) in zip(SIZES, where)
        }
        await serve_orders(lambda size, count: measures[size](count))
        nursery.cancel_scope.cancel()


async def _ours_sender(
    nursery: trio.Nursery, size: int, peer_id: str, addresses: list[str]
) -> Callable[[int], Awaitable[float]]:
    arena, peer = Arena(size, 8), Peer(peer_id, 1)
    sending, receiving = trio.open_memory_channel[LinkEvent](64)
    p2pd = await _fresh_p2pd(nursery)
    transport = Transport(p2pd, arena, RUN, 1, BoundaryBytes(size, size), sending.send_nowait)
    await transport.start(nursery)
    p2pd.gate.give([PeerAddress(peer_id, tuple(addresses))])

    async def measure(count: int) -> float:
        started = time.perf_counter()
        for number in range(count):
            handle = arena.take()
            path = (Peer(p2pd.peer_id, 1), peer)
            transport.send(peer, Boundary("l" * 24, 1, 1, Attempt(1, 1), number, 1, Direction.FORWARD, path), handle)
            arena.release(handle)
            await _stored(transport, receiving)
        return time.perf_counter() - started

    return measure


async def _stored(transport: Transport, events: trio.MemoryReceiveChannel[LinkEvent]) -> None:
    with trio.fail_after(SECONDS):
        while True:
            event = await events.receive()
            if isinstance(event, LinkDown):
                raise RuntimeError(event.reason)
            if isinstance(event, Received):
                transport.handled(event)
                if isinstance(event.message, Stored):
                    return


# Bare: the same p2pd with nothing but blocking sockets at its ends.


async def bare_receive() -> None:
    async def answer(peer_id: str, stream: trio.SocketStream) -> None:
        with socket.socket(fileno=os.dup(stream.socket.fileno())) as bare:
            bare.setblocking(True)
            await trio.to_thread.run_sync(_acknowledge, bare)

    async with trio.open_nursery() as nursery:
        p2pd = await _fresh_p2pd(nursery)
        await p2pd.serve(BENCH_PROTOCOL, answer)
        say([p2pd.peer_id, await p2pd.addresses()])
        await trio.to_thread.run_sync(sys.stdin.read)
        nursery.cancel_scope.cancel()


def _acknowledge(bare: socket.socket) -> None:
    buffer = memoryview(bytearray(max(SIZES)))
    while len(head := bare.recv(LENGTH_BYTES, socket.MSG_WAITALL)) == LENGTH_BYTES:
        size, got = int.from_bytes(head, "big"), 0
        while got < size:
            got += bare.recv_into(buffer[got:size])
        bare.sendall(b"k")


async def bare_send(where: tuple[str, list[str]]) -> None:
    async with trio.open_nursery() as nursery:
        p2pd = await _fresh_p2pd(nursery)
        await p2pd.connect(*where, SECONDS)
        stream = await p2pd.open(where[0], BENCH_PROTOCOL, SECONDS)
        bare = socket.socket(fileno=os.dup(stream.socket.fileno()))
        bare.setblocking(True)
        data = memoryview(os.urandom(max(SIZES)))

        def measure(size: int, count: int) -> float:
            started = time.perf_counter()
            for _ in range(count):
                bare.sendmsg([size.to_bytes(LENGTH_BYTES, "big")])
                bare.sendall(data[:size])
                bare.recv(1)
            return time.perf_counter() - started

        async def measure_in_thread(size: int, count: int) -> float:
            return await trio.to_thread.run_sync(measure, size, count)

        await serve_orders(measure_in_thread)
        nursery.cancel_scope.cancel()


async def _fresh_p2pd(nursery: trio.Nursery) -> P2pd:
    with tempfile.TemporaryDirectory(prefix="bench-") as home:  # p2pd reads its key once
        return await P2pd.start(nursery, take_identity(Path(home)).path)


# hivemind's P2P class, asyncio over its own p2pd, with its raw binary streams.


async def hivemind_receive() -> None:
    from hivemind.p2p import P2P

    async def answer(info: Any, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await P2P.receive_raw_data(reader)
            await P2P.send_raw_data(b"k", writer)

    p2p = await P2P.create(nat_port_map=False, auto_nat=False)
    await p2p.add_binary_stream_handler(BENCH_PROTOCOL, answer)
    say([str(address) for address in await p2p.get_visible_maddrs()])
    await asyncio.to_thread(sys.stdin.read)
    await p2p.shutdown()


async def hivemind_send(where: list[str]) -> None:
    from hivemind.p2p import P2P, PeerID

    p2p = await P2P.create(initial_peers=where, nat_port_map=False, auto_nat=False)
    peer = PeerID.from_base58(where[0].rpartition("/")[2])
    await p2p.wait_for_at_least_n_peers(1)
    _, reader, writer = await p2p.call_binary_stream_handler(peer, BENCH_PROTOCOL)
    data = os.urandom(max(SIZES))
    while line := await asyncio.to_thread(sys.stdin.readline):
        size, count = map(int, line.split())
        payload = data[:size]
        started = time.perf_counter()
        for _ in range(count):
            await P2P.send_raw_data(payload, writer)
            await P2P.receive_raw_data(reader)
        say(time.perf_counter() - started)
    await p2p.shutdown()


# py-libp2p at both ends: Noise and yamux.


async def libp2p_receive() -> None:
    from libp2p.custom_types import TProtocol
    from multiaddr import Multiaddr

    host = _libp2p_host()

    async def answer(stream: Any) -> None:
        while head := await _libp2p_read(stream, LENGTH_BYTES):
            await _libp2p_read(stream, int.from_bytes(head, "big"))
            await stream.write(b"k")

    async with host.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
        host.set_stream_handler(TProtocol(BENCH_PROTOCOL), answer)
        say([host.get_id().to_base58(), [str(address).split("/p2p/")[0] for address in host.get_addrs()]])
        await trio.to_thread.run_sync(sys.stdin.read)
        os._exit(0)  # its background tasks take long to end, and nothing of ours is left to do


async def libp2p_send(where: tuple[str, list[str]]) -> None:
    from libp2p.custom_types import TProtocol
    from libp2p.peer.id import ID
    from libp2p.peer.peerinfo import PeerInfo
    from multiaddr import Multiaddr

    host = _libp2p_host()
    data = os.urandom(max(SIZES))
    async with host.run(listen_addrs=[]):
        peer = ID.from_base58(where[0])
        await host.connect(PeerInfo(peer, [Multiaddr(address) for address in where[1]]))
        stream = await host.new_stream(peer, [TProtocol(BENCH_PROTOCOL)])

        async def measure(size: int, count: int) -> float:
            payload = size.to_bytes(LENGTH_BYTES, "big") + data[:size]
            started = time.perf_counter()
            for _ in range(count):
                await stream.write(payload)
                await stream.read(1)
            return time.perf_counter() - started

        await serve_orders(measure)
        os._exit(0)


def _libp2p_host() -> Any:
    from libp2p import new_host
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_noise_key_pair
    from libp2p.custom_types import TProtocol
    from libp2p.security.noise.transport import PROTOCOL_ID, Transport
    from libp2p.stream_muxer.yamux.yamux import PROTOCOL_ID as YAMUX_ID
    from libp2p.stream_muxer.yamux.yamux import Yamux

    keys = create_new_key_pair()
    return new_host(
        key_pair=keys,
        sec_opt={PROTOCOL_ID: Transport(keys, noise_privkey=create_noise_key_pair().private_key)},
        muxer_opt={TProtocol(YAMUX_ID): Yamux},
    )


async def _libp2p_read(stream: Any, size: int) -> bytearray:
    data = bytearray()
    while len(data) < size:
        chunk = await stream.read(size - len(data))
        if not chunk:
            return bytearray()
        data += chunk
    return data


PATHS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "ours": (trio.run, ours_receive, ours_send),
    "bare": (trio.run, bare_receive, bare_send),
    "hivemind": (lambda main, *where: asyncio.run(main(*where)), hivemind_receive, hivemind_send),
    "libp2p": (trio.run, libp2p_receive, libp2p_send),
}
"""Name → (event loop, receiver, sender)."""

if __name__ == "__main__":
    loop, receive, send = PATHS[sys.argv[1]]
    if sys.argv[2] == "receive":
        loop(receive)
    else:
        loop(send, json.loads(sys.argv[3]))
