"""The lending side of `/ftnode/data/2`: files of the run's corpus, and layers of the model that it began with, that are
here and have their hash."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from ftnode.models.first_weights import Span
from ftnode.models.shards import BLOCK_BYTES
from ftnode.node.data.file_store import FileStore
from ftnode.node.data.shard_wire import ShardReply, ShardRequest, hear
from ftnode.node.data.turns import Busy, Turns
from ftnode.node.links.link import describe
from ftnode.node.links.side_messages import say
from ftnode.node.links.streams import STREAM_ERRORS, write_all
from ftnode.protocol.wire.frames import Refusal
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

REQUEST_SECONDS: Final = 5.0
BLOCK_SECONDS: Final = 60.0


class ShardLender:
    """`serve` is the stream handler. Who may take part in the run may have its corpus."""

    def __init__(
        self, run: str, stores: Sequence[FileStore], strike: Callable[[str, str], None],
        allowed: Callable[[str], bool], network: Callable[[str], Awaitable[str]],
    ) -> None:  # fmt: skip
        """`allowed`: whether the run's manifest admits a PeerId. `network`: where it is seen, "" when nobody knows."""
        self._run, self._stores, self._strike, self._allowed = run, stores, strike, allowed
        self._network = network
        self.turns = Turns()

    async def serve(self, peer_id: str, stream: trio.SocketStream) -> None:
        """One request, from its first byte to the end of the stream."""
        try:
            with trio.fail_after(REQUEST_SECONDS):
                request = await hear(stream)
                if not isinstance(request, ShardRequest):
                    raise PeerError("a stream that does not begin with a ShardRequest")
                refusal = self._refusal(peer_id, request)
                network = "" if refusal else await self._network(peer_id)
            if refusal is None:
                refusal = await self._lend(peer_id, network, request, stream)
            if refusal is not None:
                with trio.fail_after(REQUEST_SECONDS):
                    await say(stream, refusal)
        except PeerError as error:
            self._strike(peer_id, str(error))
        except STREAM_ERRORS as error:
            log.info("a shard for %s did not go out: %s", peer_id, describe(error))
        finally:
            stream.socket.close()

    def _refusal(self, peer_id: str, request: ShardRequest) -> Refusal | None:
        if request.run != self._run:
            return Refusal("another run", retry=False)
        if not self._allowed(peer_id):
            return Refusal("you are not on the list of who may join", retry=True)
        if not self._spans(request.name):
            return Refusal("it is not here", retry=False)
        return None

    async def _lend(
        self, peer_id: str, network: str, request: ShardRequest, stream: trio.SocketStream
    ) -> Refusal | None:
        """To its end, or to that of the borrower's turn."""
        try:
            async with self.turns.place(peer_id, network) as turn:
                await self._send(self._spans(request.name), request.start, stream)
        except Busy:
            return Refusal("busy with other shards", retry=True)
        if turn.cancelled_caught:
            log.info("the turn of %s was over, and others waited", peer_id)
        return None

    def _spans(self, name: str) -> Sequence[Span]:
        return next((store.spans(name) for store in self._stores if name in store.have), ())

    async def _send(self, spans: Sequence[Span], start: int, stream: trio.SocketStream) -> None:
        await say(stream, ShardReply(sum(span.size for span in spans)))
        for span in spans:
            skipped = min(start, span.size)
            start -= skipped
            async with await trio.open_file(span.path, "rb") as file:
                await file.seek(span.start + skipped)
                left = span.size - skipped
                while left and (block := await file.read(min(left, BLOCK_BYTES))):
                    left -= len(block)
                    with trio.fail_after(BLOCK_SECONDS):
                        await write_all(stream, [memoryview(block)])
