"""Can you dial me? A peer tries, and says at which address it got through.

Nobody can tell from inside whether a router lets others in. libp2p's AutoNAT asks the same, but only about public
addresses, and p2pd tells nobody its answer. So that no stranger has us scan others' ports, we knock at no other host
than the one that the request came from, at no other port than the gate lets through, and tell the asker only whether
it was itself that answered (who_listens.py). All else looks the same and takes the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgpack
import trio

from ftnode.node.links.addresses import PeerAddress, is_dialable
from ftnode.node.links.dial_gate import DialGate
from ftnode.node.links.listening import KINDS, socket_address
from ftnode.node.links.p2pd import P2pd, P2pdError
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import STREAM_ERRORS, StreamHandler, at_most
from ftnode.node.links.undigested import asking
from ftnode.node.links.who_listens import listens
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.words.errors import PeerError

log = logging.getLogger(__name__)

KNOCK_PROTOCOL: Final = "/ftnode/knock/1"
CONNECT_SECONDS: Final = 5.0
ASK_SECONDS: Final = 8.0
"""Above what the other side takes at most."""
KNOCK_SECONDS: Final = 2.0
REQUEST_SECONDS: Final = 2.0
ADDRESSES_MAX: Final = 8
UNSPECIFIED: Final = "0.0.0.0"
"""In a request: the host that the request comes from, which who asks may not know."""
HOSTS_MAX: Final = 4
FRAME_BYTES_MAX: Final = 4096
FRAME_LIMITS: Final = Limits(size=FRAME_BYTES_MAX, depth=2)
"""A list of addresses, or one address."""
ASKERS_MAX: Final = 16
"""At a time; those beyond get no answer and ask again."""


async def ask(p2pd: P2pd, peer: PeerAddress, addresses: Sequence[str]) -> str:
    """At which of our addresses the peer got through; "" when at none. Raises P2pdError when it does not say."""
    await p2pd.connect(peer.peer_id, peer.addresses, CONNECT_SECONDS)
    stream = await p2pd.open(peer.peer_id, KNOCK_PROTOCOL, CONNECT_SECONDS)
    try:
        with asking(peer.peer_id, KNOCK_PROTOCOL), trio.fail_after(ASK_SECONDS):
            await write_frame(stream, msgpack.packb(list(addresses[:ADDRESSES_MAX])))
            opened = decode(await read_frame(stream.receive_some, FRAME_BYTES_MAX), FRAME_LIMITS)
    except (*STREAM_ERRORS, PeerError) as error:
        raise P2pdError(f"no answer to whether we can be dialled: {error}") from None
    finally:
        await trio.aclose_forcefully(stream)
    if not isinstance(opened, str) or (opened and opened not in addresses):
        raise P2pdError("it dialled an address that is not ours")
    return opened


def knock_handler(p2pd: P2pd) -> StreamHandler:
    """Answers whoever asks: at once where the asker was reached, after KNOCK_SECONDS for whatever else there was."""

    async def handle(peer_id: str, stream: trio.SocketStream) -> None:
        try:
            with trio.fail_after(REQUEST_SECONDS):
                asked = decode(await read_frame(stream.receive_some, FRAME_BYTES_MAX), FRAME_LIMITS)
            if not isinstance(asked, list):
                raise PeerError("a request that is no list")
            ends = [address for owner, address in await p2pd.connections() if owner == peer_id and host_of(address)]
            await write_frame(stream, msgpack.packb(await knock(p2pd.gate, peer_id, asked[:ADDRESSES_MAX], ends)))
        except (PeerError, P2pdError, *STREAM_ERRORS) as error:
            log.info("%s asked whether it can be dialled, without an answer: %s", peer_id, error)
        finally:
            await trio.aclose_forcefully(stream)

    return at_most(ASKERS_MAX, handle)


async def knock(gate: DialGate, peer_id: str, addresses: Iterable[Any], ends: Iterable[str]) -> str:
    """The first of the addresses at which the peer itself answers, of those on hosts that it is connected from; ""
    after KNOCK_SECONDS, and not before, when it answers at none or none may be dialled.

    `ends`: addresses at the other end of its connections. For UNSPECIFIED each of their hosts is tried, and the answer
    has the one that was dialled."""
    seen = list(ends)
    passed = gate.admit(peer_id, candidates(addresses, {host_of(end) for end in seen}), near=seen)
    opened: list[str] = []

    async def dial(address: str) -> None:
        target = _target(address)
        if target is not None and await listens(peer_id, *target):
            opened.append(address)
            wait.cancel()

    with trio.move_on_after(KNOCK_SECONDS) as wait:
        async with trio.open_nursery() as nursery:
            for address in passed.addresses:
                nursery.start_soon(dial, address)
            await trio.sleep_forever()
    if opened:
        gate.found(passed)
        gate.met(peer_id, opened)
    return opened[0] if opened else ""


def candidates(addresses: Iterable[Any], hosts: Collection[str]) -> list[str]:
    """Those of the addresses that are direct ones on `hosts`, UNSPECIFIED replaced by each."""
    found: list[str] = []
    for address in addresses:
        target = _target(address) if isinstance(address, str) and is_dialable(address) else None
        if target is not None and target[0] in hosts:
            found.append(address)
        elif target is not None and target[0] == UNSPECIFIED:
            near = sorted(hosts)[:HOSTS_MAX]
            found += [f"/{'ip6' if ':' in host else 'ip4'}/{host}/tcp/{target[1]}" for host in near]
    return found


def host_of(address: str) -> str:
    """The IP address in a direct TCP address; "" for any other."""
    target = _target(address)
    return target[0] if target is not None else ""


def _target(address: str) -> tuple[str, int] | None:
    try:
        target = socket_address(address)
    except ValueError:
        return None
    return target[2:] if target is not None and target[1] == KINDS["tcp"] else None
