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


@dataclass(frozen=True, slots=True)
class HttpRequest:
    method: str
    path: str
    query: str
    host: str
    """As the client wrote it; empty without one."""
    has_body: bool


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: HTTPStatus
    kind: str
    body: bytes


class HttpServer:
    """`answer` is asked for each request, and `headers` are added to whatever it says."""

    def __init__(
        self, answer: Callable[[HttpRequest], HttpResponse], headers: tuple[tuple[str, str], ...], limits: HttpLimits
    ) -> None:
        self._answer = answer
        self._headers = headers
        self._limits = limits
        self._open: OrderedDict[int, trio.CancelScope] = OrderedDict()
        """By number, the oldest first."""
        self._number = 0

    async def run(self, listening: socket.socket) -> None:
        """Serve until cancelled, then hang up on everybody."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
        await trio.serve_listeners(self.serve, [listener])

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """One connection."""
        if len(self._open) >= self._limits.connections:
            if not self._limits.oldest_gives_way:
                await trio.aclose_forcefully(stream)
                return
            self._open.popitem(last=False)[1].cancel()
        self._number += 1
        number = self._number
        with trio.CancelScope() as scope:
            self._open[number] = scope
            try:
                await self._converse(stream)
            except BROKEN as error:
                log.info("web: %s", error or type(error).__name__)
            except Exception:
                log.exception("no answer for a web client")
            finally:
                self._open.pop(number, None)
                await trio.aclose_forcefully(stream)

    async def _converse(self, stream: trio.abc.HalfCloseableStream) -> None:
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
                last = has_body or answered == self._limits.requests
                await stream.send_all(self._reply(connection, request, has_body, last))
            if connection.our_state is not h11.DONE or connection.their_state is not h11.DONE:
                await stream.send_eof()
                return
            connection.start_next_cycle()

    def _reply(self, connection: h11.Connection, request: h11.Request, has_body: bool, last: bool) -> bytes:
        path, _, query = request.target.decode("latin-1").partition("?")
        host = dict(request.headers).get(b"host", b"").decode("latin-1")
        answer = self._answer(HttpRequest(request.method.decode("latin-1"), path, query, host, has_body))
        headers = [
            *self._headers,
            ("Date", formatdate(usegmt=True)),
            ("Content-Type", answer.kind),
            ("Content-Length", str(len(answer.body))),
            *([("Connection", "close")] if last else []),
        ]
        sent = connection.send(h11.Response(status_code=answer.status, headers=headers, reason=answer.status.phrase))
        if request.method != b"HEAD":
            sent = (sent or b"") + (connection.send(h11.Data(data=answer.body)) or b"")
        return (sent or b"") + (connection.send(h11.EndOfMessage()) or b"")


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
