"""A doctor's questions to peers, by the light client: who are you, what time is it, can you dial me?"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgpack
import trio

from ftnode.node.cli.doctor_checkup import PeerAnswer
from ftnode.node.links.addresses import PeerAddress
from ftnode.node.links.dial_back import ASK_SECONDS, FRAME_BYTES_MAX, FRAME_LIMITS, KNOCK_PROTOCOL
from ftnode.node.watch import light_client
from ftnode.protocol.wire.decoder import decode
from ftnode.protocol.words.errors import PeerError

if TYPE_CHECKING:
    from ftnode.node.watch.light_client import Host

PEERS_MAX: Final = 4
"""As many as a node asks about itself."""


def visit(peers: Sequence[PeerAddress], knock_at: Sequence[str], timeout: float) -> list[PeerAnswer]:
    """Ask all side by side; whoever says nothing within `timeout` seconds is told so. `knock_at`: multiaddrs to be
    dialled at, an unspecified host standing for the one that the peer sees; with none nobody is asked to."""
    found: dict[str, PeerAnswer] = {}

    async def ask(host: Host, peer: PeerAddress) -> None:
        found[peer.peer_id] = PeerAnswer(peer.peer_id, f"no answer within {timeout:g} s")
        with trio.move_on_after(timeout):
            try:
                found[peer.peer_id] = await _question(host, peer, timeout)
                if knock_at:
                    opened = await _knock(host, peer, knock_at)
                    answered = found[peer.peer_id]
                    found[peer.peer_id] = PeerAnswer(
                        peer.peer_id, "", answered.version, answered.clock_ahead, answered.clock_doubt, opened
                    )
            except light_client.Unanswered as error:
                if found[peer.peer_id].trouble:
                    found[peer.peer_id] = PeerAnswer(peer.peer_id, str(error))

    async def ask_all(host: Host) -> list[PeerAnswer]:
        async with trio.open_nursery() as nursery:
            for peer in peers[:PEERS_MAX]:
                nursery.start_soon(ask, host, peer)
        return [found[peer.peer_id] for peer in peers[:PEERS_MAX]]

    return light_client.with_host(ask_all)


async def _question(host: Host, peer: PeerAddress, seconds: float) -> PeerAnswer:
    async with light_client.open_stream(host, peer, seconds) as stream:
        began, asked = time.time(), time.monotonic()
        status = await light_client.ask_status(stream)
        took = time.monotonic() - asked
    ahead = None if status.clock is None else status.clock - (began + took / 2)
    return PeerAnswer(peer.peer_id, "", status.speaker.version, ahead, took / 2)


async def _knock(host: Host, peer: PeerAddress, addresses: Sequence[str]) -> str | None:
    """Where it got through, empty for nowhere; None when it does not say."""
    try:
        async with light_client.open_stream(host, peer, ASK_SECONDS, KNOCK_PROTOCOL) as stream:
            await light_client.send(stream, msgpack.packb(list(addresses)))
            opened = decode(await light_client.receive(stream, FRAME_BYTES_MAX), FRAME_LIMITS)
    except (light_client.Unanswered, PeerError):
        return None
    return opened if isinstance(opened, str) else None
