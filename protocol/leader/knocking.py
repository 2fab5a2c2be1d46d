"""Peers that the directory names, and that we do not hear: asked for a sign of life before anybody counts on them.

A record costs nothing, and strangers can write as many as they like. So a record is no candidate, only somebody to ask
whether it is there; whoever answers is one. Some are asked at a time, in turns, those first who were heard before.
"""

from __future__ import annotations

from collections.abc import Collection
from heapq import nsmallest
from typing import Final

from ftnode.protocol.recovery.candidate_order import suitable
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer

KNOCKS_MAX: Final = 16
"""Peers that are asked within one heartbeat."""


class Knocking:
    """The leader's, in one view."""

    def __init__(self) -> None:
        self._asked: dict[Peer, float] = {}
        """When each was asked last."""
        self._newest: tuple[Peer, ...] = ()
        """Who was asked last, together."""
        self.next = float("-inf")
        """Nobody is asked before."""

    def knock(self, s: Situation, out: Outcome, stages: Collection[int]) -> None:
        """Ask those whose turn it is, of all that could take one of these stages. Looked at once in a heartbeat."""
        if s.now < self.next or not stages:
            return
        heard, down, refused = s.liveness.heard, s.liveness.down, s.liveness.refused
        silent = [
            peer
            for peer, presence in s.presences.items()
            if peer not in s.members and peer not in refused and not s.hears(peer)
            if any(suitable(presence, stage) for stage in stages)
        ]  # fmt: skip
        if not silent:
            return

        def turn(peer: Peer) -> tuple[object, ...]:
            return self._asked.get(peer, float("-inf")), peer not in heard, peer in down, peer

        chosen = self._newest = tuple(nsmallest(KNOCKS_MAX, silent, key=turn))
        self._asked = {peer: at for peer, at in self._asked.items() if peer in s.presences}
        self._asked.update(dict.fromkeys(chosen, s.now))
        out.beat(True, *chosen)
        self.next = s.now + s.settings.heartbeat_seconds
        out.set_timer("offer", s.now + s.settings.second_offer_seconds, keep=True)

    def awaited(self, s: Situation) -> list[Presence]:
        """Those who were asked a moment ago, and may answer any moment."""
        since, down, refused = s.now - s.settings.second_offer_seconds, s.liveness.down, s.liveness.refused
        asked = [peer for peer in self._newest if self._asked[peer] > since and peer in s.presences]
        return [s.presences[peer] for peer in asked if not (peer in down or peer in refused or s.hears(peer))]
