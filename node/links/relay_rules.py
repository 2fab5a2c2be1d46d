"""Whom a relay gives how much: decisions, no network.

A volunteer relays for those who take part in its run, whose tensors that are. Everybody else may only ask for a circuit
to one of them, and may have little: who watches, or is about to join. A meeting point knows nobody, and gives everybody
the same. Bytes count for whoever asked for the circuit, both ways. Who has used up what it may have is cut off: its
circuits end, and it gets none until some of it has come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from math import exp
from typing import Final

from ftnode.node.links.dial_gate import Rate
from ftnode.node.links.newest import newest
from ftnode.node.links.relay_words import NO_PLACE, NO_ROOM, NOT_FOR_YOU, OK, REFUSED
from ftnode.node.links.tokens import Tokens

GIB: Final = float(1 << 30)
HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
PEERS_MAX: Final = 4096
"""Whose use is remembered."""
PLACES_MAX: Final = 1024
PLACES_OF_HOST: Final = 64
"""Peers on one IP address; many homes may share one."""
PLACE_SECONDS: Final = 180.0
"""Until a place that nobody renews is free; who has one asks again every minute."""
CIRCUITS_MAX: Final = 512
ASKED: Final = Rate(256, 0.25)
"""How often one peer may ask for anything."""
BACK_SHARE: Final = 0.1
"""Of an hour's bytes, how much must have come back before a peer that was cut off is relayed for again."""
LATELY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Terms:
    """What one peer may have: a place or none, circuits at a time, bytes an hour over all of them, seconds of each.
    `all_circuits`, `all_bytes_an_hour`: of all peers with these terms together."""

    place: bool
    circuits: int
    bytes_an_hour: float
    seconds: float
    all_circuits: int
    all_bytes_an_hour: float


MEMBER: Final = Terms(True, 100, 64 * GIB, DAY, CIRCUITS_MAX, 1024 * GIB)
"""150 Mbit/s all the time: no home's line asks for more. At a meeting point these are everybody's."""
STRANGER: Final = Terms(False, 4, GIB / 2, HOUR / 6, 32, 4 * GIB)
"""At a volunteer: enough to look, to take a small model out, and to become a member."""


class Lately:
    """Bytes a second, the last ones more than earlier ones."""

    def __init__(self) -> None:
        self._rate, self._seen = 0.0, 0.0

    def add(self, now: float, count: int) -> None:
        self._rate = self.rate(now) + count / LATELY_SECONDS

    def rate(self, now: float) -> float:
        self._rate *= exp((self._seen - max(now, self._seen)) / LATELY_SECONDS)
        self._seen = max(now, self._seen)
        return self._rate


class RelayRules:
    """What was given and used. `terms`: of a PeerId, as of now. `now`: seconds of a clock that does not go back."""

    def __init__(self, terms: Callable[[str], Terms]) -> None:
        self._terms = terms
        self._places: dict[str, tuple[str, float]] = {}
        """PeerId → where it is connected from, and until when its place is kept."""
        self._asked: dict[str, Tokens] = {}
        self._used: dict[str, tuple[Terms, Tokens]] = {}
        self._used_by_all: dict[Terms, Tokens] = {}
        self._circuits: Counter[str] = Counter()
        """PeerId → circuits that it has asked for and that are open."""
        self._kinds: Counter[Terms] = Counter()
        self._all = Lately()
        self._pairs: dict[frozenset[str], Lately] = {}
        """Of those that have a circuit."""
        self._pair_circuits: Counter[frozenset[str]] = Counter()
        """Two peers → circuits between them that are open, whoever asked for each."""

    def place(self, now: float, peer_id: str, host: str) -> int:
        """The status of the answer to a peer that wants a place, or wants to keep it. `host`: its IP address."""
        if not self._may_ask(now, peer_id):
            return REFUSED
        if not self._terms(peer_id).place:
            return NOT_FOR_YOU
        self._forget(now)
        neighbours = sum(other == host for peer, (other, _) in self._places.items() if peer != peer_id)
        if neighbours >= PLACES_OF_HOST or (peer_id not in self._places and len(self._places) >= PLACES_MAX):
            return NO_ROOM
        self._places[peer_id] = host, now + PLACE_SECONDS
        return OK

    def circuit(self, now: float, caller: str, wanted: str) -> int:
        """The status of the answer to a peer that wants a circuit. `begin` it when there is one."""
        if not self._may_ask(now, caller) or caller == wanted:
            return REFUSED
        self._forget(now)
        if wanted not in self._places:
            return NO_PLACE
        terms = self._terms(caller)
        full = sum(self._circuits.values()) >= CIRCUITS_MAX or self._kinds[terms] >= terms.all_circuits
        if full or self._circuits[caller] >= terms.circuits:
            return NO_ROOM
        own, every = self._left(now, caller, terms)
        return OK if own >= BACK_SHARE * terms.bytes_an_hour and every > 0 else NO_ROOM

    def begin(self, caller: str, wanted: str) -> Terms:
        """A circuit is open. Give what this returns to `end`."""
        terms = self._terms(caller)
        pair = frozenset((caller, wanted))
        self._pairs.setdefault(pair, Lately())
        self._pair_circuits[pair] += 1
        self._circuits[caller] += 1
        self._kinds[terms] += 1
        return terms

    def end(self, caller: str, wanted: str, terms: Terms) -> None:
        """It is closed."""
        pair = frozenset((caller, wanted))
        self._pair_circuits[pair] -= 1
        if not self._pair_circuits[pair]:
            del self._pair_circuits[pair], self._pairs[pair]
        self._circuits[caller] -= 1
        self._kinds[terms] -= 1
        if not self._circuits[caller]:
            del self._circuits[caller]

    def spend(self, now: float, caller: str, wanted: str, count: int) -> str:
        """Bytes passed over a circuit that the peer has asked for. Why it is cut off; empty while it is not."""
        for lately in (self._all, self._pairs.get(frozenset((caller, wanted)))):
            if lately is not None:
                lately.add(now, count)
        terms = self._terms(caller)
        own, every = self._left(now, caller, terms)
        self._used[caller][1].take(count)
        self._used_by_all[terms].take(count)
        if own < count:
            return f"it has used up {terms.bytes_an_hour / GIB:g} GiB in an hour"
        return "all like it together have used up theirs" if every < count else ""

    def rate(self, now: float) -> float:
        """Bytes a second, lately; those of both directions of a circuit together."""
        return self._all.rate(now)

    def rates_of(self, now: float, peer_id: str) -> dict[str, float]:
        """PeerId → bytes a second of the circuits between that peer and this one."""
        pairs = [(pair, lately) for pair, lately in self._pairs.items() if peer_id in pair]
        return {next(iter(pair - {peer_id})): lately.rate(now) for pair, lately in pairs}

    def places(self, now: float, without: str = "") -> int:
        """How many others have a place."""
        self._forget(now)
        return len(self._places.keys() - {without})

    def _may_ask(self, now: float, peer_id: str) -> bool:
        tokens = newest(self._asked, peer_id, self._asked.get(peer_id) or ASKED.tokens(now), PEERS_MAX)
        if tokens.left(now) < 1:
            return False
        tokens.take()
        return True

    def _left(self, now: float, peer_id: str, terms: Terms) -> tuple[float, float]:
        """Bytes that the peer may still have, and all with such terms. Other terms begin anew."""
        known = self._used.get(peer_id)
        if known is None or known[0] != terms:
            known = terms, Tokens(terms.bytes_an_hour / HOUR, terms.bytes_an_hour, now)
        newest(self._used, peer_id, known, PEERS_MAX)
        if terms not in self._used_by_all:
            self._used_by_all[terms] = Tokens(terms.all_bytes_an_hour / HOUR, terms.all_bytes_an_hour, now)
        return known[1].left(now), self._used_by_all[terms].left(now)

    def _forget(self, now: float) -> None:
        for peer in [peer for peer, (_, until) in self._places.items() if until < now]:
            del self._places[peer]
