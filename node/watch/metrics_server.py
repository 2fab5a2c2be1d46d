"""`/metrics` over HTTP, on the node's own event loop: `GET /metrics` is answered, everything else refused.

Off the public interface: loopback, unless the user names another address, which is said aloud. One request per
connection, a few connections at a time, each with a deadline. Who asks must name the address in `Host`, so that no page
in a browser on this machine reads along under another name (DNS rebinding).
"""

from __future__ import annotations

import errno
import ipaddress
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Final

import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector

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
from ftnode.node.watch.metrics import StatusCollector
from ftnode.node.watch.status import SwarmStatus
from ftnode.protocol.words.errors import UserError

DEFAULT: Final = "127.0.0.1:9464"
"""The port that OpenTelemetry's exporter made the usual one."""
AUTO: Final = "auto"
"""DEFAULT, or the next port that is free there."""
PORTS_TRIED: Final = 64
"""From the default on, since several nodes may run on one machine."""
NONE: Final = "none"
REQUEST_SECONDS: Final = 5.0
REQUEST_BYTES_MAX: Final = 8192
CONNECTIONS_MAX: Final = 16
HEADERS: Final = (("X-Content-Type-Options", "nosniff"),)


def parse_listen(text: str) -> tuple[str, int] | None:
    """(host, port) of `HOST:PORT`, HOST an IP address or localhost; None for `none`. Raises UserError (64)."""
    if text == NONE:
        return None
    text = DEFAULT if text == AUTO else text
    host, found, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        found = ""
    if not found or not 0 <= number <= 65535:
        raise UserError(f"--metrics {text} is neither HOST:PORT, like {DEFAULT}, nor auto or none")
    return host, number


def is_public(host: str) -> bool:
    """Whether others than this machine can connect there."""
    return not ipaddress.ip_address(host).is_loopback


class MetricsServer:
    """Binds at once: raises UserError (69, 77) when it cannot. `url` is where it is."""

    def __init__(self, listen: str, status: Callable[[], SwarmStatus]) -> None:
        where = parse_listen(listen)
        assert where is not None, "asked for none"
        self._socket = _bind(*where, tries=PORTS_TRIED if listen == AUTO else 1)
        self.host, self.port = self._socket.getsockname()[:2]
        self.url = url_of(self._socket, "/metrics")
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatusCollector(status))
        self._registry.register(ProcessCollector(registry=None))
        limits = HttpLimits(CONNECTIONS_MAX, False, REQUEST_SECONDS, REQUEST_BYTES_MAX, requests=1)
        self._http = HttpServer(self._answer, HEADERS, limits)

    @property
    def line(self) -> str:
        """For the owner: where it is, and whether others can read it."""
        return f"{self.url}{'; anybody who can reach this address can read it' if is_public(self.host) else ''}"

    async def run(self) -> None:
        """Serve until cancelled."""
        await self._http.run(self._socket)

    def close(self) -> None:
        """Give the port back without having served."""
        self._socket.close()

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """One connection."""
        await self._http.serve(stream)

    def _answer(self, question: HttpRequest) -> HttpResponse:
        if not self._is_ours(host_name(question.host)):
            return _refusal(HTTPStatus.MISDIRECTED_REQUEST, "this address is not served under that name")
        if question.method not in ("GET", "HEAD"):
            return _refusal(HTTPStatus.METHOD_NOT_ALLOWED, "read only: GET /metrics")
        if question.path != "/metrics":
            return _refusal(HTTPStatus.NOT_FOUND, "there is only /metrics")
        return HttpResponse(HTTPStatus.OK, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry))

    def _is_ours(self, name: str) -> bool:
        """An IP address cannot be rebound; of names only localhost is ours, where we listen on loopback."""
        if name == "localhost":
            return not is_public(self.host)
        # Of a machine that its user opened the names are the user's own.
        return is_number(name) or is_public(self.host)


def _bind(host: str, port: int, tries: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in range(tries):
        try:
            return listen_on(family, (host, port + attempt), CONNECTIONS_MAX)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and attempt + 1 < tries:
                continue
            raise _cannot_listen(host, port, tries, error) from None
    raise AssertionError("no attempt was made")


def _cannot_listen(host: str, port: int, tries: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        which = f"port {port} of {host} is" if tries == 1 else f"ports {port} to {port + tries - 1} of {host} are"
        return UserError(f"{which} in use; choose another --metrics HOST:PORT, or none", 69)
    if error.errno == errno.EACCES:
        return UserError(f"no permission for metrics on {host}:{port}; choose a port above 1023", 77)
    return UserError(f"cannot serve metrics on {host}:{port}: {error.strerror}; choose another --metrics", 69)


def _refusal(status: HTTPStatus, why: str) -> HttpResponse:
    return HttpResponse(status, "text/plain", f"{why}\n".encode())
