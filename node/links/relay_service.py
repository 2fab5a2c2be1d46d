"""A relay, libp2p's circuit relay v2: places for peers whom nobody can dial, and circuits to those who have one.

Every p2pd has a relay built in, with limits that its flags set and nobody can look into. We take that one's protocol
over: p2pd hands us the streams, and we give out places and join circuits ourselves. So it is we who say who may have
what (relay_rules.py), `--up` holds for what is relayed, and who has used up its share is cut off. Both ends shake hands
through their circuit, so that a relay can neither read nor change what it carries.

    caller                relay                 who has a place
      │ HOP: circuit to X ──▶│ STOP: caller calls ──▶│
      │◀────────────── OK ───│◀──────────────── OK ──│
      │◀═════════════ bytes of both, as they are ═══▶│
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.home.identity import peer_id_bytes, peer_id_text
from ftnode.node.links import p2pd_messages as messages
from ftnode.node.links.addresses import full_addresses, rank
from ftnode.node.links.connections import direct_ends
from ftnode.node.links.dial_rules import endpoint_of
from ftnode.node.links.listening import address_bytes
from ftnode.node.links.p2pd import P2pd, P2pdError, read_message
from ftnode.node.links.peer_lines import PeerLog
from ftnode.node.links.relay_rules import MEMBER, PLACE_SECONDS, RelayRules, Terms
from ftnode.node.links.relay_words import HOP_PROTOCOL, NO_PLACE, NOT_FOR_YOU, NOT_REACHED, OK, STOP_PROTOCOL
from ftnode.node.links.side_messages import hear, say
from ftnode.node.links.streams import STREAM_ERRORS, StreamHandler, at_most, read_some, write_all
from ftnode.node.links.undigested import asking
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

OFFER_PROTOCOL: Final = "/ftnode/relays/1"
OFFER_BYTES_MAX: Final = 1 << 14
YOURS_MAX: Final = 128
"""Circuits of one peer that are told."""
OFFERS_AT_ONCE: Final = 64
ANSWER_SECONDS: Final = 5.0
PIECE_BYTES: Final = 1 << 16
"""p2pd hands over 32 KB at a time."""
WRITE_SECONDS: Final = 60.0
"""Who reads nothing of a circuit for so long is not there any more."""
ADDRESSES_TOLD: Final = 2


@dataclass(frozen=True, slots=True)
class Asked:
    """Do you relay?"""


@dataclass(frozen=True, slots=True)
class Offered:
    """`why_not`: empty when we do. `places`: of others; `rate`: bytes a second that are relayed; `yours`: of those what
    goes between the asker and these peers."""

    why_not: str
    places: int
    rate: float
    yours: tuple[tuple[str, float], ...]


KINDS: Final[dict[str, type]] = {kind.__name__: kind for kind in (Asked, Offered)}


class RelayService:
    """`why_not`: why we do not relay, as of now; empty when we do. `terms`: of a PeerId, as of now."""

    def __init__(
        self, p2pd: P2pd, why_not: Callable[[], str] = str, terms: Callable[[str], Terms] = lambda peer: MEMBER
    ) -> None:
        self.rules = RelayRules(terms)
        self._p2pd, self._why_not = p2pd, why_not
        self._open: dict[str, list[trio.CancelScope]] = {}
        """PeerId → the circuits that it has asked for."""
        self._told = PeerLog(log)

    async def serve(self) -> None:
        """From now on. Raises P2pdError when our own p2pd does not answer."""
        await self._p2pd.serve(HOP_PROTOCOL, self._hop)
        await self._p2pd.serve(OFFER_PROTOCOL, self._offers)

    @property
    def _offers(self) -> StreamHandler:
        async def handle(peer_id: str, stream: trio.SocketStream) -> None:
            now = trio.current_time()
            try:
                with trio.fail_after(ANSWER_SECONDS):
                    await hear(stream, {"Asked": Asked}, OFFER_BYTES_MAX)
                    places, rate = self.rules.places(now, without=peer_id), self.rules.rate(now)
                    yours = tuple(self.rules.rates_of(now, peer_id).items())[:YOURS_MAX]
                    await say(stream, Offered(self._why_not(), places, rate, yours))
            except STREAM_ERRORS as error:
                log.info("%s asked whether we relay, without an answer: %s", peer_id, error or type(error).__name__)
            finally:
                await trio.aclose_forcefully(stream)

        return at_most(OFFERS_AT_ONCE, handle)

    async def _hop(self, peer_id: str, stream: trio.SocketStream) -> None:
        try:
            with trio.fail_after(ANSWER_SECONDS):
                asked = messages.read_asked_of_relay(await read_message(stream))
            if asked.wanted:
                await self._join(peer_id, peer_id_text(asked.wanted), stream)
            else:
                await self._give_place(peer_id, stream)
        except ValueError as error:
            raise PeerError(str(error)) from None
        except (P2pdError, *STREAM_ERRORS) as error:
            self._told.say(logging.INFO, peer_id, f"{peer_id} asked us to relay: {error or type(error).__name__}")
        finally:
            await trio.aclose_forcefully(stream)

    # -- places

    async def _give_place(self, peer_id: str, stream: trio.SocketStream) -> None:
        ends = await self._ends(peer_id)
        endpoint = endpoint_of(ends[0]) if ends else None
        status = NOT_FOR_YOU
        if endpoint is not None and not self._why_not():
            status = self.rules.place(trio.current_time(), peer_id, endpoint.host)
        answer = messages.relay_status(status)
        if status == OK:
            told = sorted(self._p2pd.gate.own, key=rank)[:ADDRESSES_TOLD]
            own = full_addresses(self._p2pd.peer_id, told)
            answer = messages.place_given(int(time.time() + PLACE_SECONDS), [address_bytes(one) for one in own])
        await _write(stream, answer)

    # -- circuits

    async def _join(self, caller: str, wanted: str, stream: trio.SocketStream) -> None:
        """Until one of them has enough, or the caller has had enough."""
        status = NOT_FOR_YOU if self._why_not() else self.rules.circuit(trio.current_time(), caller, wanted)
        if status != OK:
            await _write(stream, messages.relay_status(status))
            return
        # It counts from here on: who asks while p2pd is asked must not find the same room free.
        terms, circuit = self.rules.begin(caller, wanted), trio.CancelScope()
        self._open.setdefault(caller, []).append(circuit)
        try:
            with circuit:
                if await self._ends(caller) and await self._ends(wanted):
                    await self._carry(caller, wanted, stream, terms)
                else:
                    await _write(stream, messages.relay_status(NO_PLACE))
        finally:
            self.rules.end(caller, wanted, terms)
            self._open[caller].remove(circuit)
            if not self._open[caller]:
                del self._open[caller]

    async def _carry(self, caller: str, wanted: str, stream: trio.SocketStream, terms: Terms) -> None:
        other = await self._called(caller, wanted)
        if other is None:
            await _write(stream, messages.relay_status(NOT_REACHED))
            return
        try:
            await _write(stream, messages.relay_status(OK))
            with trio.move_on_after(terms.seconds):
                async with trio.open_nursery() as nursery:
                    pair = caller, wanted
                    nursery.start_soon(self._pump, pair, stream, other, nursery.cancel_scope)
                    nursery.start_soon(self._pump, pair, other, stream, nursery.cancel_scope)
        finally:
            await trio.aclose_forcefully(other)

    async def _called(self, caller: str, wanted: str) -> trio.SocketStream | None:
        """The other half of a circuit; None when that end does not want it."""
        try:
            other = await self._p2pd.open(wanted, STOP_PROTOCOL, ANSWER_SECONDS)
        except P2pdError as error:
            log.info("no circuit from %s to %s: %s", caller, wanted, error)
            return None
        try:
            with asking(wanted, STOP_PROTOCOL, (ValueError,)), trio.fail_after(ANSWER_SECONDS):
                await _write(other, messages.stop_connect(peer_id_bytes(caller)))
                if messages.read_stop_status(await read_message(other)) == OK:
                    return other
        except (PeerError, ValueError, *STREAM_ERRORS) as error:
            log.info("no circuit from %s to %s: %s", caller, wanted, error or type(error).__name__)
        except BaseException:
            await trio.aclose_forcefully(other)
            raise
        await trio.aclose_forcefully(other)
        return None

    async def _pump(
        self, pair: tuple[str, str], source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope
    ) -> None:
        """One direction of a circuit; its end is the end of both."""
        room = memoryview(bytearray(PIECE_BYTES))
        try:
            while count := await read_some(source, room):
                if why := self.rules.spend(trio.current_time(), *pair, count):
                    self._cut_off(pair[0], why)
                with trio.fail_after(WRITE_SECONDS) as patience:
                    await write_all(target, [room[:count]], patience)
                await trio.lowlevel.checkpoint()  # neither call is one while there are bytes and room
        except STREAM_ERRORS:
            pass
        both.cancel()

    def _cut_off(self, caller: str, why: str) -> None:
        self._told.say(logging.WARNING, caller, f"no more is relayed for {caller}: {why}")
        for circuit in self._open.get(caller, ()):
            circuit.cancel()

    async def _ends(self, peer_id: str) -> Sequence[str]:
        """Addresses at the other end of direct connections with a peer."""
        return direct_ends(peer_id, await self._p2pd.connections())


async def _write(stream: trio.SocketStream, message: bytes) -> None:
    with trio.fail_after(ANSWER_SECONDS):
        await write_all(stream, [memoryview(message)])
