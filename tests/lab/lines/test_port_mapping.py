"""Routers that keep a port open for who asks by NAT-PMP or UPnP: what they answer, and that strangers get in."""

from __future__ import annotations

import ipaddress
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ftnode.lab.lines import upnp
from ftnode.lab.lines.headers import TCP, UDP, Endpoint, flow_of
from ftnode.lab.lines.nat_pmp import answer_to
from ftnode.lab.lines.network import open_network
from ftnode.lab.lines.router import ALL_KINDS, MAPPINGS, NAT_PMP, UPNP, Router
from ftnode.lab.lines.switch import Homes, address
from tests.lab.lines.test_router import HOME, OTHER_PORT, PEER, POINT, ROUTER, comes_in, packet_of, sent
from tests.namespaces import skipped_without_namespaces

INSIDE = "192.168.1.1"


def asked(router: Router, request: bytes, now: float = 0.0) -> bytes:
    """By NAT-PMP, from the home."""
    return answer_to(request, router, HOME[0], now)


def called(router: Router, action: str, now: float = 0.0, **arguments: object) -> str:
    """By UPnP, from the home: the page that is answered."""
    fields = "".join(f"<{name}>{value}</{name}>" for name, value in arguments.items())
    body = (
        '<?xml version="1.0"?><s:Envelope xmlns:s="http://schemas.xmlsoap.org/soap/envelope/"><s:Body>'
        f'<u:{action} xmlns:u="{upnp.SERVICE}">{fields}</u:{action}></s:Body></s:Envelope>'
    )
    return posted(router, action, body, now)


def posted(router: Router, action: str, body: str, now: float = 0.0) -> str:
    head = f'POST /control HTTP/1.1\r\nContent-Length: {len(body)}\r\nSOAPAction: "{upnp.SERVICE}#{action}"\r\n\r\n'
    request = (head + body).encode()
    for count in (0, len(head) - 2, len(request) - 1):
        assert upnp.http_answer(request[:count], router, HOME[0], now) == b"", "more will come"
    return upnp.http_answer(request, router, HOME[0], now).decode()


def mapping(outside: int, seconds: int = 60, inside: int = HOME[1], protocol: str = "TCP") -> dict[str, object]:
    """Arguments of AddPortMapping, in the order in which the standard has them."""
    return {
        "NewRemoteHost": "", "NewExternalPort": outside, "NewProtocol": protocol, "NewInternalPort": inside,
        "NewInternalClient": ipaddress.IPv4Address(HOME[0]), "NewEnabled": 1, "NewPortMappingDescription": "a &amp; b",
        "NewLeaseDuration": seconds,
    }  # fmt: skip


def test_by_nat_pmp_a_port_is_kept_open_for_everybody_as_long_as_was_asked_for() -> None:
    """Requests and answers as RFC 6886 has them, 3.2 and 3.3."""
    router = Router(ALL_KINDS[NAT_PMP], ROUTER)
    assert asked(router, bytes.fromhex("0000"), now=7.0) == bytes.fromhex("0080 0000 00000007 2c4d0001")
    request = struct.pack("!BBHHHI", 0, 2, 0, HOME[1], 0, 60)
    answer = asked(router, request, now=0.0)
    kind, code, inside, outside, seconds = struct.unpack("!xBH4xHHI", answer)
    assert (kind, code, inside, seconds) == (130, 0, HOME[1], 60)
    assert comes_in(router, PEER, (ROUTER, outside), TCP, now=59.0)
    assert not comes_in(router, PEER, (ROUTER, outside), TCP, now=61.0)
    assert asked(router, request, now=61.0) == struct.pack("!BBHIHHI", 0, 130, 0, 61, HOME[1], outside, 60)
    assert comes_in(router, PEER, (ROUTER, outside), TCP, now=62.0)
    asked(router, request[:-4] + bytes(4), now=63.0)
    assert not comes_in(router, PEER, (ROUTER, outside), TCP, now=64.0), "0 s end it"


def test_by_nat_pmp_a_port_that_is_wanted_is_given_where_it_is_free() -> None:
    router = Router(ALL_KINDS[NAT_PMP], ROUTER)
    taken = sent(router, POINT, TCP)[1]
    for wanted, given in ((40_000, 40_000), (40_000, 40_000), (taken, taken)):
        answer = asked(router, struct.pack("!BBHHHI", 0, 2, 0, HOME[1], wanted, 60))
        assert struct.unpack("!H", answer[10:12]) == (given,) and comes_in(router, PEER, (ROUTER, given), TCP)
    assert sent(router, PEER, TCP)[1] == taken, "the last port that a packet of this peer came to"
    comes_in(router, PEER, (ROUTER, 40_000), TCP)
    assert sent(router, PEER, TCP)[1] == 40_000 and sent(router, OTHER_PORT, TCP)[1] == taken
    answer = asked(router, struct.pack("!BBHHHI", 0, 2, 0, HOME[1] + 1, 40_000, 60))
    assert struct.unpack("!H", answer[10:12]) != (40_000,), "another one has it"


def test_what_is_no_request_of_nat_pmp() -> None:
    router = Router(ALL_KINDS[NAT_PMP], ROUTER)
    assert asked(router, b"\x00\x09" + bytes(10)) == struct.pack("!BBHI", 0, 137, 5, 0)
    assert asked(router, b"\x01\x02" + bytes(10)) == asked(router, b"") == b""


def test_by_upnp_a_port_is_kept_open_for_everybody_as_long_as_was_asked_for() -> None:
    router = Router(ALL_KINDS[UPNP], ROUTER)
    assert "<NewExternalIPAddress>44.77.0.1</NewExternalIPAddress>" in called(router, "GetExternalIPAddress")
    assert "<NewNATEnabled>1</NewNATEnabled>" in called(router, "GetNATRSIPStatus")
    assert "<NewConnectionStatus>Connected</NewConnectionStatus>" in called(router, "GetStatusInfo")
    assert not comes_in(router, PEER, (ROUTER, 40_000), TCP)
    assert called(router, "AddPortMapping", **mapping(40_000)).startswith("HTTP/1.1 200 OK")
    assert comes_in(router, PEER, (ROUTER, 40_000), TCP, now=59.0)
    assert not comes_in(router, PEER, (ROUTER, 40_000), UDP, now=59.0), "only what was asked for"
    assert not comes_in(router, PEER, (ROUTER, 40_000), TCP, now=61.0)
    called(router, "AddPortMapping", now=61.0, **mapping(40_000, seconds=0))
    assert comes_in(router, PEER, (ROUTER, 40_000), TCP, now=9_999.0), "0 s: until it is ended"
    which = {"NewRemoteHost": "", "NewExternalPort": 40_000, "NewProtocol": "TCP"}
    assert called(router, "DeletePortMapping", now=9_999.0, **which).startswith("HTTP/1.1 200 OK")
    assert not comes_in(router, PEER, (ROUTER, 40_000), TCP, now=9_999.0)
    assert "<errorCode>714<" in called(router, "DeletePortMapping", now=9_999.0, **which), "no such entry"


def test_by_upnp_nobody_gets_a_port_of_another_or_for_another() -> None:
    router = Router(ALL_KINDS[UPNP], ROUTER)
    router.keep_open(0.0, TCP, (HOME[0] + 1, 9), 40_000, 60)
    assert "<errorCode>718<" in called(router, "AddPortMapping", **mapping(40_000)), "conflict"
    assert "<errorCode>714<" in called(router, "DeletePortMapping", NewExternalPort=40_000, NewProtocol="TCP")
    assert comes_in_at(router, 40_000) == (HOME[0] + 1, 9)
    other = mapping(40_001) | {"NewInternalClient": ipaddress.IPv4Address(HOME[0] + 1)}
    assert "<errorCode>606<" in called(router, "AddPortMapping", **other), "not authorized"
    assert comes_in_at(router, 40_001) is None


def comes_in_at(router: Router, port: int) -> Endpoint | None:
    """Who is inside at this port for everybody."""
    packet = router.inward(0.0, packet_of(TCP, PEER, (ROUTER, port)))
    flow = flow_of(packet) if packet is not None else None
    return flow.target if flow is not None else None


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"NewExternalPort": 0}, 402), ({"NewExternalPort": 65_536}, 402), ({"NewExternalPort": "x"}, 402),
        ({"NewExternalPort": "9" * 5_000}, 402), ({"NewProtocol": "SCTP"}, 402), ({"NewLeaseDuration": -1}, 402),
        ({"NewInternalPort": ""}, 402), ({"NewInternalClient": ""}, 606),
    ],
)  # fmt: skip
def test_by_upnp_odd_arguments_are_refused(changed: dict[str, object], code: int) -> None:
    router = Router(ALL_KINDS[UPNP], ROUTER)
    assert f"<errorCode>{code}<" in called(router, "AddPortMapping", **mapping(40_000) | changed)
    assert comes_in_at(router, 40_000) is None


def test_what_is_no_request_of_upnp() -> None:
    router = Router(ALL_KINDS[UPNP], ROUTER)
    assert "<errorCode>401<" in called(router, "Reboot"), "no such action"
    for body in ("", "<a>", '<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>'):
        assert "<errorCode>402<" in posted(router, "AddPortMapping", body)
    for request, status in (
        (b"GET / HTTP/1.1\r\n\r\n", b"404"), (b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n", b"400"),
        (b"POST /control HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n", b"400"), (b"x" * 20_000, b"400"),
    ):  # fmt: skip
        assert upnp.http_answer(request, router, HOME[0], 0.0).startswith(b"HTTP/1.1 " + status)


def test_who_looks_for_something_else_is_not_answered() -> None:
    for wanted, found in ((upnp.CONNECTION, upnp.CONNECTION), ("ssdp:all", upnp.GATEWAY), ("upnp:rootdevice",) * 2):
        answer = upnp.search_answer(f"M-SEARCH * HTTP/1.1\r\nST: {wanted}\r\n\r\n".encode(), INSIDE).decode()
        assert f"\r\nST: {found}\r\n" in answer and f"\r\nLOCATION: http://{INSIDE}:5000/" in answer
    for request in (b"", b"NOTIFY * HTTP/1.1\r\n\r\n", b"M-SEARCH * HTTP/1.1\r\nST: urn:a-printer\r\n\r\n"):
        assert upnp.search_answer(request, INSIDE) == b""


SERVE = """
import socket, struct, sys
s = socket.socket(); s.bind(("", 4101)); s.listen()
router, own, kind = sys.argv[1:]
asks = socket.socket(type=socket.SOCK_DGRAM); asks.settimeout(9)
if kind == "nat-pmp":
    asks.sendto(struct.pack("!BBHHHI", 0, 2, 0, 4101, 40000, 60), (router, 5351))
    asks.recv(99)
else:
    import re, urllib.request
    st = "urn:schemas-upnp-org:device:WANConnectionDevice:1"
    asks.sendto(f'M-SEARCH * HTTP/1.1\\r\\nMAN: "ssdp:discover"\\r\\nMX: 1\\r\\nST: {st}\\r\\n\\r\\n'.encode(),
                ("239.255.255.250", 1900))
    where = re.search("LOCATION: (.*)\\r\\n", asks.recv(999).decode())[1]
    page = urllib.request.urlopen(where, timeout=9).read().decode()
    service = re.search("<serviceType>(.*?)</serviceType>", page)[1]
    control = re.search("<controlURL>(.*?)</controlURL>", page)[1]
    fields = {"NewExternalPort": 40000, "NewProtocol": "TCP", "NewInternalPort": 4101, "NewInternalClient": own,
              "NewLeaseDuration": 60}
    body = "".join(f"<{k}>{v}</{k}>" for k, v in fields.items())
    headers = {"SOAPAction": f'"{service}#AddPortMapping"'}
    call = urllib.request.Request(where.replace("/description.xml", control), f"<a>{body}</a>".encode(), headers)
    urllib.request.urlopen(call, timeout=9).read()
print("asked", flush=True)
s.settimeout(9); c, who = s.accept(); c.sendall(who[0].encode()); c.recv(9)
"""
DIAL = "import socket; s = socket.create_connection(('{host}', 40000), 9); print(s.recv(99).decode())"


@pytest.mark.parametrize("kind", MAPPINGS)
def test_strangers_get_in_at_a_port_that_was_asked_for_over_the_network(tmp_path: Path, kind: str) -> None:
    rate = 1e7
    wanted = Homes(((rate, rate), (rate, rate)), 0.001, str(tmp_path / "counts.jsonl"), ("none", kind))
    with skipped_without_namespaces(), open_network(("stranger", "home"), wanted) as places:
        asks = (*places["home"].enter, sys.executable, "-c", SERVE, wanted.router(1), wanted.inside(1), kind)
        home = subprocess.Popen(asks, stdout=subprocess.PIPE)
        assert home.stdout is not None and home.stdout.readline() == b"asked\n"
        dials = (*places["stranger"].enter, sys.executable, "-c", DIAL.format(host=address(1)))
        told = subprocess.run(dials, check=True, capture_output=True, text=True)
        assert told.stdout.strip() == address(0), "who dials is not translated"
        assert home.wait(timeout=9) == 0
        said = (tmp_path / "counts.log").read_text()
        assert re.search(rf"router {re.escape(wanted.router(1))} was asked by {re.escape(wanted.inside(1))}: ", said)
