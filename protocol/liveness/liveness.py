"""Who is alive: signs of life, links, and what the voters say of a suspect (rules 8, 9).

A peer is suspected when it is silent for a lease, when its address refuses a dial, or when a link to it stays broken.
The leader polls the voters; one voter that hears the suspect after the poll arrived voids it, so that one broken link
condemns nobody. Whoever was itself blocked for half a lease suspects itself first: nobody else is silent until a
lease after it woke.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

PATIENCE_LEASES = 2
"""A peer that is heard irregularly is silent after so many leases at most."""


@dataclass(slots=True)
class Inquiry:
    """The leader's poll about one suspect."""

    number: int
    peer: Peer
    reporter: Peer
    kind: str
    detail: str
    since: float
    deadline: float
    asked: frozenset[Peer]
    silent: set[Peer] = field(default_factory=set)

    def concluded(self, now: float, refused: Collection[Peer]) -> bool:
        """Nobody heard the suspect, and everybody has said so, or somebody has and the others had the time to. Those in
        `refused`, where nobody listens at their addresses, are gone themselves and say nothing."""
        left = self.asked.difference(refused)
        return (bool(left) and self.silent >= left) or (now >= self.deadline and bool(self.silent))

    def expired(self, now: float) -> bool:
        """Nobody has answered at all; whoever suspects the peer still will say so again."""
        return now >= self.deadline and not self.silent


@dataclass(slots=True)
class PollErrand:
    """A voter's part in a poll: listen for the suspect until the deadline, then answer."""

    number: int
    leader: Peer
    peer: Peer
    since: float
    deadline: float


class Signs:
    """What is asked of signs of life, of those that come in and of those that a picture of one moment shows."""

    heard: Mapping[Peer, float]
    """When each peer gave the newest."""
    refused: Collection[Peer]
    """Nobody listens at their addresses."""
    grace: float
    """When we began, or woke last: nobody is silent for longer."""

    def patience(self, peer: Peer) -> float:
        """Seconds of silence after which the peer is silent."""
        raise NotImplementedError

    def silence(self, peer: Peer, now: float) -> float:
        return now - max(self.heard.get(peer, self.grace), self.grace)

    def silent(self, peer: Peer, now: float) -> bool:
        """Silent for a lease, for more if it often is nearly that long, or known to be gone: its address refuses us."""
        return peer in self.refused or self.silence(peer, now) > self.patience(peer)


@dataclass(frozen=True)
class SignsShown(Signs):
    """Those of one moment."""

    heard: Mapping[Peer, float]
    refused: frozenset[Peer]
    grace: float
    lease: float
    patiences: Mapping[Peer, float]
    """Of peers whose regularity was measured; others have a lease."""

    def patience(self, peer: Peer) -> float:
        return self.patiences.get(peer, self.lease)


class Liveness(Signs):
    """Signs of life as one peer sees them."""

    def __init__(self, lease_seconds: float, now: float) -> None:
        self.lease = lease_seconds
        self.grace = now
        self.heard: dict[Peer, float] = {}
        self.lineages: dict[Peer, str] = {}
        """Which lineage a peer last spoke of."""
        self.up: set[Peer] = set()
        self.down: dict[Peer, float] = {}
        self.refused: set[Peer] = set()
        self._silences = Deadlines(lease_seconds, PATIENCE_LEASES * lease_seconds)
        self._last = now
        self._stale_until = now

    def woke(self, now: float, deadline: float) -> bool:
        """Note that we are running; True if we are late for `deadline` by half a lease (a suspended process, a hung
        disk). Idling until the deadline is no lateness."""
        late = self.lease / 2
        blocked = now - self._last > late and now - deadline > late
        self._last = now
        if blocked:
            self.grace = now
            self._stale_until = now + self.lease / 10
        return blocked

    def stale(self, now: float) -> bool:
        """We have just woken: what arrives now may have been waiting, and says nothing about the present."""
        return now < self._stale_until

    def on_message(self, peer: Peer, lineage: str | None, now: float) -> None:
        """`lineage`: whose business the message is, if it says so."""
        if self.stale(now):
            return
        gap = now - self.heard.get(peer, now)
        if gap > self.lease / 10:  # of the many messages between two heartbeats, only the first says how regular it is
            self._silences.of(peer).observe(min(gap, PATIENCE_LEASES * self.lease))
        self.heard[peer] = now
        if lineage is not None:
            self.lineages[peer] = lineage
        if peer in self.refused:
            self.refused.discard(peer)

    def on_link_up(self, peer: Peer, now: float) -> None:
        self.up.add(peer)
        self.down.pop(peer, None)
        self.refused.discard(peer)
        self.heard[peer] = now

    def on_link_down(self, peer: Peer, refused: bool, now: float) -> None:
        self.up.discard(peer)
        self.down.setdefault(peer, now)
        if refused:
            self.refused.add(peer)

    def patience(self, peer: Peer) -> float:
        return self._silences.of(peer).seconds

    def shown(self) -> SignsShown:
        """All of them as they are now."""
        heard, patiences = MappingProxyType(self.heard.copy()), MappingProxyType(self._silences.seconds())
        return SignsShown(heard, frozenset(self.refused), self.grace, self.lease, patiences)

    def heard_since(self, peer: Peer, then: float) -> bool:
        return self.heard.get(peer, float("-inf")) > then

    def alive(self, peers: Iterable[Peer], now: float) -> set[Peer]:
        """Those truly heard within a lease; a grace period is not a sign of life."""
        since = now - self.lease
        return {peer for peer in peers if self.heard.get(peer, since) > since and peer not in self.refused}

    def followers(self, peers: Iterable[Peer], lineage: str, now: float) -> set[Peer]:
        """Those heard within a lease who said that they are of this lineage: whoever left for another is alive, but
        stands behind that one."""
        return {peer for peer in self.alive(peers, now) if self.lineages.get(peer) == lineage}

    def quorate(self, view: View, me: Peer, now: float) -> bool:
        return view.is_quorum({me, *self.followers(view.voters, view.lineage.id, now)})

    def forget_strangers(self, known: set[Peer]) -> None:
        """Keep the tables as small as the swarm (I6)."""
        for table in (self.heard, self.down, self.lineages):
            for peer in [peer for peer in table if peer not in known]:
                del table[peer]
        self._silences.keep_only(known)
        self.refused &= known
        self.up &= known


class BrokenLinks:
    """The leader's list of links between living members that do not work (rule 9)."""

    def __init__(self, patience_seconds: float, stale_seconds: float) -> None:
        self.patience, self.stale = patience_seconds, stale_seconds
        self._links: dict[frozenset[Peer], tuple[float, float]] = {}

    def report(self, reporter: Peer, other: Peer, now: float) -> None:
        link = frozenset((reporter, other))
        first, last = self._links.get(link, (now, now))
        self._links[link] = (first if now - last <= self.stale else now, now)

    def links(self, now: float) -> list[frozenset[Peer]]:
        """Those that are reported still."""
        self._links = {link: times for link, times in self._links.items() if now - times[1] <= self.stale}
        return sorted(self._links, key=sorted)

    def lasting(self, view: View, now: float) -> tuple[frozenset[Peer], frozenset[Peer]] | None:
        """A link between members that stayed broken too long, and those of its ends with fewer good links. On a tie
        these are without the leader."""
        live, members = self.links(now), set(view.members())
        lasting = [link for link in live if now - self._links[link][0] >= self.patience and link <= members]
        if not lasting:
            return None
        link = lasting[0]
        broken = {peer: sum(peer in other for other in live) for peer in link}
        worst = frozenset(peer for peer in link if broken[peer] == max(broken.values()))
        return link, worst - {view.leader} or worst
