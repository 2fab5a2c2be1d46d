"""Peers behind routers, in virtual time: each has a router of some kind, and decides by the real rules whom to punch,
at which relays to have a place, through which to go, and when to move. Packets are not sent: whether a router lets a
first packet in follows from its kind (`lets_through`), as `ftnode lab routers` finds it with real ones.

Every TICK each peer looks at its places, and dials whom it should be connected to; then bytes flow over the circuits.
Relays die, and routers change.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from itertools import combinations
from random import Random
from typing import Final

from ftnode.lab.lines.router import KINDS
from ftnode.node.home.identity import peer_id_text
from ftnode.node.links import mover, punch_rules, relay_choice, relay_rules
from ftnode.node.links.relay_choice import Offer, relay_in
from ftnode.node.links.relay_words import OK

TICK: Final = 15.0
BYTES: Final = 1e6
"""A second, over each circuit."""
STRANGERS_WISH: Final = 100e6
"""Bytes a second that a stranger would send."""
PLACES: Final = 3
HEAD: Final = bytes.fromhex("002408011220")
"""Of every Ed25519 PeerId."""


def lets_through(dials: str, dialled: str) -> bool:
    """After one packet from `dialled` to where a relay sees `dials`, does a dial the other way come through?"""
    one, other = KINDS[dials], KINDS[dialled]
    if other.routers == 0 or (other.port_per == "endpoint" and other.lets_in == "anybody"):
        return True
    if other.port_per != "endpoint":
        return False
    return other.lets_in == "hosts" or one.port_per == "endpoint" or one.routers == 0


def can_be_opened(one: str, other: str) -> bool:
    """In one of both turns (RFC 5128)."""
    return lets_through(one, other) or lets_through(other, one)


@dataclass(eq=False)
class Node:
    """One peer. `relay`: what it gives to others, if it relays."""

    id: str
    home: str
    """Its own address, which others may dial if there is no router."""
    kind: str
    relay: relay_rules.RelayRules | None = None
    alive: bool = True
    punches: punch_rules.Punches = field(default_factory=punch_rules.Punches)
    places: tuple[str, ...] = ()
    ends: dict[str, str] = field(default_factory=dict)
    """PeerId → the address at the other end."""

    @property
    def outside(self) -> str:
        return self.home if KINDS[self.kind].routers == 0 else self.home.replace("4101", "20001")


class RoutersWorld:
    """Of a seed. `tries`: punches of each pair."""

    def __init__(self, seed: int, members: int = 6, relays: int = 3, strangers: int = 1) -> None:
        self.chance, self.now = Random(seed), 0.0
        self.tries: Counter[frozenset[str]] = Counter()
        self.stranger_bytes: Counter[str] = Counter()
        self.changed: dict[str, float] = {}
        """PeerId → when its router became another one."""
        self.nodes: dict[str, Node] = {}
        self._terms: dict[tuple[str, str], relay_rules.Terms] = {}
        hidden = [kind for kind, one in KINDS.items() if one.routers]
        self.relays = [self._node("none") for _ in range(relays)]
        self.members = [self._node(self.chance.choice(hidden)) for _ in range(members)]
        self.strangers = [self._node("symmetric") for _ in range(strangers)]
        inside = {node.id for node in (*self.relays, *self.members)}
        for relay in self.relays:
            relay.relay = relay_rules.RelayRules(
                lambda peer: relay_rules.MEMBER if peer in inside else relay_rules.STRANGER
            )

    def _node(self, kind: str) -> Node:
        number = len(self.nodes) + 1
        text = peer_id_text(HEAD + hashlib.blake2b(f"{self.chance.random()}".encode(), digest_size=32).digest())
        node = self.nodes[text] = Node(text, f"/ip4/44.77.0.{number}/tcp/4101", kind)
        return node

    # -- what happens

    def run(self, seconds: float) -> None:
        until = self.now + seconds
        while self.now < until:
            self.now += TICK
            for node in self.chance.sample(self.members, len(self.members)):
                self._keep_places(node)
            for one, other in self.pairs():
                self._look_after(one, other)
            for stranger in self.strangers:
                self._take_what_there_is(stranger)
            self._carry()

    def kill(self, relay: Node) -> None:
        """Its circuits end; punched connections do not need it."""
        relay.alive = False
        for node in self.nodes.values():
            for peer in [peer for peer, end in node.ends.items() if relay_in(end) == relay.id]:
                self._hang_up(node, self.nodes[peer])

    def change_router(self, node: Node, kind: str) -> None:
        """Another router: whatever did not go over a relay is gone."""
        node.kind, self.changed[node.id] = kind, self.now
        for peer in list(node.ends):
            self._hang_up(node, self.nodes[peer])

    # -- what one sees

    def pairs(self) -> list[tuple[Node, Node]]:
        """Members that should be connected, the smaller PeerId first, which looks after it."""
        return list(combinations(sorted(self.members, key=lambda node: node.id), 2))

    def living(self) -> list[Node]:
        return [relay for relay in self.relays if relay.alive]

    def loads(self) -> Counter[str]:
        """Circuits of members over each relay."""
        return Counter(relay_in(one.ends[other.id]) for one, other in self.pairs() if self.is_circuit(one, other))

    def is_circuit(self, one: Node, other: Node) -> bool:
        return relay_in(one.ends.get(other.id, "")) != ""

    def connections(self, node: Node) -> list[tuple[str, str]]:
        return [*((relay.id, relay.home) for relay in self.living()), *node.ends.items()]

    def addresses(self, node: Node) -> tuple[str, ...]:
        through = (f"{self.nodes[relay].home}/p2p/{relay}/p2p-circuit" for relay in node.places)
        return (*through, node.home)

    def offers(self, asker: Node) -> dict[str, Offer]:
        found = {}
        for relay in self.living():
            assert relay.relay is not None
            places, rate = relay.relay.places(self.now, asker.id), relay.relay.rate(self.now)
            found[relay.id] = Offer(0.03, places, rate, relay.relay.rates_of(self.now, asker.id))
        return found

    # -- what each does

    def _keep_places(self, node: Node) -> None:
        wanted = relay_choice.choose_places(node.id, self.offers(node), (), node.places, PLACES)
        node.places = tuple(one for one in wanted if self._relay(one).place(self.now, node.id, node.home) == OK)

    def _look_after(self, one: Node, other: Node) -> None:
        circuit = one.ends.get(other.id, "")
        self._punch(one, other, instead=bool(circuit))
        if other.id not in one.ends:
            self._ask_for_circuit(one, other)
        elif circuit and one.ends[other.id] == circuit:
            better = relay_choice.worth_moving(other.id, relay_in(circuit), self.addresses(other), self.offers(one))
            if better and self.chance.random() < mover.CHANCE:
                self._hang_up(one, other)
                self._ask_for_circuit(one, other)

    def _punch(self, one: Node, other: Node, instead: bool) -> None:
        relay, _ = one.punches.choose(
            self.now, other.id, self.addresses(other), self.connections(one), (one.home,), instead
        )
        if not relay:
            return
        self.tries[frozenset((one.id, other.id))] += 1
        one.punches.began()
        other.punches.began()
        if can_be_opened(one.kind, other.kind):
            self._hang_up(one, other)
            one.ends[other.id], other.ends[one.id] = other.outside, one.outside
        for here, there in ((one, other), (other, one)):
            way = punch_rules.way_to(there.id, self.connections(here), self.addresses(there))
            here.punches.ended(self.now, there.id, way, "neither router let the other's packets in")

    def _ask_for_circuit(self, one: Node, other: Node) -> None:
        met = {relay.id for relay in self.living()}
        for address in relay_choice.choose_way(one.id, self.addresses(other), self.offers(one), met):
            relay = relay_in(address)
            if relay in met and self._relay(relay).circuit(self.now, one.id, other.id) == OK:
                self._terms[one.id, other.id] = self._relay(relay).begin(one.id, other.id)
                one.ends[other.id] = other.ends[one.id] = f"{self.nodes[relay].home}/p2p/{relay}/p2p-circuit"
                return

    def _take_what_there_is(self, stranger: Node) -> None:
        """A circuit to anybody, and as many bytes as it can have over it."""
        for member in self.members:
            if member.id not in stranger.ends:
                self._ask_for_circuit(stranger, member)

    def _hang_up(self, one: Node, other: Node) -> None:
        end = one.ends.pop(other.id, "")
        other.ends.pop(one.id, None)
        relay = relay_in(end)
        if relay:
            caller = one if (one in self.strangers or (other not in self.strangers and one.id < other.id)) else other
            wanted = other if caller is one else one
            self._relay(relay).end(caller.id, wanted.id, self._terms.pop((caller.id, wanted.id)))

    def _carry(self) -> None:
        for one in (*self.members, *self.strangers):
            for peer, end in list(one.ends.items()):
                stranger = one in self.strangers
                if not relay_in(end) or peer not in one.ends or (not stranger and one.id > peer):
                    continue
                if self.nodes[peer] in self.strangers:
                    continue
                count = int((STRANGERS_WISH if stranger else BYTES) * TICK)
                cut_off = self._relay(relay_in(end)).spend(self.now, one.id, peer, count)
                if stranger:
                    self.stranger_bytes[relay_in(end)] += 0 if cut_off else count
                if cut_off:
                    self._hang_up(one, self.nodes[peer])

    def _relay(self, relay: str) -> relay_rules.RelayRules:
        rules = self.nodes[relay].relay
        assert rules is not None
        return rules
