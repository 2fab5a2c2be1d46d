"""Looks at a living swarm for the dashboard: one peer's status, and the history of several.

Unlike `ftnode status --watch` it never gives up: a page that says why nothing comes is worth more than none. The peer
that answers, the leader and the holders of the head are asked for the curve; a few others for their decisions only,
which is where a rebuilt stage's newcomer says what it did.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import trio

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.watch.dashboard_feed import Feed
from ftnode.node.watch.history import (
    HISTORY_PROTOCOL,
    NUMBER_MAX,
    REPLY_BYTES_MAX,
    History,
    HistoryRequest,
    decode_history,
    encode_request,
)
from ftnode.node.watch.light_client import REQUEST, Completion, Unanswered, as_told, find, open_stream, receive, send
from ftnode.node.watch.peer_choice import to_dial
from ftnode.node.watch.status import REPLY_BYTES_MAX as STATUS_BYTES_MAX
from ftnode.node.watch.status import Member, decode_status
from ftnode.node.watch.told_on import told_line
from ftnode.protocol.words.errors import PeerError, UserError

if TYPE_CHECKING:
    from ftnode.node.watch.light_client import Host

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
ANSWER_SECONDS = 10.0
RETRY_SECONDS = 2.0
"""Until somebody is asked again when nobody answered."""
DEAF_SECONDS = 30.0
"""Until a peer is asked for its history again that did not answer; it may be of before, or gone."""
TOLD_MAX = 8
"""Peers whose histories are followed."""
CURVES_MAX = 3
"""Of these, how many are asked for the curve, too: some 300 KB each for 10,000 steps."""
KNOWN_MAX = 32


@dataclass(slots=True)
class Followed:
    """A peer whose history is asked for. `curve`: with its commits and validations."""

    scope: trio.CancelScope
    curve: bool


class SwarmWatcher:
    """Everything that is asked of a swarm on behalf of one dashboard."""

    def __init__(
        self, host: Host, peers: Sequence[PeerAddress], feed: Feed, run: str = "", complete: Completion = as_told
    ) -> None:
        """`run`: an id, its beginning or a name; empty: the first that is found, and no other after it."""
        self._host, self._given, self._feed = host, tuple(peers), feed
        self._run = run
        self._answering: PeerAddress | None = None
        self._members: tuple[PeerAddress, ...] = ()
        self._followed: dict[str, Followed] = {}
        self._complete = complete

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look_forever)
            while True:
                self._choose(nursery)
                await trio.sleep(LOOK_SECONDS)

    async def _look_forever(self) -> None:
        while True:
            known = tuple({peer.peer_id: peer for peer in (*self._given, *self._members)}.values())[:KNOWN_MAX]
            if self._answering is not None:
                known = (self._answering, *(peer for peer in known if peer.peer_id != self._answering.peer_id))
            try:
                answering, found = await find(self._host, known, self._run, ANSWER_SECONDS, hear=True)
                status = found if found.told_by else await self._complete(self._host, answering, found)
            except UserError as error:
                self._feed.tell_trouble(str(error))
            else:
                self._feed.tell_status(status)
                if status.told_by:
                    self._run = status.run
                    self._feed.tell_trouble(told_line(status))
                elif status.run:
                    self._answering, self._run = answering, status.run
                    self._learn(status.members)
                    self._feed.tell_trouble(await self._follow(answering))
            await trio.sleep(RETRY_SECONDS)

    async def _follow(self, peer: PeerAddress) -> str:
        """Look at this peer's status until it tells no more; why not."""
        try:
            async with open_stream(self._host, peer, ANSWER_SECONDS) as stream:
                while True:
                    with trio.fail_after(ANSWER_SECONDS):
                        status = decode_status(await _ask(stream, REQUEST, STATUS_BYTES_MAX))
                    if status.run != self._run:
                        return "that peer takes part in the run no more; looking for another"
                    self._feed.tell_status(await self._complete(self._host, peer, status))
                    self._learn(status.members)
                    await trio.sleep(LOOK_SECONDS)
        except Unanswered as error:
            return f"{_short(peer)} answers no more ({error}); looking for another"
        except trio.TooSlowError:
            return f"{_short(peer)} answers no more; looking for another"

    def _learn(self, members: Sequence[Member]) -> None:
        found = to_dial([(one.peer, one.addresses[:4]) for one in members[:KNOWN_MAX]], self._given)
        if found:
            self._members = found

    # -- histories

    def _choose(self, nursery: trio.Nursery) -> None:
        """Follow who should be followed now, and nobody else. Who takes the place of one that told the curve tells it
        from then on."""
        first = () if self._answering is None else (self._answering,)
        wanted = {peer.peer_id: peer for peer in (*first, *self._members)}
        chosen = dict(list(wanted.items())[:TOLD_MAX])
        for gone in self._followed.keys() - chosen.keys():
            self._followed.pop(gone).scope.cancel()
        for rank, (name, peer) in enumerate(chosen.items()):
            curve = rank < CURVES_MAX
            if name not in self._followed:
                self._followed[name] = Followed(trio.CancelScope(), curve)
                nursery.start_soon(self._tell, peer, self._followed[name])
            self._followed[name].curve |= curve

    async def _tell(self, peer: PeerAddress, followed: Followed) -> None:
        with followed.scope:
            while True:
                try:
                    async with open_stream(self._host, peer, ANSWER_SECONDS, HISTORY_PROTOCOL) as stream:
                        await self._tell_from(stream, peer, followed)
                except Unanswered as error:
                    log.info("no history of %s: %s", peer.peer_id, error)
                except trio.TooSlowError:
                    log.info("no history of %s in time", peer.peer_id)
                await trio.sleep(DEAF_SECONDS)

    async def _tell_from(self, stream: Any, peer: PeerAddress, followed: Followed) -> None:
        """From the beginning, and again from there when the peer's run or life is another than before."""
        curve = followed.curve
        places: HistoryRequest = beginning(curve)
        past: tuple[str, str, str] | None = None
        while True:
            if followed.curve and not curve:
                curve, places = True, beginning(True)._replace(notes=places.notes)
            with trio.fail_after(ANSWER_SECONDS):
                told = decode_history(await _ask(stream, encode_request(places), REPLY_BYTES_MAX))
            taken = self._feed.tell_history(told, peer.peer_id, time.time())
            self._learn(told.members)
            now = (told.run, told.lineage, told.life)
            if now != past and past is not None:
                places = beginning(curve)
            elif taken:
                places = after(places, told)
            else:
                places = places._replace(notes=after(places, told).notes)
            past = now
            if not (told.more and taken):
                await trio.sleep(LOOK_SECONDS)


async def _ask(stream: Any, request: bytes, reply_bytes_max: int) -> bytes:
    """One request and its reply on an open stream. Raises PeerError, EOFError or what libp2p raises."""
    await send(stream, request)
    return await receive(stream, reply_bytes_max)


def beginning(curve: bool) -> HistoryRequest:
    """Where to ask a history from; without its curve, from after all of it."""
    return HistoryRequest() if curve else HistoryRequest(NUMBER_MAX - 1, NUMBER_MAX - 1, 0)


def after(places: HistoryRequest, told: History) -> HistoryRequest:
    """Where the next piece begins. Raises PeerError when there shall be more of nothing, or it was told before."""
    pieces = (told.commits, places.commits), (told.validations, places.validations), (told.notes, places.notes)
    if any(rows and rows[0][0] <= place for rows, place in pieces):
        raise PeerError("a history that tells again what was told")
    if told.more and not (told.commits or told.validations or told.notes):
        raise PeerError("a history that says that there is more and tells nothing")
    return HistoryRequest(
        told.commits[-1].step if told.commits else places.commits,
        told.validations[-1].step if told.validations else places.validations,
        told.notes[-1].number if told.notes else places.notes,
    )


def _short(peer: PeerAddress) -> str:
    return peer.peer_id[-6:]
