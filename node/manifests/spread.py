"""Showing our manifest to peers: to all members when it is new, to whoever refuses us by an older list, and to those
who have not heard of the author's order. Asking for theirs who follow an order that is not known here."""

from __future__ import annotations

import logging
from collections import OrderedDict
from math import inf
from typing import Final

import trio

from ftnode.node.links.link import LinkBroken
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import STREAM_ERRORS
from ftnode.node.links.transport import Transport
from ftnode.node.links.undigested import asking
from ftnode.node.manifests.book import ManifestBook
from ftnode.node.manifests.exchange import (
    EXCHANGE_SECONDS,
    FRAME_BYTES_MAX,
    MANIFEST_PROTOCOL,
    read_manifest_reply,
    read_refusal,
    request_for,
)
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

WAITING_MAX: Final = 512
AGAIN_SECONDS: Final = 10.0
"""Before the same revision is shown to the same peer again."""


class Spreading:
    """`show_to` returns at once; `run` does it, one peer after the other."""

    def __init__(self, book: ManifestBook, transport: Transport) -> None:
        self._book = book
        self._transport = transport
        self._waiting: OrderedDict[str, None] = OrderedDict()
        self._shown: OrderedDict[tuple[str, int], float] = OrderedDict()
        self._asked: set[str] = set()
        """Those of them who are to give theirs."""
        self._more = trio.Event()

    def show_to(self, *peer_ids: str) -> None:
        """Nothing, when the manifest has no author or never had another revision."""
        manifest = self._book.manifest
        if not manifest.run.author or not manifest.membership.revision:
            return
        for peer_id in peer_ids:
            key, now = (peer_id, manifest.membership.revision), trio.current_time()
            if now - self._shown.get(key, -inf) < AGAIN_SECONDS or len(self._waiting) >= WAITING_MAX:
                continue
            self._shown[key] = now
            if len(self._shown) > WAITING_MAX:
                self._shown.popitem(last=False)
            self._waiting[peer_id] = None
        self._more.set()

    def ask(self, peer_id: str) -> None:
        """For its manifest, which may be newer than ours."""
        if self._book.manifest.run.author and peer_id not in self._waiting and len(self._waiting) < WAITING_MAX:
            self._asked.add(peer_id)
            self._waiting[peer_id] = None
            self._more.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while not self._waiting:
                self._more = trio.Event()
                await self._more.wait()
            peer_id, _ = self._waiting.popitem(last=False)
            try:
                with asking(peer_id, MANIFEST_PROTOCOL, (LinkBroken,)), trio.fail_after(EXCHANGE_SECONDS):
                    wanted = peer_id in self._asked
                    self._asked.discard(peer_id)
                    refusal = await (self._get(peer_id) if wanted else self._show(peer_id))
            except (LinkBroken, PeerError, *STREAM_ERRORS) as error:
                log.info("no manifest was exchanged with %s: %s", peer_id, error or "too slow")
            else:
                log.info("a manifest was exchanged with %s: %s", peer_id, refusal or "taken")

    async def _get(self, peer_id: str) -> str:
        """Take the peer's manifest if it is newer, as one that it shows."""
        stream = await self._transport.open(peer_id, MANIFEST_PROTOCOL)
        try:
            await write_frame(stream, request_for(self._book.manifest.run_id))
            return self._book.offer(read_manifest_reply(await read_frame(stream.receive_some, FRAME_BYTES_MAX)))
        finally:
            await trio.aclose_forcefully(stream)

    async def _show(self, peer_id: str) -> str:
        stream = await self._transport.open(peer_id, MANIFEST_PROTOCOL)
        try:
            await write_frame(stream, request_for(self._book.manifest.run_id, self._book.text))
            return read_refusal(await read_frame(stream.receive_some, FRAME_BYTES_MAX))
        finally:
            await trio.aclose_forcefully(stream)
