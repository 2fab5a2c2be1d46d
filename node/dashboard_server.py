"""The dashboard's web server: four files and one JSON document, to read only.

Who can reach it may look, so it listens on loopback unless told otherwise. A page of another site must not look
through a visitor's browser: the Host header has to be a number, localhost or the name that we listen on (a rebound DNS
name is neither), nothing may be framed or embedded, and no other origin may read. The policy allows the page its own
script and style, and nothing else.
"""

from __future__ import annotations

import errno
import ipaddress
import json
import logging
import socket
import threading
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from ftnode.node.dashboard_feed import Feed
from ftnode.protocol.errors import UserError

log = logging.getLogger(__name__)

FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/dashboard.css": ("dashboard.css", "text/css; charset=utf-8"),
    "/dashboard.js": ("dashboard.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
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
NUMBER_MAX: Final = 1 << 53
GENERATION_TEXT_MAX: Final = 32


class DashboardServer(ThreadingHTTPServer):
    """Serves a feed. Raises UserError when it cannot listen there."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 16

    def __init__(self, host: str, port: int, feed: Feed) -> None:
        self.feed = feed
        self.name = host
        self.assets = {path: (files("ftnode.node").joinpath("dashboard", name).read_bytes(), kind)
                       for path, (name, kind) in FILES.items()}  # fmt: skip
        self._open: OrderedDict[socket.socket, None] = OrderedDict()
        self._lock = threading.Lock()
        family, address = _resolve(host, port)
        self.address_family = family
        try:
            super().__init__(address, Handler)
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be listened on: {error.strerror}"
            raise UserError(f"{host}:{port} {why}; choose another with --listen HOST:PORT", 69) from None

    @property
    def url(self) -> str:
        host, port = self.server_address[:2]
        shown = f"[{host!s}]" if ":" in str(host) else str(host)
        return f"http://{shown}:{port}/"

    def server_bind(self) -> None:
        """Without http.server's look-up of our name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            self._open[request] = None
            oldest = next(iter(self._open)) if len(self._open) > CLIENTS_MAX else None
        if oldest is not None:
            _hang_up(oldest)
            with self._lock:
                self._open.pop(oldest, None)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.info("a page's request failed", exc_info=True)

    def close(self) -> None:
        """Stop serving, and hang up on all pages."""
        self.shutdown()
        with self._lock:
            left = list(self._open)
        for connection in left:
            _hang_up(connection)
        self.server_close()

    def is_ours(self, host: str | None) -> bool:
        """Whether a Host header can only mean this server: a number, localhost, or the name it was told to use."""
        if not host:
            return False
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        return name in ("localhost", self.name.lower()) or _is_number(name)


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD."""

    server: DashboardServer
    protocol_version = "HTTP/1.1"
    timeout = IDLE_SECONDS
    server_version, sys_version = "ftnode", ""

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if not self.server.is_ours(self.headers.get("Host")):
            self._send(HTTPStatus.MISDIRECTED_REQUEST, b"this server goes by its number or localhost\n", "text/plain")
            return
        if self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers:
            self.close_connection = True  # what follows would be read as the next request
            self._send(HTTPStatus.BAD_REQUEST, b"a question has no body\n", "text/plain")
            return
        parts = urlsplit(self.path)
        if parts.path == "/look":
            try:
                found = self._look(parts.query)
            except ValueError:
                self._send(HTTPStatus.BAD_REQUEST, b"not a place in a log\n", "text/plain")
                return
            self._send(HTTPStatus.OK, found, "application/json")
        elif parts.path in self.server.assets:
            self._send(HTTPStatus.OK, *self.server.assets[parts.path])
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is nothing here\n", "text/plain")

    def _look(self, query: str) -> bytes:
        """Raises ValueError."""
        asked = parse_qs(query, max_num_fields=8)
        places = [int(asked.get(name, ["0"])[0][:16]) for name in ("commits", "validations", "notes")]
        if any(not 0 <= place < NUMBER_MAX for place in places):
            raise ValueError("a place that is in no log")
        generation = asked.get("generation", [""])[0][:GENERATION_TEXT_MAX]
        return json.dumps(self.server.feed.look(generation, *places), separators=(",", ":")).encode()

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS:
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """http.server's own complaints, with our headers and without its page."""
        self.close_connection = True
        self._send(HTTPStatus(code), b"", "text/plain")

    def log_message(self, format: str, *arguments: Any) -> None:
        log.debug(format, *arguments)


def serve_in_background(host: str, port: int, feed: Feed) -> tuple[DashboardServer, Callable[[], None]]:
    """A server on a thread of its own, and what ends both. Raises UserError."""
    server = DashboardServer(host, port, feed)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()

    def close() -> None:
        server.close()
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
    return host == "localhost" or (_is_number(host) and ipaddress.ip_address(host).is_loopback)


def _resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"--listen {host}: no such host ({error}); use an address of this machine", 69) from None
    return family, (str(address[0]), port)


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:
        log.debug("already gone: %s", error)
