"""The few protobuf messages of p2pd's control protocol and of relays, encoded by hand.

The generated module lives in hivemind, whose import loads torch and clashes with libp2p's own symbols. Field numbers
are those of go-libp2p-daemon's p2pd.proto (proto2). Every message on the socket follows a varint with its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

VARINT_BYTES_MAX = 10
MESSAGE_BYTES_MAX = 1 << 20
"""Far above any control message; guards the length that we allocate."""
LENGTH_DELIMITED = 2
VARINT = 0
UNIX_PROTOCOL = 400
"""Multicodec of /unix."""


class Kind(IntEnum):
    """Request.Type."""

    IDENTIFY = 0
    CONNECT = 1
    STREAM_OPEN = 2
    STREAM_HANDLER = 3
    LIST_PEERS = 5
    DISCONNECT = 7
    PERSISTENT_CONN_UPGRADE = 9


@dataclass(frozen=True, slots=True)
class Response:
    """What p2pd answers. `error` is empty when it did what was asked."""

    error: str
    peer_id: bytes
    addresses: tuple[bytes, ...]
    connections: tuple[tuple[bytes, bytes], ...]
    """(PeerId, address at the other end) of each."""


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """First message on an inbound stream: who opened it, authenticated by p2pd, and for which protocol."""

    peer_id: bytes
    protocol: str


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


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return varint(field << 3 | VARINT) + varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return varint(field << 3 | LENGTH_DELIMITED) + varint(len(value)) + value


def _request(kind: Kind, body: bytes = b"") -> bytes:
    message = _number(1, kind) + body
    return varint(len(message)) + message


def _addressed(peer_id: bytes, field: int, items: Iterable[bytes], timeout_seconds: int) -> bytes:
    """ConnectRequest and StreamOpenRequest look alike: peer, a list, a timeout in whole seconds."""
    return _bytes(1, peer_id) + b"".join(_bytes(field, item) for item in items) + _number(3, timeout_seconds)


def identify() -> bytes:
    return _request(Kind.IDENTIFY)


def connect(peer_id: bytes, addresses: Sequence[bytes], timeout_seconds: int) -> bytes:
    return _request(Kind.CONNECT, _bytes(2, _addressed(peer_id, 2, addresses, timeout_seconds)))


def stream_open(peer_id: bytes, protocol: str, timeout_seconds: int) -> bytes:
    return _request(Kind.STREAM_OPEN, _bytes(3, _addressed(peer_id, 2, [protocol.encode()], timeout_seconds)))


def stream_handler(socket_path: str, protocol: str) -> bytes:
    """Streams for `protocol` shall be delivered to our unix socket. `balanced` is a required field."""
    body = _bytes(1, unix_multiaddr(socket_path)) + _bytes(2, protocol.encode()) + _number(3, 0)
    return _request(Kind.STREAM_HANDLER, _bytes(4, body))


def list_peers() -> bytes:
    return _request(Kind.LIST_PEERS)


def disconnect(peer_id: bytes) -> bytes:
    return _request(Kind.DISCONNECT, _bytes(7, _bytes(1, peer_id)))


def stay_connected() -> bytes:
    """Make this control connection one whose end matters: p2pd ends itself when the last such connection does."""
    return _request(Kind.PERSISTENT_CONN_UPGRADE)


def reserve() -> bytes:
    """Ask a relay for a place: HopMessage{type: RESERVE}."""
    message = _number(1, 0)
    return varint(len(message)) + message


def unix_multiaddr(path: str) -> bytes:
    """/unix/... as this p2pd reads it: the length, then the path with its leading slash."""
    data = path.encode()
    return varint(UNIX_PROTOCOL) + varint(len(data)) + data


def _take_varint(data: bytes, at: int) -> tuple[int, int]:
    number = 0
    for index in range(VARINT_BYTES_MAX):
        if at + index >= len(data):
            break
        number |= (data[at + index] & 0x7F) << 7 * index
        if not data[at + index] & 0x80:
            return number, at + index + 1
    raise ValueError("varint does not end")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) pairs in order. Raises ValueError for wire types that p2pd never sends."""
    at = 0
    while at < len(data):
        key, at = _take_varint(data, at)
        value, at = _take_varint(data, at)
        if key & 7 == VARINT:
            yield key >> 3, value
        elif key & 7 == LENGTH_DELIMITED and at + value <= len(data):
            yield key >> 3, data[at : at + value]
            at += value
        else:
            raise ValueError(f"field {key >> 3} cannot be read")


def _contents(data: bytes, field: int) -> list[bytes]:
    return [value for number, value in _fields(data) if number == field and isinstance(value, bytes)]


def _first(data: bytes, field: int) -> bytes:
    return next(iter(_contents(data, field)), b"")


def _integer(data: bytes, field: int) -> int:
    return next((value for number, value in _fields(data) if number == field and isinstance(value, int)), 0)


def read_reservation(data: bytes) -> Reservation:
    """Parse the answer to `reserve`. Raises ValueError when it is none."""
    place, limit = _first(data, 3), _first(data, 4)
    return Reservation(
        status=_integer(data, 5),
        expires_unix_seconds=_integer(place, 1),
        addresses=tuple(_contents(place, 2)),
        duration_seconds=_integer(limit, 1),
        data_bytes=_integer(limit, 2),
    )


def read_response(data: bytes) -> Response:
    """Parse a Response. Raises ValueError when it is not one."""
    kind = next((value for number, value in _fields(data) if number == 1), None)
    if kind not in (0, 1):
        raise ValueError("response without a type")
    error = _first(_first(data, 2), 1).decode(errors="replace") or "no reason given"
    identity = _first(data, 4)
    return Response(
        error=error if kind == 1 else "",
        peer_id=_first(identity, 1),
        addresses=tuple(_contents(identity, 2)),
        connections=tuple((_first(peer, 1), _first(peer, 2)) for peer in _contents(data, 6)),
    )


def read_stream_info(data: bytes) -> StreamInfo:
    """Parse a StreamInfo. Raises ValueError when it is not one."""
    peer_id, protocol = _first(data, 1), _first(data, 3)
    if not peer_id or not protocol:
        raise ValueError("stream without a peer or a protocol")
    return StreamInfo(peer_id, protocol.decode())
