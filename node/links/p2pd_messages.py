"""What p2pd and relays are told, and what they answer: p2pd_wire.proto in the words of this node.

Every message on p2pd's socket follows a varint with its length. `make messages` generates p2pd_wire_pb2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Final, TypeVar

from google.protobuf.message import DecodeError, Message
from google.protobuf.proto import serialize_length_prefixed

from ftnode.node.links.p2pd_wire_pb2 import (
    CircuitPeer,
    ConnectRequest,
    DisconnectRequest,
    HopMessage,
    Request,
    StopMessage,
    StreamHandlerRequest,
    StreamOpenRequest,
)
from ftnode.node.links.p2pd_wire_pb2 import Reservation as ReservationOfRelay
from ftnode.node.links.p2pd_wire_pb2 import Response as WireResponse
from ftnode.node.links.p2pd_wire_pb2 import StreamInfo as WireStreamInfo
from ftnode.node.links.relay_words import OK

MESSAGE_BYTES_MAX: Final = 1 << 20
"""Far above any control message; guards the length that we allocate."""
UNIX_PROTOCOL: Final = b"\x90\x03"
"""Multicodec 400 of /unix, as a varint."""
UNIX_PATH_BYTES_MAX: Final = 127
"""So that its length is a varint of one byte; the kernel takes 107 at most."""

AnyMessage = TypeVar("AnyMessage", bound=Message)


@dataclass(frozen=True, slots=True)
class Response:
    """What p2pd answers. `error` is empty when it did what was asked."""

    error: str
    peer_id: bytes
    addresses: tuple[bytes, ...]
    connections: tuple[tuple[bytes, bytes], ...]
    """(PeerId, address at the other end) of each."""
    address: bytes
    """At the other end of the stream that was opened."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """First message on a stream: who is at the other end, authenticated by p2pd, where, and for which protocol."""

    peer_id: bytes
    protocol: str
    address: bytes


@dataclass(frozen=True, slots=True)
class Reservation:
    """A relay's answer (HopMessage of libp2p's spec circuit-v2). `status` 100 is yes; limits of 0 are none."""

    status: int
    expires_unix_seconds: int
    addresses: tuple[bytes, ...]
    """The relay's public ones, with /p2p."""
    duration_seconds: int
    data_bytes: int
    """What one circuit may carry each way."""


@dataclass(frozen=True, slots=True)
class AskedOfRelay:
    """What a peer wants of us as its relay: a circuit to `wanted`, or a place of its own when that is empty."""

    wanted: bytes


def identify() -> bytes:
    return _framed(Request(type=Request.IDENTIFY))


def connect(peer_id: bytes, addresses: Sequence[bytes], timeout_seconds: int) -> bytes:
    asked = ConnectRequest(peer=peer_id, addresses=addresses, timeout_seconds=timeout_seconds)
    return _framed(Request(type=Request.CONNECT, connect=asked))


def stream_open(peer_id: bytes, protocol: str, timeout_seconds: int) -> bytes:
    asked = StreamOpenRequest(peer=peer_id, protocols=[protocol], timeout_seconds=timeout_seconds)
    return _framed(Request(type=Request.STREAM_OPEN, stream_open=asked))


def stream_handler(socket_path: str, protocol: str) -> bytes:
    """Streams for `protocol` shall be delivered to our unix socket. `balanced` is a required field."""
    asked = StreamHandlerRequest(address=unix_multiaddr(socket_path), protocols=[protocol], balanced=False)
    return _framed(Request(type=Request.STREAM_HANDLER, stream_handler=asked))


def list_peers() -> bytes:
    return _framed(Request(type=Request.LIST_PEERS))


def disconnect(peer_id: bytes) -> bytes:
    return _framed(Request(type=Request.DISCONNECT, disconnect=DisconnectRequest(peer=peer_id)))


def stay_connected() -> bytes:
    """Make this control connection one whose end matters: p2pd ends itself when the last such connection does."""
    return _framed(Request(type=Request.PERSISTENT_CONN_UPGRADE))


def reserve() -> bytes:
    """Ask a relay for a place."""
    return _framed(HopMessage(type=HopMessage.RESERVE))


def circuit(peer_id: bytes) -> bytes:
    """Ask a relay for a circuit to a peer that has a place there."""
    return _framed(HopMessage(type=HopMessage.CONNECT, peer=CircuitPeer(id=peer_id)))


def place_given(expires_unix_seconds: int, addresses: Sequence[bytes]) -> bytes:
    """A relay's answer to `reserve`. Without limits in it, no circuit has any that its ends know of."""
    given = ReservationOfRelay(expires_unix_seconds=expires_unix_seconds, addresses=addresses)
    return _framed(HopMessage(type=HopMessage.STATUS, status=OK, reservation=given))


def relay_status(status: int) -> bytes:
    """A relay's answer to `circuit`, or its refusal of a place."""
    return _framed(HopMessage(type=HopMessage.STATUS, status=status))


def stop_connect(peer_id: bytes) -> bytes:
    """A relay to who has a place there: this peer wants a circuit to you."""
    return _framed(StopMessage(type=StopMessage.CONNECT, peer=CircuitPeer(id=peer_id)))


async def read_message(read_exactly: Callable[[int], Awaitable[bytes | bytearray]]) -> bytes:
    """One varint-delimited message. Reads no byte beyond it, for those belong to the stream.

    Raises ValueError when the length is absurd, and what `read_exactly` raises.
    """
    size = shift = 0
    while True:
        byte = (await read_exactly(1))[0]
        size |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            break
        if shift > 28:
            raise ValueError("length of a control message does not end")
    if size > MESSAGE_BYTES_MAX:
        raise ValueError(f"control message of {size} bytes")
    return bytes(await read_exactly(size))


def unix_multiaddr(path: str) -> bytes:
    """/unix/... as this p2pd reads it: the length, then the path with its leading slash.

    The package multiaddr writes the path without that slash, so this one address is written here.
    """
    data = path.encode()
    assert len(data) <= UNIX_PATH_BYTES_MAX, path
    return UNIX_PROTOCOL + bytes([len(data)]) + data


def read_reservation(data: bytes) -> Reservation:
    """Parse the answer to `reserve`, or to `circuit`, which has a status alone. Raises ValueError when it is none."""
    answer = _parsed(HopMessage(), data)
    return Reservation(
        status=answer.status,
        expires_unix_seconds=answer.reservation.expires_unix_seconds,
        addresses=tuple(answer.reservation.addresses),
        duration_seconds=answer.limit.duration_seconds,
        data_bytes=answer.limit.data_bytes,
    )


def read_asked_of_relay(data: bytes) -> AskedOfRelay:
    """Parse `reserve` or `circuit`. Raises ValueError when it is neither."""
    asked = _parsed(HopMessage(), data)
    if asked.type == HopMessage.RESERVE:
        return AskedOfRelay(b"")
    if asked.type != HopMessage.CONNECT or not asked.peer.id:
        raise ValueError("a relay was asked for nothing that there is")
    return AskedOfRelay(asked.peer.id)


def read_stop_status(data: bytes) -> int:
    """Parse the answer to `stop_connect`. Raises ValueError when it is none."""
    return _parsed(StopMessage(), data).status


def read_response(data: bytes) -> Response:
    """Parse a Response. Raises ValueError when it is not one."""
    answer = _parsed(WireResponse(), data)
    error = answer.error.text.decode(errors="replace") or "no reason given"
    return Response(
        error=error if answer.type == WireResponse.ERROR else "",
        peer_id=answer.identify.peer,
        addresses=tuple(answer.identify.addresses),
        connections=tuple((peer.peer, next(iter(peer.addresses), b"")) for peer in answer.peers),
        address=answer.stream.address,
    )


def read_stream_info(data: bytes) -> StreamInfo:
    """Parse a StreamInfo. Raises ValueError when it is not one."""
    info = _parsed(WireStreamInfo(), data)
    if not info.peer or not info.protocol:
        raise ValueError("stream without a peer or a protocol")
    return StreamInfo(info.peer, info.protocol.decode(), info.address)


def _framed(message: Message) -> bytes:
    out = BytesIO()
    serialize_length_prefixed(message, out)
    return out.getvalue()


def _parsed(message: AnyMessage, data: bytes) -> AnyMessage:
    """`message`, filled from `data`. Raises ValueError when a required field is missing or it cannot be read."""
    try:
        message.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(str(error)) from None
    if not message.IsInitialized():
        raise ValueError(f"a {type(message).__name__} lacks a field that it must have")
    return message
