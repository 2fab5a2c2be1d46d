"""The gate through which every dial of a node goes: which addresses of a peer p2pd is told, and how often.

A person's word (--peer, a link) passes as it is. All other addresses must pass the rules (dial_rules.py). Where we
have not met a peer yet, its address costs a token of its endpoint, of its host and of the whole node; the tokens come
back when the peer is found there. So who names addresses of others buys a few connections, however many names it
has, and swarms whose peers are where they say are not held up.

Where a peer was met: a live connection with it has that very address at its other end. p2pd dials from the port on
which it listens, so a peer that connects to us without a router in between has been met where it listens, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final, TypeVar

from ftnode.node.links.addresses import PeerAddress, full_addresses
from ftnode.node.links.dial_rules import Endpoint, Neighbourhood, endpoint_of, source_of
from ftnode.node.links.hosts import household, ip_of
from ftnode.node.links.newest import newest
from ftnode.node.links.tokens import Tokens

MET_SECONDS: Final = 3600.0
"""For so long after a connection was seen, a peer counts as being where it was."""
MET_MAX: Final = 4096
PLACES_MAX: Final = 4096
"""Hosts and endpoints, each. The whole node's tokens fill this in half an hour, when those of the first place are all
back."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Dials at once, and seconds until another one."""

    at_once: int
    seconds: float

    def tokens(self, now: float) -> Tokens:
        """One is a dial."""
        return Tokens(1 / self.seconds, self.at_once, now)


ENDPOINT: Final = Rate(2, 30.0)
"""One port of one host: a peer that did not answer there is tried again, others that claim to be there share it."""
HOST: Final = Rate(16, 10.0)
"""One household (hosts.py): its unmet peers that are tried at once."""
EVERYBODY: Final = Rate(128, 0.5)
"""A swarm of some hundred volunteers is met within a minute by a node that has just joined."""

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Passed:
    """What the gate lets through. `reason`: why it kept an address back, if it did."""

    addresses: tuple[str, ...]
    reason: str
    paid: tuple[Tokens, ...]
    """One was taken from each of these."""
    judged: int
    """How many addresses pass the rules, rates aside."""


class DialGate:
    """`clock`: seconds. `own`: where we listen or what we announce, kept up to date by whoever knows."""

    def __init__(self, clock: Callable[[], float], source: Callable[[str], str] = source_of) -> None:
        self.own: tuple[str, ...] = ()
        self._clock = clock
        self._source = source
        self._given: dict[str, tuple[str, ...]] = {}
        """PeerId → addresses, of peers that a person named."""
        self._remembered: set[tuple[str, str]] = set()
        self._met: dict[tuple[str, str], float] = {}
        """(PeerId, address) → when it was there last."""
        self._endpoints: dict[tuple[str, int], Tokens] = {}
        self._hosts: dict[str, Tokens] = {}
        self._everybody = EVERYBODY.tokens(clock())

    def give(self, peers: Iterable[PeerAddress]) -> None:
        """A person named these: they are dialled as often as we like."""
        for peer in peers:
            self._given[peer.peer_id] = tuple(dict.fromkeys([*self.given(peer.peer_id), *peer.addresses]))

    def given(self, peer_id: str) -> tuple[str, ...]:
        """Where a person has said that the peer is."""
        return self._given.get(peer_id, ())

    def remember(self, peers: Iterable[PeerAddress]) -> None:
        """Those of an earlier time, when a person named them or they passed this gate: only rates hold for them."""
        self._remembered |= {(peer.peer_id, address) for peer in peers for address in peer.addresses}

    def objection(self, address: str, near: Sequence[str] = ()) -> str:
        """Why nobody else's word can have us dial this address; empty when it can. `near`: addresses of peers that are
        where we are, besides those that were given."""
        given = [one for addresses in self._given.values() for one in addresses]
        return Neighbourhood(self.own, [*given, *near], self._source).objection(address)

    def presentable(self, peer: PeerAddress) -> tuple[str, ...]:
        """The full multiaddrs of a peer, those that pass the rules."""
        fine = [address for address in peer.addresses if not self.objection(address)]
        return full_addresses(peer.peer_id, fine)

    def has_met(self, peer_id: str, address: str) -> bool:
        """Whether we were connected to the peer, or to the relay, at this address lately."""
        seen = self._met.get((peer_id, address), -inf)
        return self._clock() - seen < MET_SECONDS

    def met(self, peer_id: str, addresses: Sequence[str]) -> None:
        """There is a connection to the peer, whose other end has one of these addresses."""
        for address in addresses:
            newest(self._met, (peer_id, address), self._clock(), MET_MAX)

    def admit(self, peer_id: str, addresses: Sequence[str], near: Sequence[str] = ()) -> Passed:
        """Those of a peer's addresses that may be dialled now; their tokens are taken. `near` as for `objection`."""
        passed: list[str] = []
        paid: list[Tokens] = []
        reason, judged = "it has no address", 0
        for address in dict.fromkeys(addresses):
            objection = "" if self._is_familiar(peer_id, address) else self.objection(address, near)
            if objection:
                reason = f"{address[:80]}: {objection}"
                continue
            judged += 1
            tokens = self._pay(peer_id, address)
            if tokens is None:
                reason = f"{address[:80]}: too many dials there"
                continue
            passed.append(address)
            paid.extend(tokens)
        return Passed(tuple(passed), reason, tuple(paid), judged)

    def found(self, passed: Passed) -> None:
        """The peer was where it should be."""
        for tokens in passed.paid:
            tokens.give_back()

    def _is_familiar(self, peer_id: str, address: str) -> bool:
        """Whether no rule holds for this address."""
        return self._is_given(peer_id, address) or bool({(peer_id, address), _relay_of(address)} & self._remembered)

    def _is_given(self, peer_id: str, address: str) -> bool:
        relay, base = _relay_of(address)
        return address in self.given(peer_id) or base in self.given(relay)

    def _pay(self, peer_id: str, address: str) -> tuple[Tokens, ...] | None:
        """None when there are no tokens; then none is taken."""
        met = self.has_met(peer_id, address) or self.has_met(*_relay_of(address))
        if met or self._is_given(peer_id, address):
            return ()
        endpoint, now = endpoint_of(address), self._clock()
        if endpoint is None:
            return ()
        needed = (
            _tokens(self._endpoints, (str(ip_of(endpoint.host)), endpoint.port), ENDPOINT, now),
            _tokens(self._hosts, household(endpoint.host), HOST, now),
            self._everybody,
        )
        if not all(tokens.left(now) >= 1 for tokens in needed):
            return None
        for tokens in needed:
            tokens.take()
        return needed


def _relay_of(address: str) -> tuple[str, str]:
    """The relay and where it is dialled, for a relayed address."""
    endpoint: Endpoint | None = endpoint_of(address)
    return (endpoint.relay, endpoint.base) if endpoint is not None and endpoint.relay else ("", "")


def _tokens(table: dict[Key, Tokens], key: Key, rate: Rate, now: float) -> Tokens:
    """Those that are used now are the last to be forgotten."""
    return newest(table, key, table.get(key) or rate.tokens(now), PLACES_MAX)
