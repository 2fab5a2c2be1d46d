"""Where missing shards come from: what every source gives, and a peer that has them (shard_http.py is another)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import Final, Protocol

import trio

from ftnode.models.shards import BLOCK_BYTES
from ftnode.node.data.shard_wire import DATA_PROTOCOL, ShardReply, ShardRequest, hear
from ftnode.node.links.link import LinkBroken, describe
from ftnode.node.links.side_messages import say
from ftnode.node.links.streams import BUFFER_BYTES, STREAM_ERRORS, read_some
from ftnode.node.links.undigested import asking
from ftnode.node.ports import StreamOpener
from ftnode.protocol.picture import Picture
from ftnode.protocol.wire.frames import Refusal, clean_reason
from ftnode.protocol.words.errors import PeerError

ANSWER_SECONDS: Final = 15.0
BLOCK_SECONDS: Final = 60.0
"""For BLOCK_BYTES: 17 KB/s."""


PEERS_MAX: Final = 16
"""Asked in one round."""


class NotFetched(Exception):
    """Why a file did not come. `absent`: the source does not have this one, and may have others."""

    def __init__(self, reason: str, absent: bool = False) -> None:
        super().__init__(reason)
        self.absent = absent


@dataclass(frozen=True, slots=True)
class Delivery:
    """The bytes of a file from `start` on, `size` in all."""

    start: int
    size: int
    blocks: AsyncIterator[bytes]


class ShardSource(Protocol):
    label: str

    def open(self, name: str, start: int, size_max: int) -> AbstractAsyncContextManager[Delivery]:
        """The file from `start` on, or from 0. Its use raises NotFetched."""
        ...

    def blame(self, reason: str) -> None:
        """It gave something that does not have its hash."""
        ...


class PeerShards:
    """Another volunteer."""

    def __init__(self, run: str, peer_id: str, opener: StreamOpener) -> None:
        self.label = f"peer {peer_id}"
        self._run, self._peer_id, self._opener = run, peer_id, opener

    @asynccontextmanager
    async def open(self, name: str, start: int, size_max: int) -> AsyncIterator[Delivery]:
        try:
            stream = await self._opener.open(self._peer_id, DATA_PROTOCOL)
        except LinkBroken as error:
            raise NotFetched(error.reason) from None
        try:
            size = await self._ask(stream, ShardRequest(self._run, name, start), size_max)
            yield Delivery(start, size, _blocks(stream, size - start))
        finally:
            stream.socket.close()

    async def _ask(self, stream: trio.SocketStream, request: ShardRequest, size_max: int) -> int:
        """How long the file is. Raises NotFetched."""
        try:
            with asking(self._peer_id, DATA_PROTOCOL), trio.fail_after(ANSWER_SECONDS):
                await say(stream, request)
                answer = await hear(stream)
            if isinstance(answer, Refusal):
                raise NotFetched(clean_reason(answer.reason), absent=not answer.retry)
            if not isinstance(answer, ShardReply) or answer.size > size_max:
                raise PeerError("an answer that is not the shard asked for")
        except PeerError as error:
            self.blame(str(error))
            raise NotFetched(str(error)) from None
        except STREAM_ERRORS as error:
            raise NotFetched(describe(error)) from None
        return answer.size

    def blame(self, reason: str) -> None:
        self._opener.strike(self._peer_id, reason)


def peers_to_ask(picture: Picture, run: str, opener: StreamOpener, chance: Random) -> list[ShardSource]:
    """Some of those that we know of, in any order."""
    others = sorted({peer.id for peer in (*picture.members, *picture.presences)} - {picture.me.id})
    chance.shuffle(others)
    return [PeerShards(run, peer_id, opener) for peer_id in others[:PEERS_MAX]]


async def _blocks(stream: trio.SocketStream, size: int) -> AsyncIterator[bytes]:
    """As they come, so that nothing is lost of a stream that ends. Raises NotFetched; what their user raises, as for a
    full disk, is not the stream's."""
    buffer, left, deadline = memoryview(bytearray(BUFFER_BYTES)), 0, 0.0
    while size > 0:
        if not left:
            left, deadline = min(size, BLOCK_BYTES), trio.current_time() + BLOCK_SECONDS
        try:
            with trio.fail_at(deadline):
                count = await read_some(stream, buffer[:left])
        except STREAM_ERRORS as error:
            raise NotFetched(describe(error)) from None
        if not count:
            raise NotFetched("the other side hung up")
        left -= count
        size -= count
        yield bytes(buffer[:count])
