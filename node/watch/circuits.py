"""A watcher's way to peers whom nobody can dial: a circuit through a relay at which they have a place.

The relay carries bytes (libp2p's specification circuit-v2) and can neither read nor change them: both ends shake hands
through it, and whoever is asked for proves its PeerId. The watcher itself needs no place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from ftnode.node.links import p2pd_messages as messages
from ftnode.node.links.relay_words import OK, refusal
from ftnode.node.links.side_messages import Receive, read_exactly
from ftnode.protocol.words.errors import PeerError


async def ask_for_circuit(write: Callable[[bytes], Awaitable[None]], receive: Receive, peer: bytes) -> None:
    """On a stream of HOP_PROTOCOL, which is the circuit to this PeerId afterwards. Raises PeerError when the relay
    refuses or says nonsense, EOFError when it hangs up, and what the stream raises."""
    await write(messages.circuit(peer))
    try:
        answer = messages.read_reservation(await messages.read_message(partial(read_exactly, receive)))
    except ValueError as error:
        raise PeerError(f"the relay says nonsense: {error}") from None
    if answer.status != OK:
        raise PeerError(f"the relay says: {refusal(answer.status)}")
