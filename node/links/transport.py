"""Links between peers: frames in, frames out, and prompt news of who can be reached.

Each peer that we talk to has one outgoing Link (link.py) of two streams; what it tells us comes on streams that it
opened (inbound.py). When either side of that traffic ends, we ask at once whether the same life still answers: a
killed peer is known as such within milliseconds, a silent one is the core's business (rule 8). Life of a link:

    send, dial → dialling → LinkUp → carrying → LinkDown → one redial → LinkUp | LinkDown(refused?)
                    └→ LinkDown(refused?)

Frames that wait in a link are dropped with it: the protocol resends what matters.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final

import trio

from ftnode.node.home.identity import Sign
from ftnode.node.links.address_cards import CardBook
from ftnode.node.links.attention import Attention, Flood
from ftnode.node.links.bans import BAN_SECONDS, Strikes
from ftnode.node.links.dead_connections import drop_doubled
from ftnode.node.links.inbound import Intake
from ftnode.node.links.link import HANDSHAKE_SECONDS, Link, LinkBroken, LinkDialer, describe
from ftnode.node.links.newest import newest
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.peer_lines import PeerLog
from ftnode.node.links.redials import Redials
from ftnode.node.links.seals import Seals, cannot_sign
from ftnode.node.links.sending_pace import SharedLine
from ftnode.node.links.streams import STREAM_ERRORS, FrameReader, carry_bulk, write_frame
from ftnode.node.links.tensor_lane import Outbound, urgency_of
from ftnode.node.links.tensor_seals import TensorSeals
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import Admission
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.wire.frames import (
    ADDRESSES_MAX,
    PROBE_LANE,
    STEP_PROTOCOL,
    TENSOR_LANE,
    Hello,
    Refusal,
    Welcome,
    clean_reason,
    encode_frame,
    read_greeting,
)
from ftnode.protocol.words.errors import LocalError, PeerError
from ftnode.protocol.words.events import LinkDown, LinkUp, Received, Seen
from ftnode.protocol.words.messages import Boundary, Message, views_in
from ftnode.protocol.words.site import implied_site
from ftnode.protocol.words.types import Handle, Peer

log = logging.getLogger(__name__)

OPEN_SECONDS: Final = 5.0
LINKS_MAX: Final = 512
"""At a time. Where there are so many, the one that was used longest ago of those to peers who are no members gives way
to another: else whoever has that many names would keep members from each other."""
PEERS_MAX: Final = 4096
"""Of whom addresses and lives are remembered; the longest unmentioned are forgotten first."""

LinkEvent = Received | LinkUp | LinkDown | Seen


async def _no_punch(_peer_id: str, _addresses: Sequence[str]) -> None:
    """Where nobody opens routers."""


async def _any_way(addresses: Sequence[str]) -> tuple[str, ...]:
    """Where nothing is known of relays."""
    return tuple(addresses)


class Transport:
    """The driver's door to other peers. All calls but `start` and `open` return at once.

    `deliver` gets the events and must only queue them: some come from within `send` and `dial`. Whoever handles a
    Received says so with `handled`, or we stop reading from its sender. Tensors of whom `may_send_tensors` does not
    know are dropped, which is no offence: the sender may know a newer view than we.
    """

    def __init__(
        self,
        p2pd: P2pd,
        arena: Arena,
        run: str,
        nonce: int,
        boundary_bytes: BoundaryBytes,
        deliver: Callable[[LinkEvent], None],
        on_refusal: Callable[[Peer, str], None] | None = None,
        may_send_tensors: Callable[[Peer], bool] | None = None,
        book: Admission | None = None,
        attention: Attention | None = None,
        sign: Sign = cannot_sign,
        with_card: Callable[[tuple[str, ...]], tuple[str, ...]] = tuple,
        punch: Callable[[str, Sequence[str]], Awaitable[None]] = _no_punch,
        way: Callable[[Sequence[str]], Awaitable[tuple[str, ...]]] = _any_way,
        signs_tensors: bool = False,
    ) -> None:
        self._p2pd = p2pd
        self._arena = arena
        self._line = SharedLine()
        self._run = run
        self._me = Peer(p2pd.peer_id, nonce)
        self._boundary_bytes = boundary_bytes
        self._deliver = deliver
        self._attention = attention or Attention(lambda peer: True)
        """How much a peer may say; without one, everybody what members may."""
        self._seals = Seals(Peer(p2pd.peer_id, nonce), sign)
        self._tensor_seals = self._seals.tensors if signs_tensors else None
        may_send_tensors = may_send_tensors or (lambda peer: True)
        self._intake = Intake(
            arena, boundary_bytes, deliver, may_send_tensors, self._attention, self._unheard, self._tensor_seals
        )  # fmt: skip
        self._book = book
        """Who may take part; without one, everybody."""
        self._on_refusal = on_refusal or (lambda peer, reason: None)
        self._with_card = with_card
        """Puts our card behind our addresses (address_cards.py); without one nobody dials us."""
        self._own_addresses: tuple[str, ...] = ()
        self._cards = CardBook()
        self._named: dict[str, None] = {}
        """PeerIds that the core asked for. What others only say of themselves is dialled where we have met them."""
        self._lives: dict[str, int] = {}
        self._links: dict[Peer, Link] = {}
        """Whom we have talked to last comes last."""
        self._inbound: dict[tuple[str, str], trio.CancelScope] = {}
        self._probing: set[Peer] = set()
        self._strikes, self._redials = Strikes(), Redials()
        self._told = PeerLog(log)
        self._nursery: trio.Nursery | None = None
        self._dial = LinkDialer(p2pd, run, nonce, lambda: self._own_addresses, self.where, self._learn, punch, way)

    async def start(self, nursery: trio.Nursery) -> None:
        """Serve until the nursery is cancelled. Calls before this are errors of ours."""
        self._nursery = nursery
        self._own_addresses = self._own_addresses or self._with_card(await self._p2pd.addresses())
        self._p2pd.strike = self.strike
        await self._p2pd.serve(STEP_PROTOCOL, self._serve_inbound)

    def move(self, addresses: tuple[str, ...]) -> None:
        """From now on tell peers that we can be dialled there. `addresses`: with our card."""
        self._own_addresses = addresses

    @property
    def outbound(self) -> Outbound:
        """Of tensors on all links together."""
        every = [link.outbound for link in self._links.values()]
        return Outbound(any(one.sending for one in every), any(one.full for one in every))

    @property
    def line_rate(self) -> float:
        """Bytes a second that our line takes; 0 while it was never full."""
        return self._line.pace.rate

    # What the driver asks.

    def send(self, peer: Peer, message: Message, handle: Handle | None) -> None:
        """Queue a message; the tensor `handle` follows a Boundary and stays pinned until it is written."""
        if (handle is not None) != isinstance(message, Boundary):
            raise LocalError(f"{type(message).__name__} with handle {handle}")
        if handle is not None and isinstance(message, Boundary):
            self._send_tensor(peer, message, handle)
            return
        head, link = encode_frame(self._seals.sealed(message)), self._link(peer)
        if link is not None:
            link.put(head)

    def _send_tensor(self, peer: Peer, message: Boundary, handle: Handle) -> None:
        payload_bytes, seals = self._boundary_bytes.of(message.direction), self._tensor_seals
        if seals is not None:
            content = self._arena.view(handle)[:payload_bytes]
            if not seals.ready(message, content, handle):
                if self._nursery is None:
                    raise LocalError("the transport has not started")
                self._arena.pin(handle)
                self._nursery.start_soon(self._hash_and_send, seals, peer, message, content, handle)
                return
            message = seals.sealed(message, handle)
        head, link = encode_frame(message, payload_bytes), self._link(peer)
        if link is not None:
            link.put_tensor(head, handle, payload_bytes, urgency_of(message))

    async def _hash_and_send(
        self, seals: TensorSeals, peer: Peer, message: Boundary, content: memoryview, handle: Handle
    ) -> None:
        """A tensor that is pinned. One that nothing needs any more by then is not sent."""
        try:
            await seals.prepare(content, handle)
            if self._arena.is_live(handle):
                self._send_tensor(peer, message, handle)
        finally:
            self._arena.unpin(handle)

    @property
    def seals(self) -> Seals:
        """Our signatures, and the check of those of others."""
        return self._seals

    def takes_part(self, peer_id: str) -> bool:
        """Whether the peer has shaken hands with us for this run, and may."""
        return peer_id in self._lives and (self._book is None or self._book.admits(peer_id))

    def _unheard(self, sender: Peer, message: Message) -> str:
        """Why a message is not heard, or nothing. A view may name somebody who is on a newer list than ours, so that is
        no offence. Raises PeerError for false signatures."""
        self._seals.check(sender, message)
        stranger = self._book.stranger_in(views_in(message)) if self._book is not None else ""
        if self._book is not None and stranger:
            self._book.names_stranger(sender.id)
        return f"it names {stranger} as a member, who is not on the list that we have" if stranger else ""

    def handled(self, event: Received) -> None:
        """An event that we delivered is dealt with, or dropped. Once for every Received."""
        self._intake.backlog.handled(event.sender.id)

    def dial(self, peer: Peer) -> None:
        """LinkUp or LinkDown follows; LinkUp at once when there is a link."""
        link = self._link(peer)
        if link is not None and link.up:
            self._deliver(LinkUp(peer))

    def know(self, peer_id: str, addresses: Sequence[str]) -> None:
        """Remember where a peer can be dialled, if it has signed that. Its newest card counts."""
        if peer_id != self._me.id and len(addresses) <= ADDRESSES_MAX:
            self._cards.learn(peer_id, addresses)
            newest(self._named, peer_id, None, PEERS_MAX)

    def where(self, peer_id: str) -> tuple[str, ...]:
        """Where the peer may be dialled; the gate has the last word."""
        known, gate = self._cards.addresses(peer_id), self._p2pd.gate
        if peer_id not in self._named:
            known = tuple(address for address in known if gate.has_met(peer_id, address))
        return tuple(dict.fromkeys([*known, *gate.given(peer_id)]))

    async def _note_where(self, peer_id: str) -> None:
        """A peer has introduced itself: is its connection from where it says that it can be dialled?"""
        known = self._cards.addresses(peer_id)
        if known and not any(self._p2pd.gate.has_met(peer_id, address) for address in known):
            with suppress(P2pdError):
                await self._p2pd.is_connected(peer_id)

    def strike(self, peer_id: str, reason: str) -> None:
        """The peer sent what the protocol forbids; with the third time within a minute it is banned for one."""
        self._told.say(logging.WARNING, peer_id, f"peer {peer_id} broke the protocol: {reason}")
        if self._strikes.add(peer_id, trio.current_time()):
            self._cut_off(peer_id, reason)

    def _ban(self, peer_id: str, reason: str) -> None:
        """What the peer does is no mistake: p2pd drops its connection, too, and what it holds of it."""
        self._strikes.ban(peer_id, trio.current_time())
        self._cut_off(peer_id, reason)
        if self._nursery is not None:
            self._nursery.start_soon(self._disconnect, peer_id)

    def _cut_off(self, peer_id: str, reason: str) -> None:
        """The peer is banned now: nothing more is read from it."""
        if self._book is not None:
            self._book.has_lied(peer_id)
        self._told.say(logging.WARNING, peer_id, f"peer {peer_id} is banned for {BAN_SECONDS:.0f} s: {reason}")
        for (owner, _), scope in list(self._inbound.items()):
            if owner == peer_id:
                scope.cancel()
        for peer, link in self._links.items():
            if peer.id == peer_id:
                link.fail(LinkBroken(f"banned: {reason}"))

    async def _disconnect(self, peer_id: str) -> None:
        try:
            await self._p2pd.disconnect(peer_id)
        except P2pdError as error:
            log.info("p2pd keeps its connection to %s: %s", peer_id, error)

    def drop_unlisted(self) -> None:
        """Who may no longer take part is cut off, and gone for the core: nobody waits for a lease of silence."""
        assert self._book is not None
        over = LinkBroken("it is not on the run's list any more", refused=True)
        for (owner, _), scope in list(self._inbound.items()):
            if not self._book.admits(owner):
                scope.cancel()
        for peer_id, nonce in list(self._lives.items()):
            peer = Peer(peer_id, nonce)
            if not self._book.admits(peer_id) and peer not in self._links:
                self._report(peer, over)
        for peer, link in self._links.items():
            if not self._book.admits(peer.id):
                link.fail(over)

    async def open(self, peer_id: str, protocol: str) -> trio.SocketStream:
        """A stream of another protocol to a peer that we know. Raises LinkBroken with the reason."""
        await self._dial.connect(peer_id)
        try:
            return await self._p2pd.open(peer_id, protocol, OPEN_SECONDS)
        except P2pdError as error:
            raise LinkBroken(clean_reason(str(error))) from None

    # Outgoing.

    def _link(self, peer: Peer) -> Link | None:
        """The link to `peer`, dialled when there is none. None when there may be none: LinkDown was delivered."""
        if self._nursery is None or peer == self._me:
            raise LocalError("the transport has not started" if self._nursery is None else "a link to ourselves")
        link = self._links.pop(peer, None)
        if link is not None:
            self._links[peer] = link
            return link
        verdict = self._forbidden(peer)
        if verdict is not None:
            self._report(peer, verdict)
            return None
        link = self._links[peer] = Link(peer, self._arena, self._line)
        self._nursery.start_soon(self._run_link, link)
        return link

    def _forbidden(self, peer: Peer) -> LinkBroken | None:
        if peer.id == self._me.id:
            return LinkBroken("an earlier life of ours", refused=True)
        if self._strikes.banned(peer.id, trio.current_time()):
            return LinkBroken("banned")
        if self._book is not None and not self._book.admits(peer.id):
            return LinkBroken("it is not on the run's list", refused=peer.id in self._lives)  # gone, or not known yet
        if len(self._links) >= LINKS_MAX and not self._gives_way():
            return LinkBroken(f"there are {LINKS_MAX} links already")
        return None

    def _gives_way(self) -> bool:
        """Whether there was a link that can be spared, which ends."""
        spared = next((peer for peer in self._links if not self._attention.knows(peer)), None)
        if spared is not None:
            self._links.pop(spared).fail(LinkBroken("other peers need the link"))
        return spared is not None

    async def _run_link(self, link: Link) -> None:
        up_since: float | None = None

        def on_up() -> None:
            nonlocal up_since
            up_since = trio.current_time()
            self._deliver(LinkUp(link.peer))
            if self._nursery is not None:
                self._nursery.start_soon(self._look, link.peer)

        pause = self._redials.pause(link.peer.id, trio.current_time())
        verdict = await link.run(self._dial, on_up, self._talks_to_another_life(link.peer), pause)
        gave_way = self._links.get(link.peer) is not link
        if not gave_way:
            del self._links[link.peer]
        self._report(link.peer, verdict)
        if up_since is None or verdict.refused or gave_way:
            return
        now = trio.current_time()
        self._redials.ended(link.peer.id, now - up_since, now)
        if link.peer not in self._links:
            self._link(link.peer)  # one redial tells whether it is gone or was only cut off

    async def _look(self, peer: Peer) -> None:
        """From which network is the connection with the peer?"""
        with suppress(P2pdError):
            network = implied_site(await self._p2pd.ends(peer.id))
            if network:
                self._deliver(Seen(peer, network))

    def _talks_to_another_life(self, peer: Peer) -> bool:
        link = self._links.get(Peer(peer.id, self._lives.get(peer.id, peer.nonce)))
        return link is not None and link.up

    def _report(self, peer: Peer, verdict: LinkBroken) -> None:
        if verdict.denied:
            self._on_refusal(peer, verdict.reason)
        self._deliver(LinkDown(peer, verdict.refused, verdict.reason))

    def _learn(self, peer_id: str, nonce: int, addresses: tuple[str, ...]) -> None:
        """Word of a peer itself: where it can be dialled, and which life of it this is. An older life is over."""
        self._cards.learn(peer_id, addresses)
        before = self._lives.get(peer_id, nonce)
        newest(self._lives, peer_id, nonce, PEERS_MAX)
        if before == nonce:
            return
        over = LinkBroken("another life of it began", refused=True)
        link = self._links.get(Peer(peer_id, before))
        if link is not None:
            link.fail(over)
        else:
            self._report(Peer(peer_id, before), over)

    def _check(self, peer: Peer) -> None:
        """A stream of the peer's ended: ask whether it still lives, unless we are dialling it anyway."""
        link = self._links.get(peer)
        if peer in self._probing or (link is not None and not link.up) or self._nursery is None:
            return
        if self._strikes.banned(peer.id, trio.current_time()):
            return
        self._probing.add(peer)
        self._nursery.start_soon(self._probe, peer, link)

    async def _probe(self, peer: Peer, link: Link | None) -> None:
        try:
            (await self._dial.stream(peer, PROBE_LANE)).socket.close()
        except LinkBroken as verdict:
            if self._links.get(peer) is not link:
                return  # its own dial has told, or will
            if link is not None:
                link.fail(verdict)
            else:
                self._report(peer, verdict)
        finally:
            self._probing.discard(peer)

    # Inbound.

    async def _serve_inbound(self, peer_id: str, stream: trio.SocketStream) -> None:
        """One stream that a peer opened, from its Hello to its end."""
        reader = FrameReader(stream)
        try:
            with trio.fail_after(HANDSHAKE_SECONDS):
                hello = await self._shake_hands(peer_id, stream, reader)
        except Flood as flood:
            self._ban(peer_id, str(flood))
            return
        except PeerError as error:
            self.strike(peer_id, str(error))
            return
        except P2pdError as error:  # our own, which the peer cannot help
            self._told.say(logging.INFO, peer_id, f"the greeting of {peer_id} is not answered: {error}")
            return
        if hello is None or hello.lane == PROBE_LANE:
            return
        if hello.lane == TENSOR_LANE:
            carry_bulk(stream, up=False)
            reader.give_receipts()
        scope, relay = trio.CancelScope(), self._p2pd.relay_of(stream)
        key = (peer_id, hello.lane)
        if key in self._inbound:
            self._inbound[key].cancel()  # it opened the lane anew
        self._inbound[key] = scope
        try:
            with scope:
                await self._receive_all(Peer(peer_id, hello.nonce), hello.lane, reader, relay)
        finally:
            if self._inbound.get(key) is scope:
                del self._inbound[key]
        if not scope.cancelled_caught:
            self._check(Peer(peer_id, hello.nonce))

    async def _shake_hands(self, peer_id: str, stream: trio.SocketStream, reader: FrameReader) -> Hello | None:
        """None when we refuse."""
        hello = read_greeting(*await reader.header())
        if not isinstance(hello, Hello):
            raise PeerError("a stream that does not begin with Hello")
        self._attention.pause(Peer(peer_id, hello.nonce), 0, trio.current_time())  # raises Flood
        if self._strikes.banned(peer_id, trio.current_time()):
            await write_frame(stream, Refusal("you are banned for a minute", retry=True))
            return None
        if hello.run != self._run:
            reason = f"manifest hash differs: theirs {self._run}, ours {clean_reason(hello.run)[:64]}"
            await write_frame(stream, Refusal(reason, retry=False))
            self._told.say(logging.INFO, peer_id, f"peer {peer_id} refused: its run is {clean_reason(hello.run)[:64]}")
            return None
        if self._book is not None and not self._book.admits(peer_id):
            self._cards.learn(peer_id, hello.addresses)
            await write_frame(stream, Refusal(self._book.refusal, retry=True))
            return None
        self._learn(peer_id, hello.nonce, hello.addresses)
        if (peer_id, hello.lane) in self._inbound and await drop_doubled(self._p2pd, peer_id):
            return None  # it has left this connection's streams for those of a new one
        await self._note_where(peer_id)
        await write_frame(stream, Welcome(self._me.nonce, self._own_addresses))
        return hello

    async def _receive_all(self, sender: Peer, lane: str, reader: FrameReader, relay: str) -> None:
        """Deliver frames until the stream ends."""
        try:
            await self._intake.receive_all(sender, lane, reader, relay)
        except Flood as flood:
            self._ban(sender.id, str(flood))
        except PeerError as error:
            self.strike(sender.id, str(error))
        except STREAM_ERRORS as error:
            self._told.say(logging.INFO, sender.id, f"stream of {sender} ended: {describe(error)}")
