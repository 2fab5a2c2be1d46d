"""Connections that lead nowhere any more, noticed within a beat or two, and made anew.

A machine gets another address: it moves to another network, or its router is given one. Nobody tells p2pd, and TCP
goes on for minutes with what has no way back. Three things give such connections away:

- *An address of ours has gone.* All connections are made anew, as soon as there is a way out. While there is none they
  stay: without them p2pd would dial in vain for every stream that somebody opens, and not again for five seconds.
- *A member is silent*, and its p2pd answers on a new connection, but not on the one that there is, where TCP gets no
  acknowledgements either. A peer that is paused, or gone, answers on neither, and nothing is done about it here. No
  new connection passes a router between us and a member. So the relays at which we have a place are asked, too, and
  tell where they see us. When that is somewhere else than before, members whose p2pd does not answer are dialled anew.
- *The other side begins anew*, and there are several connections with it. p2pd prefers the one with the most streams,
  which is the dead one, and can only close all of them. So all are closed, and whoever dials first makes the next.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import msgpack
import trio

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.dial_back import host_of
from ftnode.node.links.dial_rules import endpoint_of, source_of
from ftnode.node.links.hosts import ip_of, is_loopback
from ftnode.node.links.listening import KINDS, socket_address
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import STREAM_ERRORS, StreamHandler, at_most, read_exactly
from ftnode.node.links.unacknowledged import acknowledged
from ftnode.node.links.undigested import asking
from ftnode.node.links.who_listens import listens
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

SEEN_PROTOCOL: Final = "/ftnode/seen/1"
PING_PROTOCOL: Final = "/ipfs/ping/1.0.0"
"""libp2p's own: p2pd sends back what it gets, whatever its node does meanwhile."""
PING_BYTES: Final = 32
LOOK_SECONDS: Final = 0.25
ANSWER_SECONDS: Final = 2.0
ASKED_TIMES: Final = 2
PLACE_BYTES_MAX: Final = 512
PLACE_LIMITS: Final = Limits(size=PLACE_BYTES_MAX, depth=1)
BACK_SECONDS: Final = 2.0
"""For relays to be there again, before the members that are reached with their help are dialled."""
QUIET_BEATS: Final = 1.25
"""A member that is heard so much later than it should be is looked after."""
LOST_BEATS: Final = 5.0
"""A whole lease. From then on it is the core's business."""
TESTS_AT_ONCE: Final = 16
ASKERS_MAX: Final = 64
PEERS_WATCHED: Final = 8
"""Given peers, whose direction says which of our addresses are in use."""


@dataclass(frozen=True, slots=True)
class Echo:
    """What came of a test. `answered`: on the connection that there is; `found`: on a new one; `place`: where a relay
    sees us."""

    answered: bool
    found: bool
    place: str = ""
    acknowledged: bool = False
    """By TCP, on the connection that there is: the answer may only wait behind tensors."""

    @property
    def dead(self) -> bool:
        return self.found and not self.answered and not self.acknowledged


class Silences:
    """Since when whom was not heard. `beat_seconds`: how often members are, if all is well."""

    def __init__(self, beat_seconds: float) -> None:
        self._beat = beat_seconds
        self._heard: dict[str, float] = {}
        self._tested: dict[str, float] = {}
        self._broken: set[str] = set()

    def heard(self, peer_id: str, now: float) -> None:
        self._heard[peer_id] = now

    def broken(self, peer_id: str) -> None:
        """A link to it broke: there is reason to look after it now."""
        self._broken.add(peer_id)

    def quiet(self, members: Collection[str], now: float) -> tuple[str, ...]:
        """Those to be tested now: heard not long ago and silent since, or with a broken link."""
        self._heard = {peer_id: when for peer_id, when in self._heard.items() if peer_id in members}
        self._tested = {peer_id: when for peer_id, when in self._tested.items() if peer_id in self._heard}
        due = tuple(
            peer_id
            for peer_id, when in self._heard.items()
            if peer_id in self._broken
            or (
                QUIET_BEATS <= (now - when) / self._beat < LOST_BEATS
                and now - self._tested.get(peer_id, -inf) >= self._beat
            )
        )
        self._broken.clear()
        self._tested.update(dict.fromkeys(due, now))
        return due


def dead_ones(
    members: Mapping[str, Echo], relays: Mapping[str, Echo], moved: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(relays, members) whose connections are to be made anew. When we have `moved`, as a relay's dead connection or
    its word says, the way to all who do not answer is another one now."""
    gone = tuple(peer_id for peer_id, test in relays.items() if test.dead)
    moved = moved or bool(gone)
    lost = [peer_id for peer_id, test in members.items() if not (test.answered or test.acknowledged)]
    return gone, tuple(peer_id for peer_id in lost if moved or members[peer_id].dead)


def in_use(own: Iterable[str], sources: Iterable[str]) -> frozenset[str]:
    """IP addresses of ours by which peers of other machines reach us: where we listen, and where packets leave."""
    hosts = [endpoint.host for endpoint in map(endpoint_of, own) if endpoint is not None and not endpoint.relay]
    return frozenset(host for host in (*hosts, *sources) if ip_of(host) is not None and not is_loopback(host))


class DeadConnections:
    """Looks again and again. `members`: PeerIds of those who should be heard; `relays`: of those where we have a place;
    `on_move`: called when the way out of here has changed; `peers`: those that we were given."""

    def __init__(
        self,
        p2pd: P2pd,
        peers: Sequence[PeerAddress],
        beat_seconds: float,
        members: Callable[[], Collection[str]],
        relays: Callable[[], Collection[str]],
        on_move: Callable[[], None],
    ) -> None:
        self.silences = Silences(beat_seconds)
        self._p2pd, self._beat = p2pd, beat_seconds
        self._given = tuple(peers)
        self._seen: dict[str, str] = {}
        """PeerId of a relay → where it saw us last; empty when it did not say."""
        self._peers = [address for peer in peers[:PEERS_WATCHED] for address in peer.addresses]
        self._members, self._relays, self._on_move = members, relays, on_move
        self._ours: frozenset[str] = frozenset()
        self._left: frozenset[str] = frozenset()
        """Addresses that have gone, and whose connections are still there."""
        self._sources: frozenset[str] = frozenset()

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except P2pdError as error:
                log.warning("cannot look after connections: %s", error)
            await trio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One round. Raises P2pdError when our own p2pd does not answer."""
        self._left |= self._gone()
        if self._left and self._p2pd.offline:
            return
        if self._left:
            left, self._left = ", ".join(sorted(self._left)), frozenset()
            log.info("%s is no address of this machine any more: all connections are made anew", left)
            peers = {peer_id for peer_id, end in await self._p2pd.connections() if not is_loopback(host_of(end))}
            await self._renew(self._relays(), peers)
            return
        relays = [peer for peer in self._given if peer.peer_id in self._relays()]
        self._seen = {relay: place for relay, place in self._seen.items() if relay in self._relays()}
        quiet = self.silences.quiet(self._members(), trio.current_time())
        if quiet:
            tests = await self._tests(quiet, relays)
            places = {relay.peer_id: test.place for relay in relays if (test := tests[relay.peer_id]).place}
            moved = any(self._seen.get(relay, place) != place for relay, place in places.items())
            self._seen.update(places)
            at_relays = {relay.peer_id: tests[relay.peer_id] for relay in relays}
            dead = dead_ones({one: tests[one] for one in quiet}, at_relays, moved)
            if any(dead):
                log.info("connections that lead nowhere are made anew: %s", ", ".join([*dead[0], *dead[1]]))
                await self._renew(*dead)
        for relay in relays:
            if relay.peer_id not in self._seen:
                self._seen[relay.peer_id] = await ask_place(self._p2pd, relay, self._beat)

    def _gone(self) -> frozenset[str]:
        """Addresses that we had when we looked last. A change of the way out is told at once."""
        hosts = (endpoint.host for endpoint in map(endpoint_of, self._peers) if endpoint is not None)
        sources = frozenset(
            source for source in (source_of(host) for host in hosts if ip_of(host) is not None) if source
        )
        known = self._ours | in_use(self._p2pd.gate.own, sources)
        ours = frozenset(host for host in known if is_ours(host))
        gone, self._ours = self._ours - ours, ours
        self._p2pd.offline = bool(self._sources) and not sources
        if sources and sources != self._sources:
            if self._sources and not gone and not self._left:
                self._on_move()
            self._sources = sources
        return gone

    async def _tests(self, peers: Collection[str], relays: Collection[PeerAddress]) -> dict[str, Echo]:
        """Of each, within a beat."""
        connections, limit = await self._p2pd.connections(), trio.CapacityLimiter(TESTS_AT_ONCE)
        found = dict.fromkeys([*peers, *(relay.peer_id for relay in relays)], Echo(False, False))

        async def ask(relay: PeerAddress) -> None:
            place = await ask_place(self._p2pd, relay, self._beat / 2)
            found[relay.peer_id] = Echo(True, False, place)
            if not place:
                await test(relay.peer_id)

        async def test(peer_id: str) -> None:
            async with limit:
                ends = [end for owner, end in connections if owner == peer_id]
                found[peer_id] = await test_connection(self._p2pd, peer_id, ends, self._beat / 2)

        with trio.move_on_after(self._beat):
            async with trio.open_nursery() as nursery:
                for peer_id in peers:
                    nursery.start_soon(test, peer_id)
                for relay in relays:
                    nursery.start_soon(ask, relay)
        return found

    async def _renew(self, relays: Collection[str], peers: Collection[str]) -> None:
        """Relays first: they help to open routers for the others."""
        await self._drop(relays)
        self._on_move()
        with trio.move_on_after(BACK_SECONDS if relays else 0):
            while not set(relays) <= set(await self._p2pd.peers()):
                await trio.sleep(LOOK_SECONDS / 5)
        await self._drop(set(peers).difference(relays))

    async def _drop(self, peers: Collection[str]) -> None:
        async with trio.open_nursery() as nursery:
            for peer_id in peers:
                nursery.start_soon(drop, self._p2pd, peer_id)


async def test_connection(p2pd: P2pd, peer_id: str, ends: Iterable[str], seconds: float) -> Echo:
    """Whether a peer's p2pd answers on the connection that there is, or else at one of its `ends` on a new one."""
    answered, found, known = False, False, tuple(ends)

    async def ping() -> None:
        nonlocal answered
        answered = await answers(p2pd, peer_id, seconds)
        if answered:
            nursery.cancel_scope.cancel()

    async def knock(host: str, port: int) -> None:
        nonlocal found
        with trio.move_on_after(seconds):
            found = await listens(peer_id, host, port) or found

    async with trio.open_nursery() as nursery:
        if known:
            nursery.start_soon(ping)
        for end in known:
            target = socket_address(end) if end else None
            if target is not None and target[1] == KINDS["tcp"]:
                nursery.start_soon(knock, *target[2:])
    here = any(acknowledged(*target[2:]) for target in map(socket_address, known) if target is not None)
    return Echo(answered, found, acknowledged=here)


async def answers(p2pd: P2pd, peer_id: str, seconds: float) -> bool:
    """Whether p2pd at the other end of a connection sends back in time what we send it."""
    sent = os.urandom(PING_BYTES)
    with trio.move_on_after(seconds):
        try:
            stream = await p2pd.open(peer_id, PING_PROTOCOL, seconds)
        except P2pdError:
            return False
        try:
            await stream.send_all(sent)
            return bytes(await read_exactly(stream, PING_BYTES)) == sent
        except STREAM_ERRORS:
            return False
        finally:
            await trio.aclose_forcefully(stream)
    return False


async def drop_doubled(p2pd: P2pd, peer_id: str) -> bool:
    """The peer begins anew. Whether there were several connections with it; all are closed then."""
    ends = [end for owner, end in await p2pd.connections() if owner == peer_id]
    if len(ends) > 1:
        log.info("%s comes over a new connection; all with it are closed: %s", peer_id, ", ".join(ends))
        await drop(p2pd, peer_id, it_comes=True)
    return len(ends) > 1


async def drop(p2pd: P2pd, peer_id: str, it_comes: bool = False) -> None:
    try:
        await p2pd.disconnect(peer_id, it_comes)
    except P2pdError as error:
        log.info("p2pd keeps its connection to %s: %s", peer_id, error)


async def ask_place(p2pd: P2pd, peer: PeerAddress, seconds: float) -> str:
    """Where the peer sees us, over the only connection with it: it closes all when there are several, and is asked
    again. Empty when it does not say."""
    with trio.move_on_after(seconds):
        for _ in range(ASKED_TIMES):
            try:
                await p2pd.connect(peer.peer_id, peer.addresses, seconds)
                stream = await p2pd.open(peer.peer_id, SEEN_PROTOCOL, seconds)
            except P2pdError:
                continue
            try:
                with asking(peer.peer_id, SEEN_PROTOCOL):
                    place = decode(await read_frame(stream.receive_some, PLACE_BYTES_MAX), PLACE_LIMITS)
                return place if isinstance(place, str) else ""
            except (PeerError, *STREAM_ERRORS):
                continue
            finally:
                await trio.aclose_forcefully(stream)
    return ""


def seen_handler(p2pd: P2pd) -> StreamHandler:
    """Of SEEN_PROTOCOL: who asks hears where it is seen. Asking is beginning anew."""

    async def handle(peer_id: str, stream: trio.SocketStream) -> None:
        try:
            if not await drop_doubled(p2pd, peer_id):
                ends = [end for owner, end in await p2pd.connections() if owner == peer_id]
                with trio.fail_after(ANSWER_SECONDS):
                    await write_frame(stream, msgpack.packb("".join(ends)))
        except (P2pdError, *STREAM_ERRORS) as error:
            log.info("%s asked where it is seen, without an answer: %s", peer_id, error)
        finally:
            await trio.aclose_forcefully(stream)

    return at_most(ASKERS_MAX, handle)


def is_ours(host: str) -> bool:
    """Whether this machine has the address now. Binding a datagram socket sends nothing."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True
