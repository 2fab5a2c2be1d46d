"""Routers that translate addresses: whom they let in, by kind, and that what they pass on is sound."""

from __future__ import annotations

import ipaddress
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ftnode.lab.lines.headers import (
    NEEDS_CHECKSUM,
    OFFLOAD_HEADER_BYTES,
    TCP,
    UDP,
    Endpoint,
    flow_of,
    rewritten,
)  # fmt: skip
from ftnode.lab.lines.network import open_network
from ftnode.lab.lines.router import KINDS, REMEMBERED_SECONDS, Router
from ftnode.lab.lines.switch import Homes, address
from tests.namespaces import skipped_without_namespaces

ROUTER = int(ipaddress.IPv4Address("44.77.0.1"))
HOME = (int(ipaddress.IPv4Address("192.168.1.2")), 4101)
POINT, PEER = (int(ipaddress.IPv4Address("44.77.0.8")), 31337), (int(ipaddress.IPv4Address("44.77.0.9")), 4101)
OTHER_PORT = (PEER[0], 4102)


def total(data: bytes) -> int:
    """One's complement sum of 16-bit words: 0xFFFF where a checksum is right."""
    data += bytes(len(data) % 2)
    words = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while words > 0xFFFF:
        words = (words & 0xFFFF) + (words >> 16)
    return words


def pseudo(packet: bytes) -> bytes:
    """What TCP and UDP sum besides themselves (RFC 9293, 3.1)."""
    ip = packet[OFFLOAD_HEADER_BYTES:]
    return ip[12:20] + struct.pack("!BBH", 0, ip[9], len(ip) - 20)


def packet_of(protocol: int, source: Endpoint, target: Endpoint, offload: bytes = bytes(OFFLOAD_HEADER_BYTES)) -> bytes:
    """With right checksums, or with a partial one where `offload` says so."""
    ports = struct.pack("!HH", source[1], target[1])
    body = ports + (struct.pack("!HH", 13, 0) + b"hello" if protocol == UDP else bytes(12) + bytes(4) + b"hello")
    place = {UDP: 6, TCP: 16}[protocol]
    head = struct.pack("!BBHHHBBHII", 0x45, 0, 20 + len(body), 7, 0, 64, protocol, 0, source[0], target[0])
    head = head[:10] + struct.pack("!H", total(head) ^ 0xFFFF) + head[12:]
    partial = total(pseudo(offload + head + body))
    checksum = partial if offload[0] & NEEDS_CHECKSUM else total(pseudo(offload + head + body) + body) ^ 0xFFFF
    return offload + head + body[:place] + struct.pack("!H", checksum) + body[place + 2 :]


def sent(router: Router, target: Endpoint, protocol: int = UDP, now: float = 0.0) -> Endpoint:
    """Where a packet from the home comes from, to those outside."""
    packet = router.outward(now, packet_of(protocol, HOME, target))
    assert packet is not None
    flow = flow_of(packet)
    assert flow is not None and flow.target == target
    return flow.source


def comes_in(router: Router, source: Endpoint, target: Endpoint, protocol: int = UDP, now: float = 0.0) -> bool:
    packet = router.inward(now, packet_of(protocol, source, target))
    flow = flow_of(packet) if packet is not None else None
    assert flow is None or (flow.source, flow.target) == (source, HOME)
    return flow is not None


@pytest.mark.parametrize("protocol", [TCP, UDP])
@pytest.mark.parametrize(
    ("kind", "strangers", "other_port", "same_outside"),
    [
        ("full-cone", True, True, True),
        ("address-restricted", False, True, True),
        ("port-restricted", False, False, True),
        ("symmetric", False, False, False),
    ],
)
def test_whom_a_router_lets_in(kind: str, strangers: bool, other_port: bool, same_outside: bool, protocol: int) -> None:
    router = Router(KINDS[kind], ROUTER)
    assert not comes_in(router, PEER, (ROUTER, HOME[1]), protocol), "nothing was sent yet"
    at_point = sent(router, POINT, protocol)
    assert at_point[0] == ROUTER and at_point[1] != HOME[1]
    assert comes_in(router, POINT, at_point, protocol)
    assert comes_in(router, PEER, at_point, protocol) == strangers
    at_peer = sent(router, PEER, protocol)
    assert (at_peer == at_point) == same_outside
    assert comes_in(router, PEER, at_peer, protocol)
    assert comes_in(router, OTHER_PORT, at_peer, protocol) == other_port
    assert not comes_in(router, PEER, (PEER[0], at_peer[1]), protocol), "for another router"


def test_what_is_sent_nothing_for_long_is_shut_again() -> None:
    router = Router(KINDS["full-cone"], ROUTER)
    place = sent(router, POINT)
    assert comes_in(router, POINT, place, now=REMEMBERED_SECONDS[UDP])
    assert not comes_in(router, POINT, place, now=REMEMBERED_SECONDS[UDP] + 1)
    restricted = Router(KINDS["port-restricted"], ROUTER)
    place = sent(restricted, PEER)
    sent(restricted, POINT, now=REMEMBERED_SECONDS[UDP] - 1)
    assert not comes_in(restricted, PEER, place, now=REMEMBERED_SECONDS[UDP] + 1)


@pytest.mark.parametrize("protocol", [TCP, UDP])
def test_checksums_are_right_again(protocol: int) -> None:
    before = packet_of(protocol, HOME, PEER)
    flow = flow_of(before)
    assert flow is not None
    after = rewritten(before, flow, source=(ROUTER, 20001))
    assert total(after[OFFLOAD_HEADER_BYTES : OFFLOAD_HEADER_BYTES + 20]) == 0xFFFF
    assert total(pseudo(after) + after[OFFLOAD_HEADER_BYTES + 20 :]) == 0xFFFF
    partial = packet_of(protocol, HOME, PEER, bytes([NEEDS_CHECKSUM, *bytes(OFFLOAD_HEADER_BYTES - 1)]))
    after = rewritten(partial, flow, source=(ROUTER, 20001))
    place = OFFLOAD_HEADER_BYTES + 20 + {UDP: 6, TCP: 16}[protocol]
    assert struct.unpack_from("!H", after, place)[0] == total(pseudo(after))


def test_what_is_no_packet_of_tcp_or_udp_is_dropped() -> None:
    router, whole = Router(KINDS["full-cone"], ROUTER), packet_of(UDP, HOME, PEER)
    fragment = bytearray(whole)
    fragment[OFFLOAD_HEADER_BYTES + 6] = 0x20
    for packet in (b"", whole[:30], bytes(fragment), bytes(80)):
        assert router.outward(0.0, packet) is None and router.inward(0.0, packet) is None


ECHO = "import socket; s = socket.socket(type=socket.SOCK_{kind}); s.bind(('{host}', 4101))"
TCP_SERVE = "s.listen(); print(flush=True); c, who = s.accept(); c.sendall(who[0].encode()); print(len(c.recv(9)))"
UDP_SERVE = "print(flush=True); data, who = s.recvfrom(9); s.sendto(who[0].encode(), who)"
TCP_ASK = "s.connect(('{host}', 4101)); print(s.recv(99).decode()); s.sendall(b'thanks')"
UDP_ASK = "s.sendto(b'hello', ('{host}', 4101)); print(s.recv(99).decode())"


@pytest.mark.parametrize(("kind", "serve", "ask"), [("STREAM", TCP_SERVE, TCP_ASK), ("DGRAM", UDP_SERVE, UDP_ASK)])
def test_kernels_on_both_sides_of_two_routers_take_what_they_pass_on(
    tmp_path: Path, kind: str, serve: str, ask: str
) -> None:
    rate = 1e7
    wanted = Homes(((rate, rate), (rate, rate)), 0.001, str(tmp_path / "counts.jsonl"), ("none", "two"))
    with skipped_without_namespaces(), open_network(("point", "home"), wanted) as places:
        opened = ECHO.format(kind=kind, host=address(0))
        point = subprocess.Popen(
            [*places["point"].enter, sys.executable, "-c", f"{opened}; {serve}"], stdout=subprocess.PIPE
        )
        assert point.stdout is not None
        point.stdout.readline()
        said = f"{ECHO.format(kind=kind, host=wanted.inside(1))}; s.settimeout(9); {ask.format(host=address(0))}"
        told = subprocess.run(
            [*places["home"].enter, sys.executable, "-c", said], check=True, capture_output=True, text=True
        )
        assert told.stdout.strip() == address(1), "the outer router's address, not the home's"
        assert point.wait(timeout=9) == 0
