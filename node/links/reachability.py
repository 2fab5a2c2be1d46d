"""Whether and where others can dial us, found out by asking, and a relay's place when some cannot.

Every few seconds: where do we listen, do the peers that we were given get through to us there, and if one does not (or
we listen nowhere), does one of them relay for us? `reach_of` turns the answers into what we announce and say.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.links import dial_back
from ftnode.node.links.address_cards import CARRIED_MAX
from ftnode.node.links.addresses import PeerAddress, rank
from ftnode.node.links.connections import direct_peers
from ftnode.node.links.dead_connections import ask_place
from ftnode.node.links.hosts import family_of, is_loopback
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.punch_rules import Punches
from ftnode.node.links.relay import RelayPlace, reserve
from ftnode.node.links.relay_choice import choose_places
from ftnode.node.links.relay_offers import RelayOffers

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 5.0
ASK_SECONDS: Final = 60.0
"""Between questions whether a peer gets through; routers change their minds seldom."""
ASK_PLACE_SECONDS: Final = 2.0
RENEW_SECONDS: Final = 60.0
"""A relay forgets who was disconnected for a moment, which we may not notice; a place lasts for an hour otherwise."""
AGAIN_SECONDS: Final = 10.0
"""After a peer has given no place; until then the others are not kept waiting for it."""
ASKED_MAX: Final = 4
RELAYS_MAX: Final = 3
"""Places to have, so that a relay may go, and who dials us has a choice."""
ANNOUNCED_MAX: Final = CARRIED_MAX
DIRECT: Final = "direct"
"""The kind of a Reach where all who were asked get through."""
KINDS: Final = {"ip4": "IPv4", "ip6": "IPv6"}


@dataclass(frozen=True, slots=True)
class Reach:
    """What others can do. `kind`: direct, punched, relay, nobody, unknown."""

    kind: str
    addresses: tuple[str, ...]
    """To announce."""
    reason: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def needs_relay(own: Sequence[str], answers: Mapping[str, str]) -> bool:
    """`answers`: PeerId to the address where that peer got through, "" for none."""
    return not own or not all(answers.values())


def on_this_machine(own: Sequence[str], peers: Iterable[PeerAddress]) -> bool:
    """Whether we and all whom we were given are on one machine: no router is between us, and a relay helps nobody."""
    hosts = [dial_back.host_of(address) for address in (*own, *(one for peer in peers for one in peer.addresses))]
    return bool(own) and all(map(is_loopback, hosts))


def believed(before: Mapping[str, str], told: Mapping[str, str], again: bool) -> tuple[dict[str, str], bool]:
    """The answers to go by, and whether to ask again soon: who has not got through for the first time may only have
    been busy. So it is asked twice (`again`: this is the second time), and until then what was so before holds."""
    news = any(not address and before.get(peer) != "" for peer, address in told.items())
    if not news or again:
        return dict(told), False
    return dict(before if before and all(before.values()) else told), True


def lacking(own: Iterable[str]) -> str:
    """ip4 or ip6, when we have addresses of the other kind alone: whoever has only this one comes through a relay that
    has both. Empty when we have both, or none."""
    hosts = [dial_back.host_of(address) for address in own]
    kinds = {family_of(host) for host in hosts if not is_loopback(host)} - {""}
    return {"ip4": "ip6", "ip6": "ip4"}[kinds.pop()] if len(kinds) == 1 else ""


def across(own: Sequence[str], places: Iterable[RelayPlace]) -> tuple[str, ...]:
    """Our addresses through relays, for those who have only the kind of IP that we lack."""
    kind = lacking(own)
    return tuple(one for place in places for one in place.addresses if kind and one.startswith(f"/{kind}/"))


def reach_of(
    own: tuple[str, ...], answers: Mapping[str, str], places: Sequence[RelayPlace], trouble: str,
    punches: Punches | None = None,
) -> Reach:  # fmt: skip
    """`trouble`: why the last peer that we asked for a place, or for an answer, gave none. `punches`: what came of
    those with other peers."""
    if own and answers and all(answers.values()):
        peer, address = next(iter(answers.items()))
        others = across(own, places)
        where = (*own[: ANNOUNCED_MAX - min(len(others), ANNOUNCED_MAX // 2)], *others)[:ANNOUNCED_MAX]
        bridge = f"; a relay passes on who has {KINDS[lacking(own)]} alone" if others else ""
        return Reach(DIRECT, where, f"{peer} got through to us at {address}{bridge}")
    if own and not answers:
        return Reach("unknown", own[:ANNOUNCED_MAX], f"nobody has tried yet{trouble and f' ({trouble})'}")
    deaf = next((peer for peer, address in answers.items() if not address), "")
    why = f"{deaf} does not get through to us" if deaf else "we listen nowhere"
    if places:
        through = tuple(address for place in places for address in place.addresses)
        named = " and ".join(place.relay for place in places)
        where = (*through[: 2 * ANNOUNCED_MAX // 3], *own)[:ANNOUNCED_MAX]  # who looks tries the first few
        if punches is not None and punches.punched:
            return Reach("punched", where, f"peers come through our router with a word from {named}; {why}")
        failed = f"; no way through the routers: {punches.trouble}" if punches is not None and punches.trouble else ""
        return Reach("relay", where, f"through {named}; {why}{failed}")
    return Reach("nobody", own[:ANNOUNCED_MAX], f"{why}, and no peer relays for us{trouble and f': {trouble}'}")


class Reachability:
    """Looks again and again; `on_change` gets every new verdict. `peers` are asked whether they get through, and may
    relay as everybody may that we are connected to."""

    def __init__(
        self, p2pd: P2pd, peers: Sequence[PeerAddress], on_change: Callable[[Reach], None],
        punches: Punches | None = None,
    ) -> None:  # fmt: skip
        self._p2pd, self._punches = p2pd, punches
        self.offers = RelayOffers(p2pd)
        self._peers, self._given = tuple(peers[:ASKED_MAX]), frozenset(peer.peer_id for peer in peers)
        self._others: dict[str, tuple[str, str]] = {}
        """PeerId → its full multiaddr, and the PeerId of another that answers at all of its addresses."""
        self.only_others = trio.Event()
        """None of those that we were given is where it should be: other peers answer there."""
        self._on_change = on_change
        self._own: tuple[str, ...] = ()
        self._answers: dict[str, str] = {}
        self._asked: float | None = None
        self._again = False
        """Whether the last answers are in doubt."""
        self._places: dict[str, RelayPlace] = {}
        self._renewed: dict[str, float] = {}
        self._alike: set[str] = set()
        """PeerIds of relays that have the same kind of IP as we, and no other."""
        self._refused: dict[str, float] = {}
        self.trouble = ""
        """With the last peer that did not answer what it was asked."""
        self._last: Reach | None = None
        self._soon, self._anew = trio.Event(), False

    @property
    def relays(self) -> frozenset[str]:
        """PeerIds of those at which we have a place."""
        return frozenset(self._places)

    @property
    def instead(self) -> tuple[str, str]:
        """A full multiaddr that we were given, and the PeerId of who is there; empty where nobody else is."""
        return next(iter(self._others.values()), ("", ""))

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except P2pdError as error:
                log.warning("cannot tell whether we are reachable: %s", error)
            with trio.move_on_after(LOOK_SECONDS):
                await self._soon.wait()

    def renew(self) -> None:
        """The way out of here has changed: ask and take places anew, at once."""
        self._anew = True
        self._soon.set()

    async def look(self) -> Reach:
        """One round. Raises P2pdError when our own p2pd does not answer."""
        self._soon = trio.Event()
        if self._anew:
            self._anew = False
            await self._begin_anew()
        own = tuple(sorted(await self._p2pd.addresses(), key=rank))
        now = trio.current_time()
        if own and (own != self._own or self._asked is None or now - self._asked >= ASK_SECONDS):
            await self._ask(own)
            self._asked = now if self._answers and not self._again else None
        self._own = own
        await self._keep_places(now)
        reach = reach_of(own, self._answers, tuple(self._places.values()), self.trouble, self._punches)
        if reach != self._last:
            log.info("reachable: %s", reach)
            self._last = reach
            self._on_change(reach)
        return reach

    async def _begin_anew(self) -> None:
        """Peers hold dead connections of ours, where they would go on to look for us."""
        self._asked, self._again = None, True
        self._renewed.clear()
        self._refused.clear()
        self._alike.clear()

        async with trio.open_nursery() as nursery:
            for peer in self._peers:
                nursery.start_soon(ask_place, self._p2pd, peer, ASK_PLACE_SECONDS)

    async def _ask(self, own: tuple[str, ...]) -> None:
        """All at once. Old answers stay when nobody answers now: a peer that is gone proves nothing about us."""
        answers: dict[str, str] = {}

        async def ask(peer: PeerAddress) -> None:
            try:
                answers[peer.peer_id] = await dial_back.ask(self._p2pd, peer, own)
            except P2pdError as error:
                self._complain(peer, error)

        async with trio.open_nursery() as nursery:
            for peer in self._peers:
                nursery.start_soon(ask, peer)
        if on_this_machine(own, self._peers):
            for peer_id in [peer_id for peer_id, address in answers.items() if not address]:
                del answers[peer_id]
                self.trouble = f"{peer_id} did not get through, though it is on this machine; it is asked again"
        if own != self._own:
            self._answers = {}
        if answers:
            self._answers, self._again = believed(self._answers, answers, self._again)

    async def _keep_places(self, now: float) -> None:
        given = [peer.peer_id for peer in self._peers]
        all_come = not needs_relay(self._own, self._answers)
        if not all_come:
            await self.offers.look(now)
            wanted = choose_places(self._p2pd.peer_id, self.offers.known, given, self._places, RELAYS_MAX)
        elif lacking(self._own):
            wanted = tuple(relay for relay in given if relay not in self._alike)[:RELAYS_MAX]
        else:
            wanted = ()
        connected = direct_peers(await self._p2pd.connections())
        for gone in [relay for relay in self._places if relay not in connected or relay not in wanted]:
            del self._places[gone]
        self._renewed = {relay: when for relay, when in self._renewed.items() if now - when < RENEW_SECONDS}
        self._refused = {relay: when for relay, when in self._refused.items() if now - when < AGAIN_SECONDS}
        for relay in wanted:
            if (relay in self._places and relay in self._renewed) or relay in self._refused:
                continue
            peer = next((peer for peer in self._peers if peer.peer_id == relay), PeerAddress(relay, ()))
            try:
                place = await reserve(self._p2pd, peer)
                self._renewed[relay] = now
                if all_come and not across(self._own, [place]):
                    self._alike.add(relay)
                    self._places.pop(relay, None)
                    continue
                self._places[relay] = place
            except P2pdError as error:
                self._places.pop(relay, None)
                self._refused[relay] = trio.current_time()
                self.offers.known.pop(relay, None)  # until it is asked again, another one may take its turn
                self._complain(peer, error)

    def _complain(self, peer: PeerAddress, error: P2pdError) -> None:
        if error.instead:
            self._others[peer.peer_id] = str(peer), error.instead
            if self._given <= {*self._others}:
                self.only_others.set()
        self.trouble = f"{peer.peer_id}: {str(error).splitlines()[-1].strip(' *')}"
