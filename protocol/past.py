"""Views that belong to the past: all of their members have begun another life (rule 37).

A swarm that was switched off leaves certificates in the directory, and whoever starts again follows them, since its
members may only be cut off. Where each of them is known to have started again, with nothing in memory, nobody is left
to wait for. One certificate of anybody who may live on, or one peer that says that it has weights, and all is as ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ftnode.protocol.participant import Participant
    from ftnode.protocol.view import View


class Past:
    """What one peer knows to be over."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self.lineages: set[str] = set()
        """Those that it gave up, at most one in a lease."""
        self._given_up_at = self._read_at = self._weights_at = float("-inf")
        """When a lineage was given up, the directory was read, and somebody told there of weights."""
        self._listed: tuple[View, ...] = ()

    def read(self, listed: Iterable[View]) -> list[View]:
        """What the directory says now, without that with which nobody can go on."""
        self._listed, self._read_at = tuple(listed), self.core.now
        if any(presence.exact for presence in self.core.presences.values()):
            self._weights_at = self.core.now
        return [view for view in self._listed if view.lineage.id not in self.lineages or not self._ended(view)]

    def is_over(self, view: View, heard_at: float) -> bool:
        """This view that we follow, and whatever else the directory has told of, a lease after the last word of it."""
        core = self.core
        late = self._read_at > heard_at + core.settings.lease_seconds
        asked = all(peer.id == core.me.id or peer in core.liveness.refused for peer in view.members())
        return late and asked and all(map(self._ended, (view, *self._listed)))

    def give_up(self, view: View) -> None:
        self.lineages.add(view.lineage.id)
        self._given_up_at = self.core.now

    def doubtful(self) -> bool:
        """Somebody has weights after all, and the time in which it may go on with them is not over."""
        waited = self.core.now - self._given_up_at
        return waited <= self.core.settings.look_for_seconds and self._weights_outside()

    def _ended(self, view: View) -> bool:
        """Each member is an earlier life of somebody who is here, by its own word, and nobody outside has weights."""
        living = {self.core.me, *self.core.presences}
        here = {peer.id for peer in living}
        replaced = all(peer.id in here and peer not in living for peer in view.members())
        return replaced and not self._weights_outside()

    def _weights_outside(self) -> bool:
        """A reading of the directory may miss a record that is there."""
        return self.core.now - self._weights_at <= self.core.settings.lease_seconds
