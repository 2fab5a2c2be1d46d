"""Members that are at odds: one of them is wrong, and nobody else has seen which (rules 25, 38).

One refuses another's numbers, gets nothing from it for a sum, or has another sum than it. The leader lets one of them
go, and remembers those that stay. Whoever is at odds with the next one as well goes before it. So a liar costs one
honest member its place, and then its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View


class Suspects(NamedTuple):
    """One of `among` is wrong, and rather one of `first` than another."""

    among: frozenset[Peer]
    first: frozenset[Peer] = frozenset()

    def common(self, other: Suspects) -> Suspects:
        return Suspects(self.among & other.among, self.first & other.first)


@dataclass(slots=True)
class Disputes:
    """What a leader remembers of them."""

    marked: set[Peer] = field(default_factory=set)
    """Members that were at odds with somebody who went."""

    def choose(self, view: View, suspects: Suspects) -> Peer:
        """Who goes. Where nothing else tells them apart, never the leader, and then the one that came last."""

        def key(peer: Peer) -> tuple[bool, bool, bool, int]:
            tenure = view.voters.index(peer) if peer in view.voters else len(view.voters)
            return peer in self.marked, peer != view.leader, peer in suspects.first, tenure

        return max(sorted(suspects.among), key=key)

    def settle(self, view: View, gone: Peer, suspects: Suspects) -> None:
        """It goes. Where it was marked the case is closed; otherwise it may have been right."""
        if gone in self.marked:
            self.marked.discard(gone)
        else:
            self.marked |= suspects.among - {gone}
        self.marked &= {*view.members()}


def most_at_odds(complaints: Collection[tuple[Peer, Peer]]) -> Suspects:
    """Of (who complains, about whom): those at odds with most others, first who only is complained about."""
    pairs = {frozenset(complaint) for complaint in complaints}
    often = Counter(peer for pair in pairs for peer in pair)
    among = frozenset(peer for peer, count in often.items() if count == max(often.values()))
    return Suspects(among, frozenset({about for _, about in complaints} - {who for who, _ in complaints}))
