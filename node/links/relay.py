"""Relays, libp2p's circuit relay v2: a place at one, for who wants to be reached, and a p2pd that is one.

We ask for the place ourselves. p2pd's AutoRelay would too, but it insists on a DHT of its own, passes over relays with
private addresses, and tells nobody whether it has a place. Here the relay's own answer says that, and how much a
circuit may carry. p2pd takes the circuits that then come in like any other connection.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from ftnode.node.home.identity import take_identity
from ftnode.node.links import p2pd_messages as messages
from ftnode.node.links.addresses import PeerAddress, full_addresses
from ftnode.node.links.dial_rules import CIRCUIT
from ftnode.node.links.listening import address_text, from_here
from ftnode.node.links.p2pd import P2pd, P2pdError, read_message
from ftnode.node.links.relay_words import HOP_PROTOCOL, OK, refusal
from ftnode.node.links.streams import STREAM_ERRORS
from ftnode.node.links.undigested import asking
from ftnode.protocol.words.errors import PeerError, UserError

log = logging.getLogger(__name__)

CONNECT_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 5.0
CIRCUIT_BYTES_MIN: Final = 1 << 30
"""Every libp2p host relays 128 KB per circuit, which is no line for tensors."""
STARTS_MAX: Final = 5
SETTLE_SECONDS: Final = 1.0
"""After which a relay with small limits will not become one with large ones any more."""


class SmallRelay(P2pdError):
    """It relays, but not enough for tensors."""


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
        raise SmallRelay(
            f"it relays {answer.data_bytes} bytes per circuit at most; a meeting point relays without limit"
        )
    return RelayPlace(relay.peer_id, circuits(await _by_number(p2pd, relay), answer.addresses))


def circuits(relay: PeerAddress, public: tuple[bytes, ...]) -> tuple[str, ...]:
    """Addresses through a relay: its public ones as it names them, then those that we dial it at."""
    named = []
    for address in public:
        try:
            named.append(address_text(address))
        except ValueError:
            continue
    mine = [text for text in named if text.endswith(f"/p2p/{relay.peer_id}")]
    return tuple(
        dict.fromkeys(f"{text}/p2p-circuit" for text in (*mine, *full_addresses(relay.peer_id, relay.addresses)))
    )


async def _by_number(p2pd: P2pd, relay: PeerAddress) -> PeerAddress:
    """Nobody dials a name at somebody else's word (dial_rules.py): we say where we are connected to the relay."""
    if not any(address.startswith("/dns") for address in relay.addresses):
        return relay
    ends = [address for owner, address in await p2pd.connections() if owner == relay.peer_id and CIRCUIT not in address]
    numbers = [address for address in relay.addresses if not address.startswith("/dns")]
    return PeerAddress(relay.peer_id, tuple(dict.fromkeys([*numbers, *ends])))


async def start_relay(
    nursery: trio.Nursery, identity: Path, listen: Sequence[str], announce: Sequence[str] = ()
) -> P2pd:
    """A p2pd that relays tensors. `announce`: told to others instead of where it listens. Raises UserError when it
    cannot start.

    p2pd has two relays for the one protocol: that of its flags starts when it thinks itself reachable, one with
    libp2p's small limits at the end of its start. The later one answers, and on a busy machine that is sometimes the
    wrong one. So a stranger asks for a place, and when that is too small p2pd is started again.
    """
    for attempt in range(1, STARTS_MAX + 1):
        p2pd = await P2pd.start(nursery, identity, listen=listen, announce=announce, relay_service=True)
        here = from_here(listen) if announce else await p2pd.addresses()  # what is announced may lead nowhere from here
        if attempt == STARTS_MAX or await _relays_enough(PeerAddress(p2pd.peer_id, here)):
            break
        log.info("p2pd relays too little per circuit; it is started again")
        p2pd.close()
    return p2pd


async def _relays_enough(relay: PeerAddress) -> bool:
    """True also when nobody can be found who asks."""
    enough = True
    with TemporaryDirectory() as folder:
        identity = take_identity(Path(folder))
        async with trio.open_nursery() as nursery:
            try:
                stranger = await P2pd.start(nursery, identity.path, listen=())
                try:
                    stranger.gate.give([relay])
                    enough = await _grants(stranger, relay)
                finally:
                    stranger.close()
            except (P2pdError, UserError) as error:
                log.warning("cannot tell whether p2pd relays: %s", error)
            nursery.cancel_scope.cancel()
        identity.release()
    return enough


async def _grants(stranger: P2pd, relay: PeerAddress) -> bool:
    settled = trio.current_time() + SETTLE_SECONDS
    while True:
        try:
            await reserve(stranger, relay)
        except SmallRelay:
            if trio.current_time() > settled:
                return False
            await trio.sleep(SETTLE_SECONDS / 10)
        else:
            return True
