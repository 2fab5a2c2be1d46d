"""The dashboard's web server: seven files and one JSON document, to read only.

Who can reach it may look, so it listens on loopback unless told otherwise. A page of another site must not look
through a visitor's browser: the Host header has to be a number, localhost or the name that we listen on (a rebound DNS
name is neither), nothing may be framed or embedded, and no other origin may read. The policy allows the page its own
script and style, and nothing else.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from importlib.resources import files
from typing import Final
from urllib.parse import parse_qs

import trio

from ftnode.node.watch.dashboard_feed import Feed
from ftnode.node.watch.http_server import (
    HttpLimits,
    HttpRequest,
    HttpResponse,
    HttpServer,
    host_name,
    is_number,
    listen_on,
    url_of,
)
from ftnode.protocol.words.errors import UserError

FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/uPlot.js": ("uPlot.iife.min.js", "text/javascript; charset=utf-8"),
    "/uPlot.css": ("uPlot.min.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS: Final = (
    ("Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
     "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Referrer-Policy", "no-referrer"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cache-Control", "no-store"),
)  # fmt: skip
CLIENTS_MAX: Final = 32
"""Connections at a time; a new one beyond them takes the place of the oldest, whose page asks again."""
IDLE_SECONDS: Final = 15.0
REQUEST_BYTES_MAX: Final = 1 << 16
"""A browser sends the cookies of whatever else listens on this machine."""
NUMBER_MAX: Final = 1 << 53
GENERATION_TEXT_MAX: Final = 32


class DashboardServer:
    """Serves a feed. Listens at once: raises UserError when it cannot."""

    def __init__(self, host: str, port: int, feed: Feed) -> None:
        self._feed = feed
        self._name = host.lower()
        page = files("ftnode.node.watch").joinpath("page")
        self._assets = {path: HttpResponse(HTTPStatus.OK, kind, page.joinpath(name).read_bytes())
                        for path, (name, kind) in FILES.items()}  # fmt: skip
        self._socket = _listen(host, port)
        self.server_port: int = self._socket.getsockname()[1]
        self.url = url_of(self._socket, "/")

    async def run(self) -> None:
        """Serve until cancelled."""
        limits = HttpLimits(CLIENTS_MAX, True, IDLE_SECONDS, REQUEST_BYTES_MAX, requests=None)
        await HttpServer(self._answer, HEADERS, limits).run(self._socket)

    def _answer(self, question: HttpRequest) -> HttpResponse:
        if question.method not in ("GET", "HEAD"):
            return HttpResponse(HTTPStatus.NOT_IMPLEMENTED, "text/plain", b"")
        if not self._is_ours(question.host):
            return _refusal(HTTPStatus.MISDIRECTED_REQUEST, "this server goes by its number or localhost")
        if question.has_body:
            return _refusal(HTTPStatus.BAD_REQUEST, "a question has no body")
        if question.path == "/look":
            try:
                return HttpResponse(HTTPStatus.OK, "application/json", self._look(question.query))
            except ValueError:
                return _refusal(HTTPStatus.BAD_REQUEST, "not a place in a log")
        return self._assets.get(question.path) or _refusal(HTTPStatus.NOT_FOUND, "there is nothing here")

    def _is_ours(self, host: str) -> bool:
        """Whether a Host header can only mean this server: a number, localhost, or the name it was told to use."""
        name = host_name(host)
        return name in ("localhost", self._name) or is_number(name)

    def _look(self, query: str) -> bytes:
        """Raises ValueError."""
        asked = parse_qs(query, max_num_fields=8)
        places = [int(asked.get(name, ["0"])[0][:16]) for name in ("commits", "validations", "notes")]
        if any(not 0 <= place < NUMBER_MAX for place in places):
            raise ValueError("a place that is in no log")
        generation = asked.get("generation", [""])[0][:GENERATION_TEXT_MAX]
        return json.dumps(self._feed.look(generation, *places), separators=(",", ":")).encode()


def serve_in_background(host: str, port: int, feed: Feed) -> tuple[DashboardServer, Callable[[], None]]:
    """A server on a thread of its own, and what ends both. Raises UserError."""
    server = DashboardServer(host, port, feed)
    started = threading.Event()
    scope = trio.CancelScope()
    token: trio.lowlevel.TrioToken

    async def main() -> None:
        nonlocal token
        token = trio.lowlevel.current_trio_token()
        started.set()
        with scope:
            await server.run()

    thread = threading.Thread(target=trio.run, args=(main,), name="dashboard", daemon=True)
    thread.start()
    started.wait()

    def close() -> None:
        """Stop serving, and hang up on all pages."""
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(scope.cancel)
        thread.join()

    return server, close


def parse_listen(text: str) -> tuple[str, int]:
    """HOST:PORT, [IPv6]:PORT, or a port of 127.0.0.1. Raises UserError (64)."""
    host, _, port = text.rpartition(":")
    if not host:
        host = "127.0.0.1"
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise UserError(f"--listen {text}: write an IPv6 address in brackets, like [::1]:8080")
    if not port.isascii() or not port.isdigit() or int(port) > 65535 or not host or len(host) > 253:
        raise UserError(f"--listen {text} is not HOST:PORT, like 127.0.0.1:8080")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Whether nobody else can reach what listens there."""
    return host == "localhost" or (is_number(host) and ipaddress.ip_address(host).is_loopback)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--listen {host}: no such host ({error}); use an address of this machine", 69) from None
    try:
        return listen_on(family, (str(address[0]), port), CLIENTS_MAX)
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
        raise UserError(f"{host}:{port} {why}; choose another with --listen HOST:PORT", 69) from None


def _refusal(status: HTTPStatus, why: str) -> HttpResponse:
    return HttpResponse(status, "text/plain", f"{why}\n".encode())
