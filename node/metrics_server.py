"""`/metrics` over HTTP, on the node's own event loop: `GET /metrics` is answered, everything else refused.

Off the public interface: loopback, unless the user names another address, which is said aloud. One request per
connection, a few connections at a time, each with a deadline. Who asks must name the address in `Host`, so that no page
in a browser on this machine reads along under another name (DNS rebinding).
"""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
from collections.abc import Callable
from typing import Final

import h11
import trio
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.process_collector import ProcessCollector

from ftnode.node.metrics import StatusCollector
from ftnode.node.status import SwarmStatus
from ftnode.protocol.errors import UserError

log = logging.getLogger(__name__)

DEFAULT: Final = "127.0.0.1:9464"
"""The port that OpenTelemetry's exporter made the usual one."""
PORTS_TRIED: Final = 64
"""From the default on, since several nodes may run on one machine."""
NONE: Final = "none"
REQUEST_SECONDS: Final = 5.0
REQUEST_BYTES_MAX: Final = 8192
CONNECTIONS_MAX: Final = 16


def parse_listen(text: str) -> tuple[str, int] | None:
    """(host, port) of `HOST:PORT`, HOST an IP address or localhost; None for `none`. Raises UserError (64)."""
    if text == NONE:
        return None
    host, found, port = text.rpartition(":")
    host = "127.0.0.1" if host == "localhost" else host.strip("[]")
    try:
        ipaddress.ip_address(host)
        number = int(port)
    except ValueError:
        found = ""
    if not found or not 0 <= number <= 65535:
        raise UserError(f"--metrics {text} is neither HOST:PORT, like {DEFAULT}, nor none")
    return host, number


def is_public(host: str) -> bool:
    """Whether others than this machine can connect there."""
    return not ipaddress.ip_address(host).is_loopback


class MetricsServer:
    """Binds at once: raises UserError (69, 77) when it cannot. `url` is where it is."""

    def __init__(self, listen: str, status: Callable[[], SwarmStatus]) -> None:
        where = parse_listen(listen)
        assert where is not None, "asked for none"
        self._socket = _bind(*where, tries=PORTS_TRIED if listen == DEFAULT else 1)
        self.host, self.port = self._socket.getsockname()[:2]
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(StatusCollector(status))
        self._registry.register(ProcessCollector(registry=None))
        self._busy = 0

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/metrics"

    @property
    def line(self) -> str:
        """For the owner: where it is, and whether others can read it."""
        return f"{self.url}{'; anybody who can reach this address can read it' if is_public(self.host) else ''}"

    async def run(self) -> None:
        """Serve until cancelled."""
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._socket))
        await trio.serve_listeners(self.serve, [listener])

    def close(self) -> None:
        """Give the port back without having served."""
        self._socket.close()

    async def serve(self, stream: trio.abc.HalfCloseableStream) -> None:
        """One connection."""
        if self._busy >= CONNECTIONS_MAX:
            await trio.aclose_forcefully(stream)
            return
        self._busy += 1
        try:
            with trio.fail_after(REQUEST_SECONDS):
                await self._answer(stream)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, h11.RemoteProtocolError) as error:
            log.info("metrics: %s", error or type(error).__name__)
        except Exception:
            log.exception("no metrics for a scraper")
        finally:
            self._busy -= 1
            await trio.aclose_forcefully(stream)

    async def _answer(self, stream: trio.abc.HalfCloseableStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_BYTES_MAX)
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await stream.receive_some(REQUEST_BYTES_MAX))
            elif isinstance(event, h11.Request):
                break
            else:
                return  # it hung up before it asked
        status, kind, body = self._page(event)
        headers = [
            ("content-type", kind), ("content-length", str(len(body))), ("connection", "close"),
            ("x-content-type-options", "nosniff"), ("cache-control", "no-store"),
        ]  # fmt: skip
        sent = connection.send(h11.Response(status_code=status, headers=headers)) or b""
        if event.method != b"HEAD":
            sent += connection.send(h11.Data(data=body)) or b""
        await stream.send_all(sent + (connection.send(h11.EndOfMessage()) or b""))
        await stream.send_eof()

    def _page(self, request: h11.Request) -> tuple[int, str, bytes]:
        host = dict(request.headers).get(b"host", b"").decode("latin-1")
        if not self._is_ours(host):
            return 421, "text/plain", b"this address is not served under that name\n"
        if request.method not in (b"GET", b"HEAD"):
            return 405, "text/plain", b"read only: GET /metrics\n"
        if request.target.split(b"?")[0] != b"/metrics":
            return 404, "text/plain", b"there is only /metrics\n"
        return 200, CONTENT_TYPE_PLAIN_0_0_4, generate_latest(self._registry)

    def _is_ours(self, host: str) -> bool:
        """An IP address cannot be rebound; of names only localhost is ours, where we listen on loopback."""
        name = host.rpartition(":")[0] if ":" in host and not host.endswith("]") else host
        if name.lower() == "localhost":
            return not is_public(self.host)
        try:
            ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return is_public(self.host)  # the user's own names for a machine that the user opened
        return True


def _bind(host: str, port: int, tries: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for attempt in range(tries):
        bound = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind((host, port + attempt))
            bound.listen(CONNECTIONS_MAX)
            bound.setblocking(False)
            return bound
        except OSError as error:
            bound.close()
            if error.errno == errno.EADDRINUSE and attempt + 1 < tries:
                continue
            raise _refusal(host, port, tries, error) from None
    raise AssertionError("no attempt was made")


def _refusal(host: str, port: int, tries: int, error: OSError) -> UserError:
    if error.errno == errno.EADDRINUSE:
        which = f"port {port} of {host} is" if tries == 1 else f"ports {port} to {port + tries - 1} of {host} are"
        return UserError(f"{which} in use; choose another --metrics HOST:PORT, or none", 69)
    if error.errno == errno.EACCES:
        return UserError(f"no permission for metrics on {host}:{port}; choose a port above 1023", 77)
    return UserError(f"cannot serve metrics on {host}:{port}: {error.strerror}; choose another --metrics", 69)
