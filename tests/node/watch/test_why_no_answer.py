"""Why a peer gave no status, in words, whatever this machine can do."""

from __future__ import annotations

import errno
import socket
from typing import Any

import pytest
import trio

from ftnode.node.links.addresses import PeerAddress
from ftnode.node.watch import light_client


def test_a_machine_without_ipv6_says_so_and_asks_the_next_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the kernel has none, there is not even a socket for it."""
    ordinary = trio.socket.socket

    def without_ipv6(family: int, *rest: Any) -> trio.socket.SocketType:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return ordinary(family, *rest)

    monkeypatch.setattr(trio.socket, "socket", without_ipv6)
    peer = PeerAddress("peer", ("/ip6/2001:db8::1/tcp/31337",))
    assert "not supported" in trio.run(light_client._cause, peer, ConnectionError("it failed"))
