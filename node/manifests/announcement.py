"""What the author of a run says to everybody, for watchers: fetched from the peer that they watch, and checked."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.manifests.exchange import FRAME_BYTES_MAX, MANIFEST_PROTOCOL, read_announcement, request_for
from ftnode.node.watch.light_client import Unanswered, open_stream, receive, send
from ftnode.node.watch.status import SwarmStatus
from ftnode.protocol.words.errors import PeerError

if TYPE_CHECKING:
    from ftnode.node.watch.light_client import Host

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 120.0
"""Until a peer is asked again that did not give what it should have: each question may hold a look up."""


async def ask(host: Host, peer: PeerAddress, run: str) -> str:
    """What the manifest that this peer has says to everybody. Raises Unanswered, PeerError or TooSlowError."""
    with trio.fail_after(ANSWER_SECONDS):
        async with open_stream(host, peer, ANSWER_SECONDS, MANIFEST_PROTOCOL) as stream:
            await send(stream, request_for(run))
            return read_announcement(await receive(stream, FRAME_BYTES_MAX), run)


class AuthorsWords:
    """What authors say to everybody, asked for when the revision of a run's manifest is another one, and checked."""

    def __init__(self, ask: Callable[[Host, PeerAddress, str], Awaitable[str]] = ask) -> None:
        self._ask = ask
        self._known = ("", 0)
        self._message = ""
        self._failed, self._failed_at = ("", "", 0), 0.0
        """Who gave no manifest of which run and revision, the last one, and when."""

    async def added(self, host: Host, peer: PeerAddress, status: SwarmStatus) -> SwarmStatus:
        """The status with its announcement. Where the peer does not give what it should have, the last one stays."""
        newest, asked = (status.run, status.revision), (peer.peer_id, status.run, status.revision)
        if status.run != self._known[0]:
            self._known, self._message = (status.run, 0), ""
        spared = asked == self._failed and trio.current_time() - self._failed_at < AGAIN_SECONDS
        if status.revision and newest != self._known and not spared:
            try:
                self._message = await self._ask(host, peer, status.run)
            except (Unanswered, PeerError, trio.TooSlowError) as error:
                log.info("no manifest of %s: %s", peer.peer_id, error)
                self._failed, self._failed_at = asked, trio.current_time()
            else:
                self._known = newest
        return replace(status, announcement=self._message)
