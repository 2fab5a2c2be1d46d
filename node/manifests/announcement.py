"""What the author of a run says to everybody, for watchers: fetched from the peer that they watch, and checked."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.manifests.exchange import (
    FRAME_BYTES_MAX,
    MANIFEST_PROTOCOL,
    announcement_of,
    read_signed_reply,
    request_for,
)
from ftnode.node.watch.light_client import Unanswered, open_stream, receive, send
from ftnode.node.watch.status import SwarmStatus
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import PeerError

if TYPE_CHECKING:
    from ftnode.node.watch.light_client import Host

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 30.0
"""Until a peer is asked again that did not give what it should have: each question may hold a look up."""


class AuthorsWords:
    """What authors say to everybody, asked for when the revision of a run's manifest is another one, and checked."""

    def __init__(self, also_first: bool = False) -> None:
        """`also_first`: also of a run whose author has changed nothing since its beginning."""
        self.manifest: Manifest | None = None
        """Of the run that was looked at last; None until it was fetched."""
        self._begins = -1 if also_first else 0
        self._known = ("", self._begins)
        self._again = -math.inf

    async def added(self, host: Host, peer: PeerAddress, status: SwarmStatus) -> SwarmStatus:
        """The status with its announcement. Where the peer does not give what it should have, the last one stays."""
        newest = (status.run, status.revision)
        if status.run != self._known[0]:
            self._known, self._again, self.manifest = (status.run, self._begins), -math.inf, None
        wanted = bool(status.run) and status.revision > self._begins and newest != self._known
        if wanted and trio.current_time() >= self._again:
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    async with open_stream(host, peer, ANSWER_SECONDS, MANIFEST_PROTOCOL) as stream:
                        await send(stream, request_for(status.run))
                        self.manifest = read_signed_reply(await receive(stream, FRAME_BYTES_MAX), status.run)
            except (Unanswered, PeerError, trio.TooSlowError) as error:
                log.info("no manifest of %s: %s", peer.peer_id, error)
                self._again = trio.current_time() + AGAIN_SECONDS
            else:
                self._known = newest
        return replace(status, announcement=announcement_of(self.manifest) if self.manifest else "")
