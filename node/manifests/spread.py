"""Showing our manifest to peers: to all members when it is new, to whoever refuses us by an older list, and to those
who have not heard of the author's order. Asking for theirs who follow an order that is not known here, or refuse us.

Where volunteers vouch for others, the vouchers that we know go with it, and we learn those that the other one knows.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from math import inf
from typing import Final

import trio

from ftnode.node.links.link import LinkBroken
from ftnode.node.links.newest import newest
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import STREAM_ERRORS
from ftnode.node.links.transport import Transport
from ftnode.node.links.undigested import asking
from ftnode.node.manifests.book import ManifestBook
from ftnode.node.manifests.exchange import (
    EXCHANGE_SECONDS,
    FRAME_BYTES_MAX,
    LIARS_MAX,
    MANIFEST_PROTOCOL,
    read_manifest_reply,
    read_refusal,
    read_told_vouchers,
    request_for,
)
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

WAITING_MAX: Final = 512
AGAIN_SECONDS: Final = 10.0
"""Before the same revision is shown to the same peer again."""


class Spreading:
    """`show_to` returns at once; `run` does it, one peer after the other."""

    def __init__(self, book: ManifestBook, transport: Transport, me: str = "") -> None:
        """`me`: our PeerId, whose vouchers are shown first."""
        self._book, self._me = book, me
        self._transport = transport
        self._waiting: OrderedDict[tuple[str, bool], None] = OrderedDict()
        """Peers, and whether they are asked for their manifest; the others are shown ours."""
        self._shown: OrderedDict[tuple[str, int, int], float] = OrderedDict()
        """Peer and edition → when it was shown."""
        self._asked: OrderedDict[str, float] = OrderedDict()
        self._liars: dict[str, None] = {}
        self._more = trio.Event()

    def has_news_for(self, peer_id: str) -> bool:
        """There is something to show that this peer was not shown yet, and may admit us for."""
        return (self._is_new or self._vouched) and (peer_id, *self._edition) not in self._shown

    def show_to(self, *peer_ids: str) -> None:
        """Nothing, when the manifest has no author or never had another revision, and nobody vouches."""
        if not self._is_new and not self._vouched:
            return
        for peer_id in peer_ids:
            key, now = (peer_id, *self._edition), trio.current_time()
            if now - self._shown.get(key, -inf) < AGAIN_SECONDS or len(self._waiting) >= WAITING_MAX:
                continue
            self._shown[key] = now
            if len(self._shown) > WAITING_MAX:
                self._shown.popitem(last=False)
            self._waiting[peer_id, False] = None
        self._more.set()

    def tell_of(self, liar: str, *peer_ids: str) -> None:
        """Members are told once that this one was let go as a liar; only its leader is believed."""
        newest(self._liars, liar, None, LIARS_MAX)
        self._waiting.update(dict.fromkeys((peer_id, False) for peer_id in peer_ids[:WAITING_MAX]))
        self._more.set()

    def ask(self, peer_id: str) -> None:
        """For its manifest, which may be newer than ours; once in a while."""
        now = trio.current_time()
        if now - self._asked.get(peer_id, -inf) < AGAIN_SECONDS:
            return
        if self._book.manifest.run.author and len(self._waiting) < WAITING_MAX:
            newest(self._asked, peer_id, now, WAITING_MAX)
            self._waiting[peer_id, True] = None
            self._more.set()

    @property
    def _is_new(self) -> bool:
        return bool(self._book.manifest.run.author and self._book.manifest.membership.revision)

    @property
    def _vouched(self) -> bool:
        return self._book.manifest.membership.join == "vouched"

    @property
    def _edition(self) -> tuple[int, int]:
        return self._book.manifest.membership.revision, self._book.vouching.taken

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            while not self._waiting:
                self._more = trio.Event()
                await self._more.wait()
            (peer_id, asked), _ = self._waiting.popitem(last=False)
            try:
                with asking(peer_id, MANIFEST_PROTOCOL, (LinkBroken,)), trio.fail_after(EXCHANGE_SECONDS):
                    refusal = await (self._get(peer_id) if asked else self._show(peer_id))
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
            show = self._book.text if self._is_new else None
            vouchers = self._book.vouchers(self._me) if self._vouched else None
            await write_frame(stream, request_for(self._book.manifest.run_id, show, vouchers, [*self._liars]))
            reply = await read_frame(stream.receive_some, FRAME_BYTES_MAX)
            if self._vouched and (told := read_told_vouchers(reply)):
                refused = self._book.take_vouchers(told, peer_id)
                log.info("vouchers of %s: %s", peer_id, refused or "taken")
            return read_refusal(reply)
        finally:
            await trio.aclose_forcefully(stream)
