"""How far the leader of one view has come. The leader writes it; the parts of its role read it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ftnode.protocol.words.messages import Begin, Ready, Status
from ftnode.protocol.words.types import Peer, Version


@dataclass(slots=True)
class ViewProgress:
    """From the members' Statuses to the Begin of a step, and to its Readies."""

    statuses: dict[Peer, Status] = field(default_factory=dict)
    begin: Begin | None = None
    ready: dict[Peer, Ready] = field(default_factory=dict)
    base: Version | None = None
    """Where the swarm stands; None until all members have said it."""
    empty: frozenset[int] = frozenset()
    """Stages that have holders, and none with the weights of `base`."""
    halted: str = ""
    """Why the run cannot go on, in words; also written by the look at the disks."""
    finished: bool = False
    """All steps are committed."""
