"""What stands in the directory: presences of standbys and certificates of views. Signed by whom they are about.

The directory decides nothing (docs/explanation/protocol.md); a record is a hint with a lifetime. Signing and verifying
bytes is the caller's business, so that the core stays free of cryptography.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, Snapshot, Version

LIFETIME_SECONDS_MAX = 90.0

TOLD_MAX: Final = 64
"""Snapshots that a peer tells of, newest first: about 5 KiB of its presence."""
NAME_MAX: Final = 128
"""Characters of a digest or a commit."""
EPOCH_MAX: Final = 2**47
"""Epochs stay so small that a view can always be numbered above them."""


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
    site: str = field(default="", repr=False)
    """Where it is, by its owner's word or by its public addresses; empty: not known."""


def sensible(snapshot: Snapshot, settings: Settings) -> bool:
    """Whether this can be a snapshot of the run at all."""
    return (
        0 <= snapshot.stage < settings.stage_count
        and could_be_kept(snapshot.version, settings)
        and 0 <= snapshot.epoch < EPOCH_MAX
        and 0 < len(snapshot.digest) <= NAME_MAX
    )


def could_be_kept(version: Version, settings: Settings) -> bool:
    """Whether this can name a step that the run has committed."""
    return (
        0 < version.step <= settings.steps
        and len(version.commit) <= NAME_MAX
        and -1 <= version.attempt.view < EPOCH_MAX  # that of a state that is made of others' is INITIAL_ATTEMPT
        and 0 <= version.attempt.n < EPOCH_MAX
    )
