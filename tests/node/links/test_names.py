"""Names in addresses become numbers, and what has none stays as it is."""

from __future__ import annotations

import socket

import pytest
import trio

from ftnode.node.links.listening import from_here
from ftnode.node.links.names import look_up, looked_up, name_in, with_host
from ftnode.protocol.words.errors import UserError


def test_a_name_becomes_a_number() -> None:
    assert looked_up(["/dns4/localhost/tcp/31337", "/ip4/192.0.2.7/tcp/1"]) == (
        "/ip4/127.0.0.1/tcp/31337", "/ip4/192.0.2.7/tcp/1",
    )  # fmt: skip
    assert trio.run(look_up, "/dns4/localhost/udp/9/quic-v1") == ("/ip4/127.0.0.1/udp/9/quic-v1",)
    assert trio.run(look_up, "/ip6/::1/tcp/9") == ("/ip6/::1/tcp/9",)


def test_a_name_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    with pytest.raises(UserError, match=r"a\.\.b leads nowhere: it is no host name"):
        looked_up(["/dns4/a..b/tcp/1"])
    with pytest.raises(OSError, match="it is no host name"):
        trio.run(look_up, "/dns6/a..b/tcp/1")
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(UserError, match=r"swarm\.example leads nowhere: Name or service not known"):
        looked_up(["/dns4/swarm.example/tcp/1"])


def test_the_rest_of_an_address_stays() -> None:
    relayed = "/dns4/relay.example.org/tcp/9/p2p/X/p2p-circuit"
    assert name_in(relayed) == "relay.example.org" and name_in("/ip4/192.0.2.7/tcp/1") == name_in("nonsense") == ""
    assert with_host(relayed, "2001:db8::1") == "/ip6/2001:db8::1/tcp/9/p2p/X/p2p-circuit"


def test_where_this_machine_reaches_itself() -> None:
    listen = ["/ip4/0.0.0.0/tcp/31337", "/ip6/::/tcp/31337", "/ip4/192.0.2.7/tcp/1", "/ip4/0.0.0.0/tcp/0"]
    assert from_here(listen) == ("/ip4/127.0.0.1/tcp/31337", "/ip6/::1/tcp/31337", "/ip4/192.0.2.7/tcp/1")
