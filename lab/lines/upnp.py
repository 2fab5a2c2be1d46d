"""UPnP: what a router answers to a machine behind it that looks for a gateway and wants a port of its own kept open.

A machine shouts to everybody near it (SSDP; UPnP Device Architecture 1.0, 1.2), is told where the router's description
lies, reads there which service keeps ports open (WANIPConnection:1), and asks that one by SOAP over HTTP. Of what the
service can do there is what p2pd uses: to open, to close and to tell. Each answer ends its connection.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from ftnode.lab.lines.headers import TCP, UDP
from ftnode.lab.lines.router import Router

GROUP: Final = "239.255.255.250"
SSDP_PORT: Final = 1900
HTTP_PORT: Final = 5000
REQUEST_BYTES_MAX: Final = 1 << 14
DEVICE: Final = "urn:schemas-upnp-org:device:"
SERVICE: Final = "urn:schemas-upnp-org:service:WANIPConnection:1"
GATEWAY: Final = f"{DEVICE}InternetGatewayDevice:1"
CONNECTION: Final = f"{DEVICE}WANConnectionDevice:1"
EVERYTHING: Final = "ssdp:all"
"""Whoever looks for this is told of the gateway."""
UNIQUE: Final = "uuid:66746e6f-6465-4000-8000-{}"
PROTOCOLS: Final = {"TCP": TCP, "UDP": UDP}
FOREVER: Final = 7 * 86_400
"""Seconds of a mapping without an end."""

INVALID_ACTION: Final = 401
INVALID_ARGS: Final = 402
NOT_AUTHORIZED: Final = 606
NO_SUCH_ENTRY: Final = 714
CONFLICT: Final = 718

_HEADER: Final = re.compile(rb"^([A-Za-z-]+):[ \t]*([^\r\n]*)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Refused(Exception):
    """With an error code of the service."""

    code: int


def search_answer(request: bytes, host: str) -> bytes:
    """To a shout, by the router that is `host` there; empty when it is not the one that is looked for."""
    if not request.startswith(b"M-SEARCH "):
        return b""
    wanted = _headers(request).get("st", "")
    found = GATEWAY if wanted == EVERYTHING else wanted
    if found not in ("upnp:rootdevice", GATEWAY, CONNECTION, SERVICE):
        return b""
    lines = (
        "HTTP/1.1 200 OK", "CACHE-CONTROL: max-age=120", "EXT:", f"LOCATION: http://{host}:{HTTP_PORT}/description.xml",
        "SERVER: lab UPnP/1.0 router/1", f"ST: {found}", f"USN: {UNIQUE.format('000000000001')}::{found}", "", "",
    )  # fmt: skip
    return "\r\n".join(lines).encode()


def http_answer(request: bytes, router: Router, asker: int, now: float) -> bytes:
    """To a request of the host `asker`, which has come so far; empty while it is not whole."""
    head, end, body = request.partition(b"\r\n\r\n")
    headers = _headers(head)
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > REQUEST_BYTES_MAX or len(head) > REQUEST_BYTES_MAX:
        return _page("400 Bad Request", "")
    if not end or len(body) < int(length):
        return b""
    if head.startswith(b"GET /description.xml "):
        return _page("200 OK", _description())
    if not head.startswith(b"POST /control "):
        return _page("404 Not Found", "")
    action = headers.get("soapaction", "").strip('"').removeprefix(f"{SERVICE}#")
    try:
        told = _obey(action, _arguments(body), router, asker, now)
    except Refused as refused:
        return _page("500 Internal Server Error", _fault(refused.code))
    fields = "".join(f"<{name}>{escape(value)}</{name}>" for name, value in told.items())
    return _page("200 OK", _envelope(f'<u:{action}Response xmlns:u="{SERVICE}">{fields}</u:{action}Response>'))


def _obey(action: str, given: Mapping[str, str], router: Router, asker: int, now: float) -> dict[str, str]:
    """What the service answers. Raises Refused."""
    if action == "GetNATRSIPStatus":
        return {"NewRSIPAvailable": "0", "NewNATEnabled": "1"}
    if action == "GetStatusInfo":
        return {"NewConnectionStatus": "Connected", "NewLastConnectionError": "ERROR_NONE", "NewUptime": str(int(now))}
    if action == "GetExternalIPAddress":
        return {"NewExternalIPAddress": str(ipaddress.IPv4Address(router.host))}
    if action == "AddPortMapping":
        protocol, outside = _port(given)
        if given.get("NewInternalClient") != str(ipaddress.IPv4Address(asker)):
            raise Refused(NOT_AUTHORIZED)  # for itself alone, as routers have it that are careful
        inside = asker, _number(given, "NewInternalPort", 1, 0xFFFF)
        if not router.is_free(now, protocol, inside, outside):
            raise Refused(CONFLICT)
        seconds = _number(given, "NewLeaseDuration", 0, FOREVER) or FOREVER
        router.keep_open(now, protocol, inside, outside, seconds)
        return {}
    if action == "DeletePortMapping":
        protocol, outside = _port(given)
        if not router.shut(now, protocol, asker, outside):
            raise Refused(NO_SUCH_ENTRY)
        return {}
    raise Refused(INVALID_ACTION)


def _port(given: Mapping[str, str]) -> tuple[int, int]:
    """(protocol, port outside). Raises Refused."""
    if given.get("NewProtocol") not in PROTOCOLS:
        raise Refused(INVALID_ARGS)
    return PROTOCOLS[given["NewProtocol"]], _number(given, "NewExternalPort", 1, 0xFFFF)


def _number(given: Mapping[str, str], name: str, least: int, most: int) -> int:
    text = given.get(name, "")
    if not (text.isascii() and text.isdecimal() and len(text) < 10 and least <= int(text) <= most):
        raise Refused(INVALID_ARGS)
    return int(text)


def _arguments(body: bytes) -> dict[str, str]:
    """Of a call, by name. Raises Refused."""
    if b"<!" in body:  # no declarations, and so no entities that grow
        raise Refused(INVALID_ARGS)
    try:
        root = ElementTree.fromstring(body)
    except ElementTree.ParseError:
        raise Refused(INVALID_ARGS) from None
    return {one.tag: one.text or "" for one in root.iter() if not len(one)}


def _headers(head: bytes) -> dict[str, str]:
    return {name.decode().lower(): value.decode("latin-1").strip() for name, value in _HEADER.findall(head)}


def _page(status: str, body: str) -> bytes:
    return (
        f'HTTP/1.1 {status}\r\nContent-Type: text/xml; charset="utf-8"\r\nContent-Length: {len(body)}\r\n'
        f"Connection: close\r\n\r\n{body}"
    ).encode()


def _envelope(body: str) -> str:
    soap = "http://schemas.xmlsoap.org/soap/"
    return (
        f'<?xml version="1.0"?><s:Envelope xmlns:s="{soap}envelope/" s:encodingStyle="{soap}encoding/">'
        f"<s:Body>{body}</s:Body></s:Envelope>"
    )


def _fault(code: int) -> str:
    error = f'<UPnPError xmlns="urn:schemas-upnp-org:control-1-0"><errorCode>{code}</errorCode></UPnPError>'
    fault = "<faultcode>s:Client</faultcode><faultstring>UPnPError</faultstring>"
    return _envelope(f"<s:Fault>{fault}<detail>{error}</detail></s:Fault>")


def _description() -> str:
    """A gateway that has a WAN device that has a connection, each within the one before."""
    service = (
        f"<serviceList><service><serviceType>{SERVICE}</serviceType><serviceId>urn:upnp-org:serviceId:WANIPConn1"
        "</serviceId><controlURL>/control</controlURL><eventSubURL>/events</eventSubURL><SCPDURL>/service.xml</SCPDURL>"
        "</service></serviceList>"
    )
    device = ""
    for number, kind in ((3, "WANConnectionDevice:1"), (2, "WANDevice:1"), (1, "InternetGatewayDevice:1")):
        inner = f"<deviceList>{device}</deviceList>" if device else service
        device = (
            f"<device><deviceType>{DEVICE}{kind}</deviceType><friendlyName>router of a lab</friendlyName>"
            f"<UDN>{UNIQUE.format(f'{number:012}')}</UDN>{inner}</device>"
        )
    version = "<specVersion><major>1</major><minor>0</minor></specVersion>"
    return f'<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0">{version}{device}</root>'
