"""A web server for what is only read: the dashboard's page and `/metrics`. h11 speaks HTTP, trio carries it.

A site is a function from a question to an answer. Everything around it is bounded here: connections at a time, the
size of a request, and the seconds in which a request has to come in and its answer has to be taken. A client that does
not speak HTTP is hung up on. Libraries with more to them (hypercorn, aiohttp) bring an application framework or asyncio
for five files to read, and leave the limits to us all the same.
"""

from __future__ import annotations

import ipaddress
import logging
import socket
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

import h11
import trio

log = logging.getLogger(__name__)

RECEIVED_BYTES: Final = 8192
BROKEN: Final = (OSError, trio.BrokenResourceError, trio.TooSlowError, h11.RemoteProtocolError)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    connections: int
    oldest_gives_way: bool
    """To a connection beyond them, which otherwise is hung up on itself."""
    seconds: float
    """For a request to come in whole, counted from when it may be sent, and for its answer to be taken."""
    request_bytes: int
    """Of its line and headers."""
    requests: int | None
    """On one connection; None: any number."""
    connections_of: Callable[[str], int] | None = None
    """At a time, by the IP address at their other end; None: as many as of all together."""


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    query: str
    host: str
    """As the client wrote it; empty without one."""
    has_body: bool
    sender: str
    """IP address at the other end of the connection; empty when it is gone."""
    forwarded: str
    """X-Forwarded-For. Whoever is no proxy of ours may have made it up."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """One that is an error, by its status, is the last on its connection."""

    status: HTTPStatus
    kind: str
    body: bytes
    packed: bytes = b""
    """The same body, for clients that take gzip; empty where there is but the one."""
    cache: str = "no-store"
    """Cache-Control."""
    retry_seconds: int | None = None
    """After which the client may ask again."""


@dataclass(frozen=True, slots=True)
class _Open:
    sender: str
    scope: trio.CancelScope


class HttpServer:
    """`answer` is asked for each request, and `headers` are added to whatever it says."""

    def __init__(
        self, answer: Callable[[HttpRequest], HttpResponse], headers: tuple[tuple[str, str], ...], limits: HttpLimits
    ) -> None:
        self._answer = answer
        self._headers = headers
        self._limits = limits
        self._open: OrderedDict[int, _Open] = OrderedDict()
        """By number, the oldest first."""
        self._number = 0

    async def run(self, listening: socket.socket) -> None:
        """Serve until cancelled, then hang up on everybody."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        await trio.serve_listeners(self.serve, [listener])

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """One connection."""
        sender = _sender_of(stream)
        if not self._has_room(sender):
            await trio.aclose_forcefully(stream)
            return
        self._number += 1
        number = self._number
        with trio.CancelScope() as scope:
            self._open[number] = _Open(sender, scope)
            try:
                await self._converse(stream, sender)
            except BROKEN as error:
                log.info("web: %s", error or type(error).__name__)
            except Exception:
                log.exception("no answer for a web client")
            finally:
                self._open.pop(number, None)
                await trio.aclose_forcefully(stream)

    def _has_room(self, sender: str) -> bool:
        """Whether one more connection of this address is served. The oldest may give way to it: of the same address
        when that has as many as it may have, else of all."""
        limits = self._limits
        same = [number for number, one in self._open.items() if one.sender == sender] if limits.connections_of else []
        if limits.connections_of and len(same) >= limits.connections_of(sender):
            oldest = same[0]
        elif len(self._open) >= limits.connections:
            oldest = next(iter(self._open))
        else:
            return True
        if limits.oldest_gives_way:
            self._open.pop(oldest).scope.cancel()
        return limits.oldest_gives_way

    async def _converse(self, stream: trio.abc.HalfCloseableStream, sender: str) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.request_bytes)
        answered = 0
        while True:
            with trio.fail_after(self._limits.seconds):
                request = await _next_request(connection, stream)
                if request is None:
                    return
                answered += 1
                # What follows a body that nobody read would be taken for the next request.
                has_body = not isinstance(connection.next_event(), h11.EndOfMessage)
                question = _question(request, has_body, sender)
                answer = self._answer(question)
                last = has_body or answered == self._limits.requests or answer.status >= HTTPStatus.BAD_REQUEST
                await stream.send_all(self._reply(connection, request, answer, last))
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                await stream.send_eof()
                return
            connection.start_next_cycle()

    def _reply(self, connection: h11.Connection, request: h11.Request, answer: HttpResponse, last: bool) -> bytes:
        packed = bool(answer.packed) and _takes_gzip(_header(request, b"accept-encoding"))
        body = answer.packed if packed else answer.body
        headers = [
            *self._headers,
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", answer.kind),
            ("Content-Length", str(len(body))),
            ("Cache-Control", answer.cache),
            *([("Content-Encoding", "gzip")] if packed else []),
            *([("Vary", "Accept-Encoding")] if answer.packed else []),
            *([("Retry-After", str(answer.retry_seconds))] if answer.retry_seconds is not None else []),
            *([("Connection", "close")] if last else []),
        ]
        sent = connection.send(h11.Response(status_code=answer.status, headers=headers, reason=answer.status.phrase))
        if request.method != b"HEAD":
            sent = (sent or b"") + (connection.send(h11.Data(data=body)) or b"")
        return (sent or b"") + (connection.send(h11.EndOfMessage()) or b"")


def _question(request: h11.Request, has_body: bool, sender: str) -> HttpRequest:
    path, _, query = request.target.decode("latin-1").partition("?")
    host, forwarded = _header(request, b"host"), _header(request, b"x-forwarded-for")
    return HttpRequest(request.method.decode("latin-1"), path, query, host, has_body, sender, forwarded)


def _header(request: h11.Request, wanted: bytes) -> str:
    """Its lines in order, with commas in between (RFC 9110, section 5.3); empty without one."""
    return ", ".join(value.decode("latin-1") for name, value in request.headers if name == wanted)


def _takes_gzip(accepted: str) -> bool:
    """By its Accept-Encoding. One that is named with a quality of zero is refused (RFC 9110, section 12.5.3)."""
    for one in accepted.lower().split(","):
        name, _, quality = one.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _sender_of(stream: trio.abc.HalfCloseableStream) -> str:
    try:
        return str(stream.socket.getpeername()[0]) if isinstance(stream, trio.SocketStream) else ""
    except OSError:
        return ""


async def _next_request(connection: h11.Connection, stream: trio.abc.HalfCloseableStream) -> h11.Request | None:
    """None when it hung up before it asked."""
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(RECEIVED_BYTES))
        elif isinstance(event, h11.Request):
            return event
        else:
            return None


def listen_on(family: socket.AddressFamily, address: tuple[str, int], backlog: int) -> socket.socket:
    """Raises OSError."""
    bound = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(backlog)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


def host_name(host: str) -> str:
    """The name in a Host header, in small letters, without port and brackets; empty when there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_number(name: str) -> bool:
    """Whether it is an IP address, which no other site can have rebound to this machine."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def url_of(listening: socket.socket, path: str) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}{path}"
