"""What stands in the directory: presences of standbys and certificates of views. Signed by whom they are about.

The directory decides nothing (docs/protocol.md); a record is a hint with a lifetime. Signing and verifying bytes is
the caller's business, so that the core stays free of cryptography.
"""

from __future__ import annotations

from dataclasses import dataclass

from ftnode.protocol.types import Peer, Snapshot, Version

LIFETIME_SECONDS_MAX = 90.0


@dataclass(frozen=True, slots=True)
class Presence:
    """A peer that takes part or would like to, and what it can do."""

    peer: Peer
    addresses: tuple[str, ...]
    lineage: str
    """Lineage of the view it knows; empty when it knows none."""
    view: int
    capacity: int
    """How many more stages it would hold."""
    head: bool
    """It may hold the head: it has the run's corpus."""
    refuses: tuple[int, ...]
    """Stages on which it failed, say by running out of memory."""
    exact: tuple[tuple[int, Version], ...]
    """Weights that it still has, of stages that it no longer holds."""
    copies: tuple[tuple[int, Version], ...]
    """Copies that it keeps of others' stages, made in its lineage or one that led to it."""
    tokens_per_second: float
    snapshots: tuple[Snapshot, ...] = ()
    """The newest on its disk, as long as it is in no view (rule 34)."""
