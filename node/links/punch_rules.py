"""When two peers behind routers try to reach each other directly, and when they give up: decisions, no network.

A circuit through a relay carries every tensor over the relay's line, so before a circuit is asked for, both routers are
opened (punch.py). That needs a relay to which both are connected: it sees where their packets come from. A try that
fails is not made again for a while, and each further one later, since routers seldom change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from ftnode.node.links.connections import Connection, direct_ends
from ftnode.node.links.dial_gate import Rate
from ftnode.node.links.dial_rules import CIRCUIT
from ftnode.node.links.hosts import is_loopback
from ftnode.node.links.listening import KINDS, socket_address
from ftnode.node.links.newest import newest
from ftnode.node.links.relay_choice import relays_in
from ftnode.node.links.tokens import Tokens

PUNCH_SECONDS: Final = 5.0
"""A whole punch, both turns."""
AT_ONCE_MAX: Final = 64
AGAIN_SECONDS: Final = (60.0, 300.0, 1800.0)
"""After the first, the second and each further failure in a row."""
PEERS_MAX: Final = 1024
"""Whose outcome is remembered."""
ASKED: Final = Rate(128, 0.5)
"""How often one peer may have us take part in a punch: as often as we dial whom we have not met (dial_gate.py)."""

Connections = Sequence[Connection]


def relays_of(addresses: Iterable[str]) -> tuple[str, ...]:
    """PeerIds of the relays in a peer's addresses, in an order that is the same for everybody."""
    return tuple(sorted(relays_in(addresses)))


def way_to(peer_id: str, connections: Connections, addresses: Collection[str] = ()) -> str:
    """The best way of those that there are: direct, to one of the `addresses` that the peer announces, or on this
    machine, where no router is; punched, to another one; or empty. A circuit is none of them."""
    ends = direct_ends(peer_id, connections)
    if any(end in addresses or is_loopback(end.split("/")[2]) for end in ends if end):
        return "direct"
    return "punched" if ends else ""


def seen_at(peer_id: str, connections: Connections) -> str:
    """Where TCP packets of a peer come from, to us; empty when we cannot tell."""
    return next((address for owner, address in connections if owner == peer_id and tcp_port(address)), "")


def kinds_of(addresses: Iterable[str]) -> frozenset[str]:
    """ip4, ip6 or both: of the direct TCP addresses, those of one machine alone aside."""
    direct = [address.split("/") for address in addresses if tcp_port(address)]
    return frozenset(kind for _, kind, host, *_ in direct if not is_loopback(host)) or frozenset(
        kind for _, kind, *_ in direct
    )


def tcp_port(address: str) -> int:
    """Of a direct TCP address; 0 for any other."""
    try:
        target = socket_address(address)
    except ValueError:
        return 0
    return target[3] if target is not None and target[1] == KINDS["tcp"] else 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of the last try. `way`: as `way_to` has it; `failures`: in a row, since there was one."""

    way: str
    failures: int
    ended: float
    why: str

    @property
    def again_at(self) -> float:
        """From when on it may be tried again."""
        return self.ended + AGAIN_SECONDS[min(self.failures, len(AGAIN_SECONDS)) - 1] if self.failures else -inf


class Punches:
    """What was tried and what came of it. `now`: seconds of a clock that does not go back."""

    def __init__(self) -> None:
        self._outcomes: dict[str, Outcome] = {}
        self._asked: dict[str, Tokens] = {}
        self._under_way = 0

    def choose(
        self, now: float, peer_id: str, addresses: Sequence[str], connections: Connections, own: Iterable[str],
        instead: bool = False,
    ) -> tuple[str, str]:  # fmt: skip
        """(relay to ask, "") when a punch is worth a try; else ("", why not). `addresses`: of the peer; `own`: where we
        listen; `instead`: also of a circuit that there is."""
        relays = relays_of(addresses)
        if not relays:
            return "", "it is behind no relay"
        if any(owner == peer_id and not (instead and CIRCUIT in end) for owner, end in connections):
            return "", "there is a connection"
        ours, theirs = kinds_of(own), kinds_of(addresses)
        if not ours:
            return "", "we listen nowhere"
        if theirs and not ours & theirs:
            return "", "it has IPv4 alone and we IPv6, or the other way round"
        before = self._outcomes.get(peer_id)
        if before is not None and now < before.again_at:
            return "", before.why
        if self._under_way >= AT_ONCE_MAX:
            return "", f"{AT_ONCE_MAX} others are tried"
        met = [relay for relay in relays if seen_at(relay, connections)]
        return (met[0], "") if met else ("", "we are not connected to its relay")

    def began(self) -> None:
        """A try, ours or another's."""
        self._under_way += 1

    def ended(self, now: float, peer_id: str, way: str, why: str) -> None:
        """A try that began is over. `way`: as `way_to` has it; `why` there is none, if there is none."""
        self._under_way -= 1
        before = self._outcomes.get(peer_id)
        failures = 0 if way else 1 + (before.failures if before is not None else 0)
        newest(self._outcomes, peer_id, Outcome(way, failures, now, "" if way else why), PEERS_MAX)

    def objection(self, now: float, sender: str, told_by: Collection[str] | None = None) -> str:
        """Why we take no part in a punch at this peer's word; empty when we do. `told_by`: whose word counts; None:
        everybody's."""
        if told_by is not None and sender not in told_by:
            return "it is no relay of ours"
        tokens = newest(self._asked, sender, self._asked.get(sender) or ASKED.tokens(now), PEERS_MAX)
        if tokens.left(now) < 1 or self._under_way >= AT_ONCE_MAX:
            return "too many at once"
        tokens.take()
        return ""

    def way(self, peer_id: str) -> str:
        """What the last try with a peer brought, as `way_to` has it."""
        outcome = self._outcomes.get(peer_id)
        return outcome.way if outcome is not None else ""

    @property
    def punched(self) -> frozenset[str]:
        """PeerIds whose routers, or ours, the last try has opened."""
        return frozenset(peer_id for peer_id, outcome in self._outcomes.items() if outcome.way == "punched")

    @property
    def trouble(self) -> str:
        """Why the last try that failed did; empty when none has."""
        failed = [outcome.why for outcome in self._outcomes.values() if not outcome.way]
        return failed[-1] if failed else ""
