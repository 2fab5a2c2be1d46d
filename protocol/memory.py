"""What a leader remembers from view to view; lost with it, and only speed or patience with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from ftnode.protocol.adaptive import Deadline
from ftnode.protocol.messages import Ready
from ftnode.protocol.types import Peer


@dataclass(slots=True)
class Learner:
    """Somebody outside a stage who learns it. `giver`: whose place it takes, if anybody's. `accepted`: it has said yes;
    until then it has until `until`."""

    stage: int
    giver: Peer | None
    until: float
    accepted: bool = False
    applied: int = -1
    """The step of the weights that it says it has."""


@dataclass(slots=True)
class Memory:
    """Of all the views that this peer led."""

    failures: Counter[tuple[str, int]] = field(default_factory=Counter)
    """(PeerId, stage) → how often the peer failed on the stage."""
    troubles: dict[tuple[int, int], int] = field(default_factory=dict)
    """(step, stage) → losses, and (step, -1) → poisonings, of the step in progress (rule 25)."""
    counted: set[tuple[int, int, Peer]] = field(default_factory=set)
    """(step, stage, newcomer) of the losses counted there."""
    committed_at: float | None = None
    unheard: dict[Peer, float] = field(default_factory=dict)
    """Peers outside the view that did not lend the copy that they keep, and since when."""
    learners: dict[Peer, Learner] = field(default_factory=dict)
    leavers: dict[Peer, float] = field(default_factory=dict)
    """Who wants to leave when others have its stages, and since when."""
    spared: dict[Peer, int] = field(default_factory=dict)
    """Replicas that were taken out of their group to learn a stage that is left."""
    settled: dict[Peer, Ready] = field(default_factory=dict)
    """The Readies of the last step that a new view committed: who left with it says nothing any more."""
    join: Deadline | None = None
    """How long a step waits for a learner."""
    attempts: int = 0
    """Never starts again, so that an attempt's name is not used twice when a view comes back (rule 3)."""

    def failed(self, peer: Peer, stage: int) -> None:
        """Whoever comes back under the same name is asked later than others."""
        self.failures[peer.id, stage] += 1
