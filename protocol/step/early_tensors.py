"""Tensors that overtook their Begin: kept for it, within bounds, unacknowledged, so that a dropped one comes again."""

from __future__ import annotations

from ftnode.protocol.words.messages import Boundary
from ftnode.protocol.words.types import Attempt, Handle, Peer

Early = tuple[Peer, Boundary, Handle, str]
"""From whom, what, and who relayed it."""


class EarlyTensors:
    """At most `limit` of them. Every method returns the handles to release."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._kept: dict[tuple[Attempt, int, int, str], Early] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, sender: Peer, boundary: Boundary, handle: Handle, relay: str) -> tuple[Handle, ...]:
        """Keep a tensor; the newest word of a place counts."""
        key = (boundary.attempt, boundary.microbatch, boundary.visit, boundary.direction.value)
        replaced = self._kept.pop(key, None)
        released = () if replaced is None else (replaced[2],)
        if len(self._kept) >= self._limit:
            return (*released, handle)
        self._kept[key] = (sender, boundary, handle, relay)
        return released

    def drop(self, keep: Attempt | None) -> tuple[Handle, ...]:
        """Forget those of every attempt but `keep`."""
        dropped = [key for key in self._kept if keep is None or key[0] != keep]
        return tuple(self._kept.pop(key)[2] for key in dropped)

    def take(self) -> list[Early]:
        """All of them, for whom a Begin has come."""
        early, self._kept = list(self._kept.values()), {}
        return early
