"""Who votes in the next view: no crowd is a quorum by itself while others could vote (rule 44).

The bound takes votes away, never work. With two crowds one of them is always a quorum. Then the one whose member has
voted longest stays as it is, and the other one is no quorum.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from ftnode.protocol.words.crowds import Crowds
from ftnode.protocol.words.types import Peer


def bounded(order: Sequence[Peer], leader: Peer, first: Collection[Peer], crowds: Crowds) -> tuple[Peer, ...]:
    """Those of `order`, who voted longest first, that vote. `first`: besides the leader, who keeps its vote before
    others of its crowd do."""
    voters = list(order)
    while True:
        before = len(voters)
        for crowd_of in crowds.kinds(order):
            voters = _bounded(voters, leader, {*first}, crowd_of)
        if len(voters) == before:
            return tuple(voters)


def _bounded(voters: list[Peer], leader: Peer, first: set[Peer], crowd_of: Mapping[Peer, str]) -> list[Peer]:
    sizes = Counter(crowd_of[peer] for peer in voters)
    largest, size = max(sizes.items(), key=lambda one: one[1]) if sizes else ("", 0)
    if len(sizes) == 2:
        largest = next(crowd for crowd in sizes if crowd != crowd_of[voters[0]])
        size = sizes[largest]
    others = len(voters) - size
    most = max(1, others - (crowd_of[leader] == largest))
    if not others or size <= most:
        return voters
    theirs = [peer for peer in voters if crowd_of[peer] == largest]
    kept = {*sorted(theirs, key=lambda peer: (peer != leader, peer not in first))[:most]}
    return [peer for peer in voters if crowd_of[peer] != largest or peer in kept]
