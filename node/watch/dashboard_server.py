"""The dashboard's web server: seven files and one JSON document, to read only.

Who can reach it may look, so it listens on loopback unless told otherwise. A page of another site must not look
through a visitor's browser: the Host header has to be a number, localhost or the name that we listen on (a rebound DNS
name is neither), nothing may be framed or embedded, and no other origin may read. The policy allows the page its own
script and style, and nothing else. A public page (public_site.py) has no secrets to keep from other sites, so it goes
by any name; the rest holds for it as well.
"""

from __future__ import annotations

import errno
import gzip
import ipaddress
import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
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
from ftnode.node.watch.public_clients import THIS_MACHINE, Network, PublicClients
from ftnode.node.watch.public_page import Joining, PublicPage
from ftnode.node.watch.public_site import FILE_SECONDS, PublicSite
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
)  # fmt: skip
CLIENTS_MAX: Final = 32
"""Connections at a time; a new one beyond them takes the place of the oldest, whose page asks again."""
IDLE_SECONDS: Final = 15.0
REQUEST_BYTES_MAX: Final = 1 << 16
"""A browser sends the cookies of whatever else listens on this machine."""
NUMBER_MAX: Final = 1 << 53
GENERATION_TEXT_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Public:
    """What a page for anyone needs besides a feed."""

    joining: Callable[[], Joining | None] = lambda: None
    """How to take part, for the page; None while nobody can say."""
    proxies: tuple[Network, ...] = THIS_MACHINE
    """Whose word counts on who asks."""


class DashboardServer:
    """Serves a feed. Listens at once: raises UserError when it cannot."""

    def __init__(self, host: str, port: int, feed: Feed, public: Public | None = None) -> None:
        """`public`: whom to show it to anyone by; None: to people who use this machine."""
        self._feed = feed
        self._name = host.lower()
        self._assets = _page_files("no-store")
        self._public: PublicSite | None = None
        self._limits = HttpLimits(CLIENTS_MAX, True, IDLE_SECONDS, REQUEST_BYTES_MAX, requests=None)
        if public is not None:
            kept = _page_files(f"public, max-age={FILE_SECONDS}")
            self._public = PublicSite(PublicPage(feed, public.joining), PublicClients(public.proxies), kept)
            self._limits = self._public.limits
        self._socket = _listen(host, port, self._limits.connections)
        self.server_port: int = self._socket.getsockname()[1]
        self.url = url_of(self._socket, "/")

    async def run(self) -> None:
        """Serve until cancelled."""
        answer = self._public.answer if self._public is not None else self._answer
        await HttpServer(answer, HEADERS, self._limits).run(self._socket)

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


def serve_in_background(
    host: str, port: int, feed: Feed, public: Public | None = None
) -> tuple[DashboardServer, Callable[[], None]]:
    """A server on a thread of its own, and what ends both. Raises UserError."""
    server = DashboardServer(host, port, feed, public)
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


def _page_files(cache: str) -> dict[str, HttpResponse]:
    folder = files("ftnode.node.watch").joinpath("page")
    found = {}
    for path, (name, kind) in FILES.items():
        body = folder.joinpath(name).read_bytes()
        found[path] = HttpResponse(HTTPStatus.OK, kind, body, gzip.compress(body, mtime=0), cache)
    return found


def _listen(host: str, port: int, backlog: int) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--listen {host}: no such host ({error}); use an address of this machine", 69) from None
    try:
        return listen_on(family, (str(address[0]), port), backlog)
    except OSError as error:
        why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
        raise UserError(f"{host}:{port} {why}; choose another with --listen HOST:PORT", 69) from None


def _refusal(status: HTTPStatus, why: str) -> HttpResponse:
    return HttpResponse(status, "text/plain", f"{why}\n".encode())
