"""Where missing shards come from: a peer that has them, or a folder behind an http(s) address."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import httpx
import trio

from ftnode.models.shards import BLOCK_BYTES
from ftnode.node.link import LinkBroken, describe
from ftnode.node.ports import StreamOpener
from ftnode.node.shards_wire import DATA_PROTOCOL, ShardReply, ShardRequest, hear, say
from ftnode.node.streams import STREAM_ERRORS, read_exactly
from ftnode.protocol.errors import PeerError
from ftnode.protocol.wire import Refusal, clean_reason

ANSWER_SECONDS: Final = 15.0
BLOCK_SECONDS: Final = 60.0
"""For BLOCK_BYTES: 17 KB/s."""
CONNECT_SECONDS: Final = 10.0
REDIRECTS_MAX: Final = 5


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
    resumes: bool
    """Can begin in the middle of a file."""

    def open(self, name: str, start: int, size_max: int) -> AbstractAsyncContextManager[Delivery]:
        """The file from `start` on, or from 0. Its use raises NotFetched."""
        ...

    def blame(self, reason: str) -> None:
        """It gave something that does not have its hash."""
        ...


class PeerShards:
    """Another volunteer. What comes from it has one giver, so that a wrong hash is its fault: no resuming."""

    resumes = False

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
            with trio.fail_after(ANSWER_SECONDS):
                await say(stream, ShardRequest(self._run, name))
                answer = await hear(stream)
            if isinstance(answer, Refusal):
                raise NotFetched(clean_reason(answer.reason), absent=not answer.retry)
            if not isinstance(answer, ShardReply) or answer.size > size_max:
                raise PeerError("an answer that is not the shard asked for")
            yield Delivery(0, answer.size, _blocks(stream, answer.size))
        except PeerError as error:
            self.blame(str(error))
            raise NotFetched(str(error)) from None
        except STREAM_ERRORS as error:
            raise NotFetched(describe(error)) from None
        finally:
            stream.socket.close()

    def blame(self, reason: str) -> None:
        self._opener.strike(self._peer_id, reason)


async def _blocks(stream: trio.SocketStream, size: int) -> AsyncIterator[bytes]:
    while size:
        with trio.fail_after(BLOCK_SECONDS):
            block = await read_exactly(stream, min(size, BLOCK_BYTES))
        size -= len(block)
        yield bytes(block)


class HttpShards:
    """A folder behind an address, with the index in it. What came is kept, and the rest asked for by Range."""

    resumes = True

    def __init__(self, base: str) -> None:
        self.label = base
        self._base = base.rstrip("/")

    @asynccontextmanager
    async def open(self, name: str, start: int, size_max: int) -> AsyncIterator[Delivery]:
        headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={start}-"} if start else {})
        timeout = httpx.Timeout(BLOCK_SECONDS, connect=CONNECT_SECONDS)
        try:
            async with (
                httpx.AsyncClient(timeout=timeout, follow_redirects=True, max_redirects=REDIRECTS_MAX) as client,
                client.stream("GET", f"{self._base}/{name}", headers=headers) as answer,
            ):
                begins, size = _range(answer, start)
                if size > size_max:
                    raise NotFetched(f"{name} has {size} bytes there, where at most {size_max} are right")
                yield Delivery(begins, size, answer.aiter_raw(BLOCK_BYTES))
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise NotFetched(f"{name}: {error or type(error).__name__}") from None

    def blame(self, reason: str) -> None:
        """An address cannot be struck; the reason is told."""


def _range(answer: httpx.Response, start: int) -> tuple[int, int]:
    """Where the bytes begin, and the file's length as far as the server says it. Raises NotFetched."""
    if answer.status_code == httpx.codes.PARTIAL_CONTENT:
        unit, _, rest = answer.headers.get("Content-Range", "").partition(" ")
        begins = rest.partition("-")[0]
        if unit != "bytes" or begins != str(start):
            raise NotFetched("an answer with another range than asked for")
        return start, start + _length(answer)
    if answer.status_code != httpx.codes.OK:
        absent = answer.status_code in (httpx.codes.NOT_FOUND, httpx.codes.GONE)
        raise NotFetched(f"{answer.request.url}: {answer.status_code} {answer.reason_phrase}", absent)
    return 0, _length(answer)


def _length(answer: httpx.Response) -> int:
    length = answer.headers.get("Content-Length", "0")
    return int(length) if length.isascii() and length.isdigit() and len(length) < 16 else 0
