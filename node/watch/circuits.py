"""A watcher's way to peers whom nobody can dial: a circuit through a relay at which they have a place.

The relay carries bytes (libp2p's specification circuit-v2) and can neither read nor change them: both ends shake hands
through it, and whoever is asked for proves its PeerId. The watcher itself needs no place.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from ftnode.node.links import p2pd_messages as messages
from ftnode.node.links.relay_words import HOP_PROTOCOL, OK, refusal
from ftnode.node.links.side_messages import read_exactly
from ftnode.protocol.words.errors import PeerError

if TYPE_CHECKING:
    from libp2p.abc import IHost
    from libp2p.peer.id import ID

ANSWER_SECONDS: Final = 10.0


async def open_circuit(host: IHost, relay: ID, peer: ID) -> None:
    """Connect to a peer through a relay that we are connected to. Raises PeerError when the relay refuses, EOFError,
    trio.TooSlowError, and what libp2p raises."""
    from libp2p.connection_types import ConnectionType
    from libp2p.custom_types import TProtocol
    from libp2p.network.connection.raw_connection import RawConnection

    with trio.fail_after(ANSWER_SECONDS):
        stream = await host.new_stream(relay, [TProtocol(HOP_PROTOCOL)])
        try:
            await stream.write(messages.circuit(peer.to_bytes()))
            answer = messages.read_reservation(await messages.read_message(partial(read_exactly, stream.read)))
            if answer.status != OK:
                raise PeerError(f"the relay says: {refusal(answer.status)}")
            raw = RawConnection(stream, True, ConnectionType.RELAYED)
            await host.get_network().upgrade_outbound_raw_conn(raw, peer)
        except BaseException:
            with trio.CancelScope(deadline=trio.current_time() + 1.0, shield=True):
                await stream.reset()
            raise
