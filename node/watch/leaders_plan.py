"""What the leader last chose of who should hold what, for watchers that somebody else answers: it alone knows that."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import trio

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.watch.light_client import Completion, Unanswered, ask_status, open_stream
from ftnode.node.watch.status import PeerRow, SwarmStatus
from ftnode.protocol.words.errors import PeerError

if TYPE_CHECKING:
    from ftnode.node.watch.light_client import Host

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 3.0
FRESH_SECONDS: Final = 5.0
"""For so long a plan is shown before the leader is asked again."""
AGAIN_SECONDS: Final = 30.0
"""Until a leader is asked again that did not answer: each question may hold a look up."""


class LeadersPlan:
    """Asks the leader beside the peer that is looked at."""

    def __init__(self, before: Completion) -> None:
        """`before`: what else is added to a status."""
        self._before = before
        self._known = ("", "")
        """Of which run, and of which leader, that is."""
        self._plan, self._until = "", -math.inf

    async def added(self, host: Host, peer: PeerAddress, status: SwarmStatus) -> SwarmStatus:
        """The status with the leader's plan, where that can be reached."""
        found = await self._before(host, peer, status)
        leader = next((row for row in found.peers if row.peer == found.leader), None)
        if leader is None or found.plan or leader.peer == found.speaker.peer:
            return found
        known = found.run, leader.peer
        if known != self._known or trio.current_time() >= self._until:
            self._known, self._plan = known, await self._asked(host, leader, found.run)
        return replace(found, plan=self._plan)

    async def _asked(self, host: Host, leader: PeerRow, run: str) -> str:
        """Empty where it does not answer, or leads no more."""
        address = PeerAddress(leader.peer, leader.addresses)
        try:
            with trio.fail_after(ANSWER_SECONDS):
                async with open_stream(host, address, ANSWER_SECONDS) as stream:
                    told = await ask_status(stream)
        except (Unanswered, PeerError, trio.TooSlowError) as error:
            log.info("no plan of %s, who leads: %s", leader.peer, error)
            self._until = trio.current_time() + AGAIN_SECONDS
            return ""
        self._until = trio.current_time() + FRESH_SECONDS
        leads = (told.run, told.speaker.peer, told.leader) == (run, leader.peer, leader.peer)
        return told.plan if leads else ""
