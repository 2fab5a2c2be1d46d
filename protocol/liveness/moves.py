"""Who gets something done, by the count of finished work in its heartbeats (rule 38)."""

from __future__ import annotations

from collections.abc import Collection

from ftnode.protocol.words.types import Peer

IN_VAIN_MAX = 5
"""So many views and Begins in a row count although nobody but the leader has got anything done in between."""


class Moves:
    """When each member last got something done of the attempt at hand. `most`: nobody can do more of one, and so nobody
    can say for ever that it moves."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._began = 0.0
        self._in_vain = 0
        """So many views and Begins in a row came although nobody but the leader had moved."""
        self._done: dict[Peer, int] = {}
        """The highest count that each has told."""
        self._moved: dict[Peer, tuple[float, int]] = {}
        """When each moved last in this attempt, and how often."""

    def on_view(self, members: Collection[Peer], leader: Peer, now: float) -> None:
        """Those who are no members are forgotten, so that there are no more than members (I6)."""
        self.begin(leader, now)
        self._done = {peer: done for peer, done in self._done.items() if peer in members}

    def begin(self, leader: Peer, now: float) -> None:
        """A view or a Begin. A leader that makes one after the other, and nobody works on them, gets nothing done."""
        others = any(often for peer, (_, often) in self._moved.items() if peer != leader)
        self._in_vain = 0 if others else self._in_vain + 1
        if self._in_vain <= IN_VAIN_MAX:
            self._began = now
            self._moved.clear()

    def told(self, peer: Peer, done: int, now: float) -> None:
        """A member's word, or what we know of ourselves."""
        _, often = self._moved.get(peer, (self._began, 0))
        if done > self._done.get(peer, done) and often < self.most:
            self._moved[peer] = now, often + 1
        self._done[peer] = max(done, self._done.get(peer, done))

    def last(self, but: Peer | None = None) -> float:
        """When somebody moved last, other than `but`."""
        return max((at for peer, (at, _) in self._moved.items() if peer != but), default=self._began)

    def last_under(self, leader: Peer) -> float:
        """The same; what a leader does by itself counts no more when it has begun too many attempts in vain."""
        return self.last(leader if self._in_vain > IN_VAIN_MAX else None)
