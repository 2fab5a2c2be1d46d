"""Which of the peers that we are connected to relay, and how much they have to do: asked again and again."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from math import inf
from typing import Final

import trio

from ftnode.node.links.connections import direct_peers
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.relay_choice import Offer, choose_way, relays_in
from ftnode.node.links.relay_service import ANSWER_SECONDS, KINDS, OFFER_BYTES_MAX, OFFER_PROTOCOL, Asked, Offered
from ftnode.node.links.side_messages import hear, say
from ftnode.node.links.streams import STREAM_ERRORS
from ftnode.node.links.undigested import asking
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

AGAIN_SECONDS: Final = 15.0
ASKED_MAX: Final = 32
ASKED_AT_ONCE: Final = 8
LATENCY_MAX: Final = ANSWER_SECONDS


class RelayOffers:
    """`known`: PeerId → its last offer, of those that relay and are connected."""

    def __init__(self, p2pd: P2pd) -> None:
        self.known: dict[str, Offer] = {}
        self._p2pd = p2pd
        self._asked_at: dict[str, float] = {}

    async def look(self, now: float) -> None:
        """Ask those that we are directly connected to and have not asked lately. Raises P2pdError when our own p2pd
        does not answer."""
        direct = direct_peers(await self._p2pd.connections())[:ASKED_MAX]
        self._asked_at = {peer: at for peer, at in self._asked_at.items() if peer in direct}
        self.known = {peer: offer for peer, offer in self.known.items() if peer in direct}
        limit = trio.CapacityLimiter(ASKED_AT_ONCE)
        async with trio.open_nursery() as nursery:
            for peer in direct:
                if now - self._asked_at.get(peer, now - AGAIN_SECONDS) >= AGAIN_SECONDS:
                    self._asked_at[peer] = now
                    nursery.start_soon(self._ask, peer, limit)

    async def way(self, addresses: Sequence[str]) -> tuple[str, ...]:
        """Of a peer's addresses those to dial first. Raises P2pdError as above."""
        if len(relays_in(addresses)) < 2:
            return tuple(addresses)
        connected = direct_peers(await self._p2pd.connections())
        return choose_way(self._p2pd.peer_id, addresses, self.known, connected)

    async def _ask(self, peer: str, limit: trio.CapacityLimiter) -> None:
        async with limit:
            try:
                offer = await ask(self._p2pd, peer)
            except (P2pdError, PeerError) as error:
                log.debug("%s does not say whether it relays: %s", peer, error)
                offer = None
        if offer is None:
            self.known.pop(peer, None)
        else:
            self.known[peer] = offer


async def ask(p2pd: P2pd, peer: str) -> Offer | None:
    """None when it does not relay. Raises P2pdError without an answer, PeerError for nonsense."""
    stream = await p2pd.open(peer, OFFER_PROTOCOL, ANSWER_SECONDS)
    try:
        with asking(peer, OFFER_PROTOCOL), trio.fail_after(ANSWER_SECONDS):
            began = trio.current_time()
            await say(stream, Asked())
            said: Offered = await hear(stream, {"Offered": KINDS["Offered"]}, OFFER_BYTES_MAX)
            return read_offer(said, trio.current_time() - began)
    except STREAM_ERRORS as error:
        raise P2pdError(f"no answer to whether it relays: {error or type(error).__name__}") from None
    finally:
        await trio.aclose_forcefully(stream)


def read_offer(said: Offered, latency: float) -> Offer | None:
    """None when it does not relay. Raises PeerError for numbers that cannot be."""
    if said.why_not:
        return None
    if said.places < 0 or not all(0.0 <= rate < inf for rate in (said.rate, *(rate for _, rate in said.yours))):
        raise PeerError("it relays for a number of peers, or of bytes, that cannot be")
    return Offer(latency, said.places, said.rate, dict(said.yours))
