"""A place at a relay (libp2p's circuit relay v2), for who wants to be reached.

We ask for the place ourselves. p2pd's AutoRelay would too, but it insists on a DHT of its own, passes over relays with
private addresses, and tells nobody whether it has a place. Here the relay's own answer says that, and how much a
circuit may carry. p2pd takes the circuits that then come in like any other connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.links import p2pd_messages as messages
from ftnode.node.links.addresses import PeerAddress, full_addresses
from ftnode.node.links.connections import direct_ends
from ftnode.node.links.dial_rules import CIRCUIT
from ftnode.node.links.listening import address_text
from ftnode.node.links.p2pd import P2pd, P2pdError, read_message
from ftnode.node.links.relay_words import HOP_PROTOCOL, OK, refusal
from ftnode.node.links.streams import STREAM_ERRORS
from ftnode.node.links.undigested import asking
from ftnode.protocol.words.errors import PeerError

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 5.0
CIRCUIT_BYTES_MIN: Final = 1 << 30
"""Every libp2p host relays 128 KB per circuit, which is no line for tensors."""
ADDRESSES_MAX: Final = 3
"""Through one relay, so that those through others have room beside them."""


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """A relay takes in connections for us as long as we are connected to it."""

    relay: str
    addresses: tuple[str, ...]
    """Ours, through it, without /p2p and our PeerId."""


async def reserve(p2pd: P2pd, relay: PeerAddress) -> RelayPlace:
    """Take a place, or keep the one that we have. Raises P2pdError with the reason when there is none."""
    await p2pd.connect(relay.peer_id, relay.addresses, CONNECT_SECONDS)
    stream = await p2pd.open(relay.peer_id, HOP_PROTOCOL, ANSWER_SECONDS)
    try:
        with asking(relay.peer_id, HOP_PROTOCOL, (ValueError,)), trio.fail_after(ANSWER_SECONDS):
            await stream.send_all(messages.reserve())
            answer = messages.read_reservation(await read_message(stream))
    except (*STREAM_ERRORS, ValueError, PeerError) as error:
        raise P2pdError(f"no answer from the relay: {error}") from None
    finally:
        await trio.aclose_forcefully(stream)
    if answer.status != OK:
        raise P2pdError(refusal(answer.status))
    if 0 < answer.data_bytes < CIRCUIT_BYTES_MIN:
        raise P2pdError(f"it relays {answer.data_bytes} bytes per circuit at most, which is no relay for tensors")
    return RelayPlace(relay.peer_id, circuits(await _by_number(p2pd, relay), answer.addresses))


def circuits(relay: PeerAddress, told: tuple[bytes, ...]) -> tuple[str, ...]:
    """Addresses through a relay: those that we dial it at, then those that it names."""
    named = []
    for address in told:
        try:
            named.append(address_text(address))
        except ValueError:
            continue
    mine = [text for text in named if text.endswith(f"/p2p/{relay.peer_id}")]
    full = dict.fromkeys((*full_addresses(relay.peer_id, relay.addresses), *mine))
    return tuple(f"{text}/{CIRCUIT}" for text in full)[:ADDRESSES_MAX]


async def _by_number(p2pd: P2pd, relay: PeerAddress) -> PeerAddress:
    """Nobody dials a name at somebody else's word (dial_rules.py): we say where we are connected to the relay. So we do
    when nobody has told us where it is."""
    numbers = [address for address in relay.addresses if not address.startswith("/dns")]
    if numbers and len(numbers) == len(relay.addresses):
        return relay
    ends = direct_ends(relay.peer_id, await p2pd.connections())
    return PeerAddress(relay.peer_id, tuple(dict.fromkeys([*numbers, *ends])))
