"""Finding a member of a run from the addresses of any peers, for a reader who is none.

A meeting point takes part in no run and names members; those are asked after the given peers. Unlike watch.py this
goes through a p2pd of our own, which also dials members that only a relay can reach.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import msgpack
import trio

from ftnode.node.home.identity import peer_id_bytes
from ftnode.node.links.addresses import PeerAddress, is_dialable
from ftnode.node.links.p2pd import P2pdError
from ftnode.node.links.side_messages import read_frame, write_frame
from ftnode.node.links.streams import STREAM_ERRORS
from ftnode.node.watch.status import REPLY_BYTES_MAX, STATUS_PROTOCOL, SwarmStatus, decode_status
from ftnode.protocol.wire.frames import clean_reason
from ftnode.protocol.words.errors import PeerError, UserError

ERRORS = "export_search"

CONNECT_SECONDS: Final = 20.0
OPEN_SECONDS: Final = 10.0
ANSWER_SECONDS: Final = 10.0
DIALS_AT_ONCE: Final = 8
ADDRESSES_MAX: Final = 8
MEMBERS_ASKED_MAX: Final = 16
UNAVAILABLE: Final = 69
FAULTS: Final = (P2pdError, PeerError, *STREAM_ERRORS)
"""How a peer fails us."""

Item = TypeVar("Item")


class Dialer(Protocol):
    """What a reader needs of p2pd (p2pd.py)."""

    async def connect(self, peer_id: str, addresses: Sequence[str], seconds: float) -> None: ...

    async def open(self, peer_id: str, protocol: str, seconds: float) -> trio.SocketStream: ...


@dataclass(frozen=True, slots=True)
class AnsweringMember:
    """A peer that takes part in the run, and what it says of it."""

    peer: PeerAddress
    status: SwarmStatus


async def find_member(dialer: Dialer, peers: Sequence[PeerAddress], run: str, seconds: float) -> AnsweringMember:
    """The first of the peers, or of the members that they name, that tells of the run.

    Raises UserError (69) with the reasons when nobody did after `seconds`.
    """
    reasons: dict[str, str] = {}
    asked: set[PeerAddress] = set()
    """With their addresses: one that is old says nothing about the peer."""
    found: list[AnsweringMember] = []

    async def ask(peer: PeerAddress) -> None:
        asked.add(peer)
        reasons[peer.peer_id] = "no answer"
        try:
            status = await ask_status(dialer, peer)
        except FAULTS as error:
            reasons[peer.peer_id] = reason_of(error)
            return
        if status.run == run:
            found.append(AnsweringMember(peer, status))
            scope.cancel()
        elif status.run:
            reasons[peer.peer_id] = f"it takes part in the run {clean_reason(status.run[:12])}"
        else:
            reasons[peer.peer_id] = "it takes part in no run"
            named = [PeerAddress(member.peer, member.addresses) for member in status.members if member.run == run]
            unasked = [member for member in named if member not in asked]
            await side_by_side(ask, unasked[:MEMBERS_ASKED_MAX])

    with trio.move_on_after(seconds) as scope:
        await side_by_side(ask, peers)
    if found:
        return found[0]
    told = "; ".join(f"{peer_id[-6:]}: {reason}" for peer_id, reason in list(reasons.items())[:4])
    raise UserError(
        f"nobody who was asked takes part in the run {run[:12]} ({told or 'no answer'}); pass --peer ADDR of one of "
        "its volunteers, or of their meeting point",
        UNAVAILABLE,
    )


async def ask_status(dialer: Dialer, peer: PeerAddress) -> SwarmStatus:
    """Raises one of FAULTS."""
    stream = await open_stream(dialer, peer, STATUS_PROTOCOL)
    async with stream:
        with trio.fail_after(ANSWER_SECONDS):
            await write_frame(stream, msgpack.packb({"format": 1}))
            return decode_status(await read_frame(stream.receive_some, REPLY_BYTES_MAX))


async def open_stream(dialer: Dialer, peer: PeerAddress, protocol: str) -> trio.SocketStream:
    """What a stranger says of another's addresses is checked before it is dialled. Raises one of FAULTS."""
    addresses = [address for address in peer.addresses if is_dialable(address)][:ADDRESSES_MAX]
    try:
        peer_id_bytes(peer.peer_id)
    except ValueError:
        raise PeerError("that is no PeerId") from None
    if not addresses:
        raise PeerError("it has no address that can be dialled")
    await dialer.connect(peer.peer_id, addresses, CONNECT_SECONDS)
    return await dialer.open(peer.peer_id, protocol, OPEN_SECONDS)


async def side_by_side(work: Callable[[Item], Awaitable[None]], items: Sequence[Item]) -> None:
    """`work`, which raises nothing, on all of them, DIALS_AT_ONCE at a time."""
    limit = trio.CapacityLimiter(DIALS_AT_ONCE)

    async def bounded(item: Item) -> None:
        async with limit:
            await work(item)

    async with trio.open_nursery() as nursery:
        for item in items:
            nursery.start_soon(bounded, item)


def reason_of(error: BaseException) -> str:
    """One line, whoever wrote it."""
    if isinstance(error, trio.TooSlowError):
        return "it does not answer"
    if isinstance(error, EOFError | trio.BrokenResourceError):
        return "it hung up"
    told = " ".join(str(error).split()).rpartition(" * ")[2]  # p2pd lists what it tried; the last is enough
    return clean_reason(told[:200]) or type(error).__name__
