"""A direct connection between two peers behind routers, made with a word from a relay that both are connected to.

A router lets packets in from where packets were sent to. So one side sends one, from the port where it listens, to
where the relay sees the other side; the other side's router drops it. Then the other side dials, and its packets look
like an answer. If they do not come through either, both change places once.

    asker               relay                wanted
      │ Ask ──────────────▶│ Wanted ────────────▶│  sends its packet
      │◀───────── Opened ──│◀───────── Opened ───│
      │ dials ─────────────────────────────────▶│   most end here
      │ sends its packet   │                     │
      │ Turn ─────────────▶│ Turn ──────────────▶│  dials
      │◀───── Opened, No ──│◀────── Opened, No ──│

The packet is the first of a TCP handshake that is dropped at once: p2pd itself must not dial on both sides in the same
moment, for then both are TLS clients (docs/explanation/decisions/0030-punching.md). Nobody is told an address unless
whose it is takes part, and none is dialled that the gate (dial_gate.py) keeps back.
"""

from __future__ import annotations

import logging
import socket
import struct
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import trio

from ftnode.node.links.dial_rules import source_of
from ftnode.node.links.listening import socket_address
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.punch_rules import PUNCH_SECONDS, Punches, seen_at, tcp_port, way_to
from ftnode.node.links.side_messages import hear, say
from ftnode.node.links.streams import STREAM_ERRORS, StreamHandler, at_most
from ftnode.node.links.undigested import asking
from ftnode.protocol.wire.frames import clean_reason
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

PUNCH_PROTOCOL: Final = "/ftnode/punch/1"
MESSAGE_BYTES_MAX: Final = 1024
STREAMS_MAX: Final = 256
OPEN_SECONDS: Final = 2.0
DIAL_SECONDS: Final = 1.0
"""Three ways there and back on a slow line. p2pd counts whole seconds, and must have given up before the other side
dials, or both are TLS clients."""
PACKET_SECONDS: Final = 0.15
"""For the answer to a handshake's first packet. Where the other side's router lets it in, there is one, and it has to
be reset before the other side dials: from the same port to the same port there is one connection at a time."""
LOOK_SECONDS: Final = 0.05
SETTLE_SECONDS: Final = 1.5
"""Who dials knows of a connection a moment before who is dialled."""
UNDER_WAY: Final = "the other side has asked"


@dataclass(frozen=True, slots=True)
class Ask:
    """Of a relay: help me reach this peer directly."""

    peer: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """A relay's word: this peer wants to reach you, and its packets come from there."""

    peer: str
    address: str


@dataclass(frozen=True, slots=True)
class Opened:
    """Done as asked. `address`: where the asker reaches the peer; empty from the peer itself."""

    address: str


@dataclass(frozen=True, slots=True)
class Turn:
    """Nothing came through: now the other one dials."""


@dataclass(frozen=True, slots=True)
class No:
    """Not done, and why."""

    reason: str


KINDS: Final[dict[str, type]] = {kind.__name__: kind for kind in (Ask, Wanted, Opened, Turn, No)}


class Puncher:
    """Asks, and does what it is asked. `relays`: those whose word on where to dial counts, as of now; `admits`: whether
    a peer may know where we are."""

    def __init__(
        self,
        p2pd: P2pd,
        relays: Callable[[], Collection[str]] = tuple,
        admits: Callable[[str], bool] = lambda peer: True,
    ) -> None:
        self.rules = Punches()
        self._p2pd, self._relays, self._admits = p2pd, relays, admits
        self._tried: dict[str, trio.Event] = {}
        """PeerId → set when the try that is under way with it is over."""
        self._pairs: set[frozenset[str]] = set()
        """For whom we are the relay at this moment."""

    async def reach(self, peer_id: str, addresses: Sequence[str], instead: bool = False) -> None:
        """Have a direct connection to the peer, if a punch may bring one; returns within PUNCH_SECONDS in any case. Its
        direct addresses are dialled beside. `instead`: also when there is a circuit, which ends as soon as it is known
        that a direct connection comes through. Raises P2pdError when our own p2pd does not answer."""
        if peer_id in self._tried:
            with trio.move_on_after(PUNCH_SECONDS):
                await self._tried[peer_id].wait()
            return
        connections, own = await self._p2pd.connections(), await self._p2pd.addresses()
        relay, why = self.rules.choose(trio.current_time(), peer_id, addresses, connections, own, instead)
        if not relay:
            log.debug("no punch with %s: %s", peer_id, why)
            return
        with trio.move_on_after(PUNCH_SECONDS):
            async with self._trying(peer_id, addresses) as outcome, trio.open_nursery() as nursery:
                nursery.start_soon(self._dial, peer_id, [address for address in addresses if tcp_port(address)])
                nursery.start_soon(self._stop_when_direct, peer_id, nursery.cancel_scope)
                outcome.why = await self._ask(relay, peer_id, own)
                nursery.cancel_scope.cancel()

    @property
    def handler(self) -> StreamHandler:
        """Of PUNCH_PROTOCOL."""
        return at_most(STREAMS_MAX, self._serve)

    # -- who asks

    async def _ask(self, relay: str, peer_id: str, own: Sequence[str]) -> str:
        """Both turns. Why it did not work, or nothing."""
        try:
            stream = await self._p2pd.open(relay, PUNCH_PROTOCOL, OPEN_SECONDS)
        except P2pdError as error:
            return f"{relay} helps nobody: {clean_reason(str(error))}"
        try:
            with asking(relay, PUNCH_PROTOCOL):
                await say(stream, Ask(peer_id))
                answer = await _hear(stream, Opened, No)
                if answer == No(UNDER_WAY):
                    return await self._await_direct(peer_id)
                if isinstance(answer, No):
                    return clean_reason(answer.reason)
                if await self._dial(peer_id, [answer.address]):
                    return ""
                await self._open_router(peer_id, answer.address, own)
                await say(stream, Turn())
                answer = await _hear(stream, Opened, No)
                return clean_reason(answer.reason) if isinstance(answer, No) else ""
        except (PeerError, *STREAM_ERRORS) as error:
            return f"{relay} gave no answer: {clean_reason(str(error)) or type(error).__name__}"
        finally:
            await trio.aclose_forcefully(stream)

    async def _await_direct(self, peer_id: str) -> str:
        """The other side's try decides; its deadline is the same."""
        while not await self._way_to(peer_id):
            await trio.sleep(LOOK_SECONDS)
        return ""

    async def _stop_when_direct(self, peer_id: str, scope: trio.CancelScope) -> None:
        """However the connection came about."""
        await self._await_direct(peer_id)
        await trio.sleep(SETTLE_SECONDS / 2)  # the try itself may be what has made it
        scope.cancel()

    # -- who is asked

    async def _serve(self, peer_id: str, stream: trio.SocketStream) -> None:
        try:
            with trio.fail_after(PUNCH_SECONDS):
                asked = await _hear(stream, Ask, Wanted)
                if isinstance(asked, Ask):
                    await self._help(peer_id, asked.peer, stream)
                else:
                    await self._take_part(peer_id, asked, stream)
        except (P2pdError, *STREAM_ERRORS) as error:
            log.info("a punch that %s asked for ended: %s", peer_id, error or type(error).__name__)
        finally:
            await trio.aclose_forcefully(stream)

    async def _take_part(self, relay: str, wanted: Wanted, stream: trio.SocketStream) -> None:
        own = await self._p2pd.addresses()
        objection = self.rules.objection(trio.current_time(), relay, self._relays())
        if not objection and not self._admits(wanted.peer):
            objection = "it may not take part"
        if objection or not await self._open_router(wanted.peer, wanted.address, own):
            await say(stream, No(objection or "that address is not dialled"))
            return
        async with self._trying(wanted.peer) as outcome:
            await say(stream, Opened(""))
            try:
                await _hear(stream, Turn)
            except EOFError:  # it is through, or has given up
                outcome.why = "the other side gave up"
                with trio.move_on_after(SETTLE_SECONDS):
                    await self._await_direct(wanted.peer)
                return
            through = await self._dial(wanted.peer, [wanted.address])
            outcome.why = "" if through else "neither router let the other's packets in"
            await say(stream, Opened("") if through else No(outcome.why))

    async def _open_router(self, peer_id: str, address: str, own: Sequence[str]) -> bool:
        """Send a packet to where a peer is seen. Whether the gate lets us."""
        passed = self._p2pd.gate.admit(peer_id, [address])
        if passed.addresses and tcp_port(address):
            await shake_hands(own, address, PACKET_SECONDS)
        return bool(passed.addresses)

    async def _dial(self, peer_id: str, addresses: Sequence[str]) -> bool:
        """Whether there is a direct connection to the peer in time. p2pd dials nobody to whom it has a circuit, so a
        circuit ends first, but not before a handshake of our own has come through."""
        with suppress(P2pdError):
            if not await self._way_to(peer_id) and await self._p2pd.is_connected(peer_id):
                if not await self._comes_through(peer_id, addresses):
                    return False
                await self._p2pd.disconnect(peer_id)
            await self._p2pd.connect(peer_id, addresses, DIAL_SECONDS)
        return bool(await self._way_to(peer_id))

    async def _comes_through(self, peer_id: str, addresses: Sequence[str]) -> bool:
        """Whether somebody answers at one of the addresses, from where p2pd would dial them."""
        passed, own = self._p2pd.gate.admit(peer_id, addresses), await self._p2pd.addresses()
        for address in passed.addresses:
            if tcp_port(address) and await shake_hands(own, address, DIAL_SECONDS):
                self._p2pd.gate.found(passed)
                return True
        return False

    # -- who helps

    async def _help(self, asker: str, peer_id: str, stream: trio.SocketStream) -> None:
        connections, pair = await self._p2pd.connections(), frozenset((asker, peer_id))
        places = seen_at(asker, connections), seen_at(peer_id, connections)
        objection = self.rules.objection(trio.current_time(), asker)
        if not all(places) or asker == peer_id:
            objection = "its relay is not connected to both"
        if objection or pair in self._pairs:
            await say(stream, No(objection or UNDER_WAY))
            return
        self._pairs.add(pair)
        try:
            other = await self._p2pd.open(peer_id, PUNCH_PROTOCOL, OPEN_SECONDS)
            try:
                await self._pass_on(stream, other, Wanted(asker, places[0]), Opened(places[1]))
            finally:
                await trio.aclose_forcefully(other)
        finally:
            self._pairs.discard(pair)

    async def _pass_on(
        self, stream: trio.SocketStream, other: trio.SocketStream, wanted: Wanted, opened: Opened
    ) -> None:
        """Between the two, until the asker hangs up or all is said."""
        await say(other, wanted)
        answer = await _hear(other, Opened, No)
        await say(stream, No(clean_reason(answer.reason)) if isinstance(answer, No) else opened)
        if isinstance(answer, Opened):
            await say(other, await _hear(stream, Turn))
            answer = await _hear(other, Opened, No)
            await say(stream, Opened("") if isinstance(answer, Opened) else No(clean_reason(answer.reason)))

    @asynccontextmanager
    async def _trying(self, peer_id: str, addresses: Sequence[str] = ()) -> AsyncIterator[_Why]:
        """One try with a peer, from its beginning to what came of it. When both ask, that is one try."""
        outcome = _Why()
        if peer_id in self._tried:
            yield outcome
            return
        over = self._tried[peer_id] = trio.Event()
        self.rules.began()
        try:
            yield outcome
        finally:
            with trio.CancelScope(shield=True):
                way = await self._way_to(peer_id, addresses)
            self.rules.ended(trio.current_time(), peer_id, way, outcome.why)
            log.info("through the routers to %s: %s", peer_id, way or f"no way; {outcome.why}")
            del self._tried[peer_id]
            over.set()

    async def _way_to(self, peer_id: str, addresses: Sequence[str] = ()) -> str:
        """Empty also when our own p2pd does not answer. The gate learns where the peer is met."""
        with suppress(P2pdError):
            await self._p2pd.is_connected(peer_id)
            return way_to(peer_id, await self._p2pd.connections(), addresses)
        return ""


@dataclass(slots=True)
class _Why:
    """Why a try does not work, as far as it has got."""

    why: str = "it took too long"


async def _hear(stream: trio.SocketStream, *kinds: type) -> Any:
    return await hear(stream, {kind.__name__: kind for kind in kinds}, MESSAGE_BYTES_MAX)


async def shake_hands(own: Sequence[str], address: str, seconds: float) -> bool:
    """The first packet of a TCP handshake to `address`, from the port where we listen; whether there is an answer. We
    hang up in any case. p2pd sets SO_REUSEPORT where it listens, so that we may have the port beside it. While we dial,
    what comes from `address` would be ours, so that we stop soon."""
    target = socket_address(address)
    assert target is not None, address
    family, kind, host, port = target
    source = source_of(host)  # ours may be among those that the world sees, with ports that are the router's
    ports = [tcp_port(one) for one in own if tcp_port(one) and one.split("/")[2] == source]
    if not ports:
        return False
    with trio.socket.socket(family, kind) as opener, suppress(OSError):
        opener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        opener.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # forget it when it is closed
        await opener.bind(("", ports[0]))
        with trio.move_on_after(seconds):
            await opener.connect((host, port))
            return True
    return False
