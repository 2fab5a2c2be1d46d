"""A router's own machine, as those behind it see it: a namespace and an interface of its own, where it listens to who
wants a port kept open. It speaks NAT-PMP (nat_pmp.py) or UPnP (upnp.py), by its kind, and writes down what it is asked.

Nothing waits here: what is asked for comes over lines that the same process carries (switch.py).
"""

from __future__ import annotations

import ipaddress
import select
import socket
import struct
from dataclasses import dataclass, field
from typing import Final

from ftnode.lab.lines import upnp
from ftnode.lab.lines.nat_pmp import PMP_PORT, answer_to
from ftnode.lab.lines.router import UPNP, Router

DATAGRAM_BYTES: Final = 1 << 11
CALLS_MAX: Final = 16
"""Connections at a time."""


@dataclass(slots=True)
class _Call:
    connection: socket.socket
    asker: int
    request: bytes = b""


@dataclass
class Door:
    """Of a `router` that its home sees at the address `host`; it is made inside of its namespace. `tunnel`: the other
    end of its interface. Everything of it that may have something to read is registered with `ready`."""

    router: Router
    host: str
    tunnel: int
    ready: select.epoll
    _calls: dict[int, _Call] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_upnp = self.router.keeps_open == UPNP
        self._datagrams = self._opened(socket.SOCK_DGRAM, upnp.SSDP_PORT if is_upnp else PMP_PORT)
        self._caller: socket.socket | None = None
        if is_upnp:
            group = socket.inet_aton(upnp.GROUP) + socket.inet_aton(self.host)
            self._datagrams.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, group)
            self._caller = self._opened(socket.SOCK_STREAM, upnp.HTTP_PORT)
            self._caller.listen(CALLS_MAX)
        self.hosts = frozenset((socket.inet_aton(self.host), socket.inet_aton(upnp.GROUP)))
        """To whom packets go that go to it."""

    def _opened(self, kind: socket.SocketKind, port: int) -> socket.socket:
        opened = socket.socket(socket.AF_INET, kind)
        opened.setblocking(False)
        opened.bind(("", port))
        self.ready.register(opened, select.EPOLLIN)
        return opened

    def serve(self, descriptor: int, now: float) -> bool:
        """There is something to read. Whether it was ours."""
        if descriptor == self._datagrams.fileno():
            self._hear(now)
        elif self._caller is not None and descriptor == self._caller.fileno():
            self._take()
        elif descriptor in self._calls:
            self._read(self._calls[descriptor], now)
        else:
            return False
        return True

    def _hear(self, now: float) -> None:
        request, (host, port) = self._datagrams.recvfrom(DATAGRAM_BYTES)
        if self._caller is not None:
            answer = upnp.search_answer(request, self.host)
        else:
            answer = answer_to(request, self.router, _number(host), now)
        self._note(host, request[: struct.calcsize("!BBHHHI")].hex() if self._caller is None else "a search")
        if answer:
            self._datagrams.sendto(answer, (host, port))

    def _take(self) -> None:
        assert self._caller is not None
        connection, (host, _) = self._caller.accept()
        if len(self._calls) >= CALLS_MAX:
            connection.close()
            return
        connection.setblocking(False)
        self._calls[connection.fileno()] = _Call(connection, _number(host))
        self.ready.register(connection, select.EPOLLIN)

    def _read(self, call: _Call, now: float) -> None:
        answer = b""
        try:
            piece = call.connection.recv(upnp.REQUEST_BYTES_MAX)
            call.request += piece
            answer = upnp.http_answer(call.request, self.router, call.asker, now)
            if piece and not answer:
                return  # more will come
            call.connection.sendall(answer)  # less than what a fresh connection takes at once
        except OSError:  # it has gone
            pass
        self._note(str(ipaddress.IPv4Address(call.asker)), call.request.decode("latin-1"))
        del self._calls[call.connection.fileno()]
        call.connection.close()

    def _note(self, host: str, what: str) -> None:
        """On standard output, which is a log."""
        print(f"router {self.host} was asked by {host}: {what!r}", flush=True)


def _number(host: str) -> int:
    return int(ipaddress.IPv4Address(host))
