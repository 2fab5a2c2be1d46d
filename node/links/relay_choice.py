"""At which relays to have a place, and through which of its relays to dial a peer: decisions, no network.

A relay is the better the sooner it answers, and the less it relays for others. All who need one choose by the same
rule, at moments of their own, so that they spread. Whoever has a place stays until another relay is clearly better.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ftnode.node.links.dial_rules import endpoint_of

PLACE_SECONDS: Final = 0.02
"""What one more peer with a place there counts for, in seconds of latency."""
STAY_SHARE: Final = 0.7
"""Of its cost, what a relay counts for at which we have a place."""
MOVE_SHARE: Final = 0.8
"""Of a relay's load, what another one may have at most with our circuit, that we move there."""
RATE_STEP: Final = 32e3
"""Bytes a second: relays whose load differs by less are alike."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Of a peer that relays. `latency`: seconds there and back; `places`: of others; `rate`: bytes a second that it
    relays; `ours`: of those what goes between us and another PeerId."""

    latency: float
    places: int
    rate: float
    ours: Mapping[str, float] = field(default_factory=dict)


def cost(offer: Offer) -> float:
    """In seconds of latency."""
    return offer.latency + PLACE_SECONDS * offer.places


def choose_places(
    me: str, offers: Mapping[str, Offer], given: Sequence[str], held: Collection[str], most: int
) -> tuple[str, ...]:
    """PeerIds of relays to have a place at, the best first. `given`: those that a person named; they come last where
    nothing is known of them."""

    def order(relay: str) -> tuple[float, bytes]:
        return cost(offers[relay]) * (STAY_SHARE if relay in held else 1.0), tie(me, relay)

    known = sorted(offers, key=order)
    return (*known, *(relay for relay in given if relay not in offers))[:most]


def choose_way(
    me: str, addresses: Sequence[str], offers: Mapping[str, Offer], connected: Collection[str]
) -> tuple[str, ...]:
    """Of a peer's addresses those to dial first: all direct ones, and circuits through one relay, that with the least
    load of those that we are connected to. All of them where we are connected to none."""
    relays = {relay for relay in map(relay_in, addresses) if relay in connected}
    if not relays:
        return tuple(addresses)

    def order(relay: str) -> tuple[float, float, bytes]:
        offer = offers.get(relay)
        load, latency = (offer.rate // RATE_STEP, offer.latency) if offer is not None else (0.0, 1.0)
        return load, latency, tie(me, relay)

    best = min(relays, key=order)
    return tuple(address for address in addresses if relay_in(address) in ("", best))


def worth_moving(peer: str, through: str, addresses: Iterable[str], offers: Mapping[str, Offer]) -> str:
    """The relay over which a circuit to a peer would better go than `through`; empty when there is none. The larger
    load of both relays has to become clearly smaller by that, or two who think so would change places for ever."""
    now = offers.get(through)
    if now is None:
        return ""
    own = now.ours.get(peer, 0.0)
    others = [relay for relay in sorted(relays_in(addresses)) if relay in offers and relay != through]
    best = min(others, key=lambda relay: offers[relay].rate, default="")
    better = bool(best) and own > RATE_STEP and offers[best].rate + own < MOVE_SHARE * now.rate
    return best if better else ""


def relay_in(address: str) -> str:
    """PeerId of the relay; empty for a direct address, or none."""
    endpoint = endpoint_of(address)
    return endpoint.relay if endpoint is not None else ""


def relays_in(addresses: Iterable[str]) -> frozenset[str]:
    return frozenset(filter(None, map(relay_in, addresses)))


def tie(me: str, relay: str) -> bytes:
    """Where relays are alike, everybody prefers another one."""
    return hashlib.blake2b(f"{me} {relay}".encode(), digest_size=8).digest()
