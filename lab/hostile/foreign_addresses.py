"""Ports of somebody else, and a stranger that names them wherever ftnode's wire has room for an address.

The ports accept connections, say nothing and count. Some are on the host where the swarm is, others on hosts where
nobody is; all of 127.0.0.0/8 is this machine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

import msgpack
import trio

from ftnode.lab.hostile import forgeries
from ftnode.lab.hostile.forgeries import Alias
from ftnode.lab.hostile.stranger import DIAL_SECONDS, Stranger
from ftnode.node.links.addresses import parse_peers
from ftnode.node.links.dial_back import ASK_SECONDS, FRAME_BYTES_MAX, KNOCK_PROTOCOL
from ftnode.node.links.p2pd import P2pdError
from ftnode.node.links.side_messages import read_frame
from ftnode.node.links.side_messages import write_frame as write_side_frame
from ftnode.node.links.streams import STREAM_ERRORS, write_frame
from ftnode.protocol.wire.decoder import Limits, decode
from ftnode.protocol.words.messages import Certificate, Contact, Offer
from ftnode.protocol.words.types import INITIAL_ATTEMPT, Version
from ftnode.protocol.words.view import View

SAME_HOST: Final = "127.0.0.1"
OTHER_HOSTS: Final = ("127.0.0.2", "127.9.9.9")
PORTS: Final = 4
"""On each host."""
PRESENCES: Final = 20
ANSWER_LIMITS: Final = Limits(size=FRAME_BYTES_MAX, depth=2)


@dataclass
class ForeignPorts:
    """`made`: address → connections to it so far."""

    addresses: tuple[str, ...]
    made: Counter[str] = field(default_factory=Counter)

    def on(self, *hosts: str) -> tuple[str, ...]:
        return tuple(address for address in self.addresses if address.split("/")[2] in hosts)


@asynccontextmanager
async def open_ports() -> AsyncIterator[ForeignPorts]:
    listeners = [
        (await trio.open_tcp_listeners(0, host=host))[0] for host in (SAME_HOST, *OTHER_HOSTS) for _ in range(PORTS)
    ]
    ports = [listener.socket.getsockname()[:2] for listener in listeners]
    found = ForeignPorts(tuple(f"/ip4/{host}/tcp/{port}" for host, port in ports))

    async def serve(address: str, listener: trio.SocketListener) -> None:
        async def accept(stream: trio.SocketStream) -> None:
            found.made[address] += 1
            await trio.sleep_forever()

        await trio.serve_listeners(accept, [listener])

    async with trio.open_nursery() as nursery:
        for address, listener in zip(found.addresses, listeners):
            nursery.start_soon(serve, address, listener)
        yield found
        nursery.cancel_scope.cancel()


def lists(addresses: Sequence[str], alias: Alias) -> Iterator[tuple[str, ...]]:
    """The addresses with a card of ours, with one of somebody else, and with none."""
    yield alias.signed(addresses)
    yield Alias.fresh().signed(addresses)
    yield tuple(addresses)


async def greet_and_go(stranger: Stranger, target: str, view: View, step: int, addresses: tuple[str, ...]) -> None:
    """A Hello with these addresses and words that want an answer; then there is no connection to answer on."""
    with suppress(P2pdError, *STREAM_ERRORS):
        stream = await stranger.greet(target, addresses)
        await write_frame(stream, forgeries.heartbeat(view, step, quorate=False, wants_reply=True))
        for word in words_about_others(view, step, addresses):
            await write_frame(stream, word)
        await stranger.leave(target)


def words_about_others(view: View, step: int, addresses: tuple[str, ...]) -> Iterator[Certificate | Offer]:
    """Who is told to be at the addresses: every member of the view, and somebody who is not there at all."""
    nobody = Alias.fresh()
    for said in (addresses, nobody.signed(addresses)):
        named = tuple(Contact(peer, said) for peer in (nobody.peer, *sorted(view.members())))
        yield Certificate(view, False, named, step)
        base = Version(step, forgeries.FORGED_COMMIT, INITIAL_ATTEMPT)
        yield Offer(view.lineage.id, view.number, (len(view.holders) - 1,), base, named, False)


async def announce(stranger: Stranger, view: View, addresses: Sequence[str]) -> int:
    """Presences of fresh identities, each with all the addresses; how many the directory took."""
    records = []
    for number in range(PRESENCES):
        alias = Alias.fresh()
        said = list(lists(addresses, alias))[number % 3]
        records.append(forgeries.presence_at(view, alias, said, 1))
    return await stranger.write(records)


async def ask_to_knock(stranger: Stranger, target: str, addresses: Sequence[str]) -> tuple[str, float]:
    """What the volunteer says to whether it reaches us there, and seconds until it did. Raises P2pdError and one of
    STREAM_ERRORS."""
    (volunteer,) = parse_peers([target])
    stranger.p2pd.gate.give([volunteer])
    await stranger.p2pd.connect(volunteer.peer_id, volunteer.addresses, DIAL_SECONDS)
    stream = await stranger.p2pd.open(volunteer.peer_id, KNOCK_PROTOCOL, DIAL_SECONDS)
    async with stream:
        began = trio.current_time()
        with trio.fail_after(ASK_SECONDS):
            await write_side_frame(stream, msgpack.packb(list(addresses)))
            answer = decode(await read_frame(stream.receive_some, FRAME_BYTES_MAX), ANSWER_LIMITS)
        return str(answer), trio.current_time() - began
