"""Headers of IPv4, TCP and UDP: where a packet comes from and goes to, and the same packet with other addresses."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

TCP: Final = 6
UDP: Final = 17
IP_BYTES: Final = 20
ADDRESSES: Final = slice(12, 20)
IP_CHECKSUM: Final = 10
FRAGMENT: Final = 0x3FFF
"""More fragments follow, or this is a later one."""
CHECKSUM: Final = {TCP: 16, UDP: 6}
"""Where it lies in the header behind that of IP."""
OFFLOAD_HEADER_BYTES: Final = 10
"""struct virtio_net_hdr, which comes before each packet: what the receiving kernel has to know of checksums and
segments."""
NEEDS_CHECKSUM: Final = 1
"""A flag in its first byte. The checksum of TCP or UDP is then that of the addresses alone, not inverted; who takes the
packet in does the rest."""

Endpoint = tuple[int, int]
"""(host, port)."""


@dataclass(frozen=True, slots=True)
class Flow:
    """Whose packet it is."""

    protocol: int
    source: Endpoint
    target: Endpoint


def flow_of(packet: bytes) -> Flow | None:
    """Of a packet behind its offload header; None for what is neither TCP nor UDP, or in fragments."""
    start = OFFLOAD_HEADER_BYTES
    if len(packet) < start + IP_BYTES + 8 or packet[start] >> 4 != 4:
        return None
    protocol = packet[start + 9]
    (fragment,) = struct.unpack_from("!H", packet, start + 6)
    if protocol not in CHECKSUM or fragment & FRAGMENT:
        return None
    inner = start + 4 * (packet[start] & 0xF)
    if len(packet) < inner + CHECKSUM[protocol] + 2:
        return None
    source, target = struct.unpack_from("!II", packet, start + ADDRESSES.start)
    ports = struct.unpack_from("!HH", packet, inner)
    return Flow(protocol, (source, ports[0]), (target, ports[1]))


def rewritten(packet: bytes, flow: Flow, source: Endpoint | None = None, target: Endpoint | None = None) -> bytes:
    """The same packet from `source` and to `target` (None: as it was), with checksums that are right again."""
    source, target = source or flow.source, target or flow.target
    start = OFFLOAD_HEADER_BYTES
    inner = start + 4 * (packet[start] & 0xF)
    data = bytearray(packet)
    before = data[start + ADDRESSES.start : start + ADDRESSES.stop], data[inner : inner + 4]
    struct.pack_into("!II", data, start + ADDRESSES.start, source[0], target[0])
    struct.pack_into("!HH", data, inner, source[1], target[1])
    hosts = _difference(before[0], data[start + ADDRESSES.start : start + ADDRESSES.stop])
    ports = _difference(before[1], data[inner : inner + 4])
    _add(data, start + IP_CHECKSUM, hosts)
    place = inner + CHECKSUM[flow.protocol]
    if packet[0] & NEEDS_CHECKSUM:
        _add(data, place, hosts, inverted=False)
    elif flow.protocol == TCP or data[place : place + 2] != b"\0\0":  # without one, UDP has 0
        _add(data, place, hosts + ports)
    return bytes(data)


def _difference(before: bytes | bytearray, after: bytes | bytearray) -> int:
    """Of two sums of 16-bit words, one's complement."""
    return _sum(after) - _sum(before)


def _sum(data: bytes | bytearray) -> int:
    total = 0
    for (word,) in struct.iter_unpack("!H", data):
        total += word
    return total


def _add(data: bytearray, place: int, difference: int, inverted: bool = True) -> None:
    """RFC 1624: HC' = ~(~HC + ~m + m')."""
    (checksum,) = struct.unpack_from("!H", data, place)
    total = ((checksum ^ 0xFFFF) if inverted else checksum) + difference
    total %= 0xFFFF
    struct.pack_into("!H", data, place, (total ^ 0xFFFF) if inverted else total)
