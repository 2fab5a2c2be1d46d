"""Volunteers that lend and fetch shards without a network: streams from socket pairs, a web server on loopback."""

from __future__ import annotations

import re
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from random import Random

import trio

from ftnode.models.shards import read_index
from ftnode.node.data.shard_lending import ShardLender
from ftnode.node.data.shard_sources import PeerShards, ShardSource
from ftnode.node.data.shard_store import ShardStore
from ftnode.node.data.shard_wire import DATA_PROTOCOL
from ftnode.node.data.shards import RunShards
from ftnode.node.links.link import LinkBroken

RUN = "run"
Answer = Callable[[trio.SocketStream], Awaitable[None]]


async def seen_at(peer_id: str) -> str:
    """The network of a peer is what stands before the dash of its name."""
    return peer_id.partition("-")[0] if "-" in peer_id else ""


class Network:
    """Opens streams to volunteers by name; takes the place of the transport."""

    def __init__(self) -> None:
        self.nursery: trio.Nursery | None = None
        self.lenders: dict[str, ShardLender] = {}
        self.answers: dict[str, Answer] = {}
        """Peers that do something else than a ShardLender would."""
        self.struck: list[tuple[str, str]] = []

    async def open(self, peer_id: str, protocol: str) -> trio.SocketStream:
        assert protocol == DATA_PROTOCOL and self.nursery is not None
        if peer_id not in self.lenders and peer_id not in self.answers:
            raise LinkBroken("its address refuses", refused=True)
        ours, theirs = trio.socket.socketpair()
        self.nursery.start_soon(self._serve, peer_id, trio.SocketStream(theirs))
        return trio.SocketStream(ours)

    async def _serve(self, peer_id: str, stream: trio.SocketStream) -> None:
        async with stream:
            if peer_id in self.answers:
                await self.answers[peer_id](stream)
            else:
                await self.lenders[peer_id].serve("borrower", stream)

    def strike(self, peer_id: str, reason: str) -> None:
        self.struck.append((peer_id, reason))


class Volunteer:
    """The shards of one node of the run whose corpus is `built`."""

    def __init__(
        self, name: str, home: Path, built: Path, network: Network, *, local: Path | None = None,
        vocabulary: int = 256, bytes_max: int = 1 << 30, sources: Sequence[ShardSource] = (),
    ) -> None:  # fmt: skip
        self.store = ShardStore(home / name, read_index(built)[1], vocabulary, bytes_max)
        self.lender = ShardLender(RUN, [self.store], network.strike, lambda peer: peer != "stranger", seen_at)
        network.lenders[name] = self.lender
        self.said: list[str] = []
        self.changes = 0
        self.peers: list[str] = []
        self._network, self._sources = network, list(sources)
        self.shards = RunShards(self.store, local, self._all, Random(1), self.said.append, self._changed)

    def asks(self, *names: str) -> Volunteer:
        self.peers = list(names)
        return self

    def _all(self) -> list[ShardSource]:
        return self._sources + [PeerShards(RUN, name, self._network) for name in self.peers]

    def _changed(self) -> None:
        self.changes += 1


def run(network: Network, main: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as network.nursery:
                await main()
                network.nursery.cancel_scope.cancel()

    trio.run(bounded)


class _Handler(BaseHTTPRequestHandler):
    """Files of a folder, with Range unless `plain`; what was asked for is noted."""

    protocol_version = "HTTP/1.1"

    def __init__(
        self, folder: Path, asked: list[tuple[str, str]], plain: bool, keys: list[str], *arguments: object
    ) -> None:
        self.folder, self.asked, self.plain, self.keys = folder, asked, plain, keys
        super().__init__(*arguments)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        wanted = self.headers.get("Range", "")
        self.asked.append((self.path, wanted))
        self.keys.append(self.headers.get("Authorization", ""))
        path = self.folder / self.path.rpartition("/")[2]
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data, match = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-", wanted)
        start = int(match[1]) if match and not self.plain else 0
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:])

    def log_message(self, format: str, *arguments: object) -> None:
        """A test says nothing."""


@contextmanager
def served(
    folder: Path, plain: bool = False, keys: list[str] | None = None
) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The address of a folder on a web server of this machine, and (path, Range) of what was asked for. `keys`: gets
    what each was asked with."""
    asked: list[tuple[str, str]] = []
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(_Handler, folder, asked, plain, [] if keys is None else keys)
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/data", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
