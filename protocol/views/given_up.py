"""Views that belong to the past: all of their members have begun another life (rule 37).

A swarm that was switched off leaves certificates in the directory. A peer that starts again follows them, since the
members may only be cut off. When each member is known to have started again, with nothing in memory, nobody is left to
wait for. If any member may still be alive, or any peer reports weights, keep waiting.
"""

from __future__ import annotations

from collections.abc import Iterable

from ftnode.protocol.situation import Situation
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View


class GivenUpLineages:
    """What one peer has given up: lineages that are over, and the one that nobody stood behind. Another lineage goes
    before them."""

    def __init__(self) -> None:
        self.lineages: set[str] = set()
        """Those that are over, at most one in a lease."""
        self._silent = ""
        """The last one of whose view nobody was heard."""
        self._given_up_at = self._read_at = self._weights_at = float("-inf")
        """When a lineage was given up, the directory was read, and somebody told there of weights."""
        self._listed: tuple[View, ...] = ()

    def read(self, s: Situation, listed: Iterable[View]) -> list[View]:
        """What the directory says now, without the views with which nobody can go on."""
        self._listed, self._read_at = tuple(listed), s.now
        if any(presence.exact for presence in s.presences.values()):
            self._weights_at = s.now
        return [view for view in self._listed if view.lineage.id not in self.lineages or not self._ended(s, view)]

    def is_over(self, s: Situation, view: View, heard_at: float) -> bool:
        """This view that we follow, and all others that the directory tells of, a lease after the last word of it."""
        late = self._read_at > heard_at + s.settings.lease_seconds
        asked = all(peer.id == s.me.id or peer in s.liveness.refused for peer in view.members())
        return late and asked and all(self._ended(s, each) for each in (view, *self._listed))

    def over(self, view: View, now: float) -> None:
        """All of its members have begun another life."""
        self.lineages.add(view.lineage.id)
        self._given_up_at = now

    def silent(self, view: View) -> None:
        """Nobody stands behind it."""
        self._silent = view.lineage.id

    def keeps_from(self, view: View) -> bool:
        """A record of the view is not enough to follow it."""
        return view.lineage.id == self._silent or view.lineage.id in self.lineages

    def was_wrong(self, view: View, sender: Peer) -> bool:
        """A member of a view that is over speaks of it."""
        return view.lineage.id in self.lineages and sender in view.members()

    def doubtful(self, s: Situation) -> bool:
        """Somebody has weights after all, and the time in which it may go on with them is not over."""
        return s.now - self._given_up_at <= s.settings.look_for_seconds and self._weights_outside(s)

    def _ended(self, s: Situation, view: View) -> bool:
        """Each member is an earlier life of somebody who is here, by its own word, and nobody outside has weights."""
        living = {s.me, *s.presences}
        here = {peer.id for peer in living}
        replaced = all(peer.id in here and peer not in living for peer in view.members())
        return replaced and not self._weights_outside(s)

    def _weights_outside(self, s: Situation) -> bool:
        """A reading of the directory may miss a record that is there."""
        return s.now - self._weights_at <= s.settings.lease_seconds
