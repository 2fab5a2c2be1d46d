"""Members that are at odds: one of them is wrong, and nobody else has seen which (rules 25, 38).

One refuses another's numbers, gets nothing from it for a sum, or has another sum than it. The leader lets one of them
go, and remembers those that stay. Whoever is at odds with the next one as well goes before it. So a liar costs one
honest member its place, and then its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from math import inf
from typing import Final, NamedTuple

from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

EXPOSED_MAX: Final = 1024
BARRED_LEASES: Final = 32
"""For so long a peer is asked for nothing that one other peer said to lie."""
SPOILER_LEASES: Final = 2
"""For so long one is asked for nothing whose numbers spoilt steps, or who said so of another's."""
DOUBLINGS_MAX: Final = 6


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
    believed: set[Peer] = field(default_factory=set)
    """Members on whose word a newcomer went, for which they were not marked."""
    exposed: dict[str, dict[str, tuple[float, int]]] = field(default_factory=dict)
    """By PeerId, who went since others said that it lies: whose word that was, until when that keeps it out, and how
    often it has."""

    spoilers: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By PeerId, who went for spoilt steps: until when that keeps it out, and how often it has."""

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
        self.believed &= {*view.members()}
        for accusers in self.exposed.values():  # its word counts no longer
            accusers.pop(gone.id, None)

    def believe(self, accuser: Peer) -> bool:
        """Of a newcomer, without marking it: once."""
        news = accuser not in self.believed
        self.believed.add(accuser)
        return news

    def exposed_by(self, peer: Peer, accuser: Peer) -> bool:
        """It went on the word of this one before."""
        return accuser.id in self.exposed.get(peer.id, {})

    def expose(self, gone: Peer, accuser: Peer, now: float, lease_seconds: float) -> None:
        """It goes on the word of another one, for BARRED_LEASES, and for twice as long the next time."""
        words = self.exposed.setdefault(gone.id, {})
        words[accuser.id] = _barred(words.get(accuser.id), now, lease_seconds * BARRED_LEASES)
        if len(self.exposed) > EXPOSED_MAX:
            del self.exposed[next(iter(self.exposed))]

    def spoils(self, gone: Peer, now: float, lease_seconds: float) -> None:
        """It goes for spoilt steps, for SPOILER_LEASES, and for twice as long the next time: where nobody else takes
        its place it would have it back at once, and spoil the next ones."""
        self.spoilers[gone.id] = _barred(self.spoilers.pop(gone.id, None), now, lease_seconds * SPOILER_LEASES)
        if len(self.spoilers) > EXPOSED_MAX:
            del self.spoilers[next(iter(self.spoilers))]

    def barred_until(self, peer: Peer) -> float:
        """When it may be asked to hold something again. Never, where two others said that it lies: one may have lied
        itself."""
        words = self.exposed.get(peer.id, {})
        times = [*words.values(), self.spoilers.get(peer.id, (-inf, 0))]
        return inf if len(words) > 1 else max(until for until, _ in times)


def _barred(before: tuple[float, int] | None, now: float, seconds: float) -> tuple[float, int]:
    """Until when, and how often: for so long, and for twice as long each time that it was before."""
    times = before[1] if before is not None else 0
    return now + seconds * 2.0 ** min(times, DOUBLINGS_MAX), times + 1


def most_at_odds(complaints: Collection[tuple[Peer, Peer]]) -> Suspects:
    """Of (who complains, about whom): those at odds with most others, first who only is complained about."""
    pairs = {frozenset(complaint) for complaint in complaints}
    often = Counter(peer for pair in pairs for peer in pair)
    among = frozenset(peer for peer, count in often.items() if count == max(often.values()))
    return Suspects(among, frozenset({about for _, about in complaints} - {who for who, _ in complaints}))
