"""Each client has so many questions, and nobody is another client by saying so."""

from __future__ import annotations

import pytest

from ftnode.node.watch import public_clients
from ftnode.node.watch.public_clients import (
    AT_ONCE,
    CLIENTS_MAX,
    CONNECTIONS_EACH,
    CONNECTIONS_MAX,
    PER_SECOND,
    THIS_MACHINE,
    TOKEN_BYTES,
    PublicClients,
    client_of,
    parse_proxies,
)
from ftnode.protocol.words.errors import UserError


@pytest.mark.parametrize(
    ("sender", "forwarded", "client"),
    [
        ("198.51.100.7", "", "198.51.100.7"),
        ("198.51.100.7", "203.0.113.1", "198.51.100.7"),
        ("10.0.0.5", "203.0.113.1", "10.0.0.5"),
        ("172.17.0.1", "203.0.113.1", "172.17.0.1"),
        ("127.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("127.0.0.1", "1.1.1.1, 203.0.113.1", "203.0.113.1"),
        ("::1", "1.1.1.1,203.0.113.1, 127.0.0.1", "203.0.113.1"),
        ("127.0.0.1", "1.1.1.1, 10.0.0.5", "10.0.0.5"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "unknown", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.1, unknown", "127.0.0.1"),
        ("127.0.0.1", "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:198.51.100.7", "203.0.113.1", "198.51.100.7"),
        ("::ffff:127.0.0.1", "203.0.113.1", "203.0.113.1"),
        ("fe80::1%eth0", "203.0.113.1", "fe80::/64"),
        ("", "203.0.113.1", ""),
    ],
)
def test_who_asks(sender: str, forwarded: str, client: str) -> None:
    assert client_of(sender, forwarded, THIS_MACHINE) == client


def test_a_proxy_elsewhere_is_believed_when_it_is_named() -> None:
    proxies = parse_proxies(["10.0.0.0/24", "2001:db8::7"])
    assert client_of("10.0.0.5", "1.1.1.1, 203.0.113.1", proxies) == "203.0.113.1"
    assert client_of("2001:db8::7", "203.0.113.1, 10.0.0.9", proxies) == "203.0.113.1"
    assert client_of("10.0.1.5", "203.0.113.1", proxies) == "10.0.1.5"
    assert client_of("127.0.0.1", "203.0.113.1", proxies) == "203.0.113.1"


@pytest.mark.parametrize("text", ["", "proxy.example", "10.0.0.1/24", "10.0.0.0/33", "127.0.0.1:80"])
def test_what_is_no_network(text: str) -> None:
    with pytest.raises(UserError, match="--proxy"):
        parse_proxies([text])


def ask(clients: PublicClients, client: str, now: float, count: int) -> list[int]:
    return [clients.wait(client, now) for _ in range(count)]


def test_so_many_at_once_then_so_many_a_second() -> None:
    clients = PublicClients(THIS_MACHINE)
    most = int(AT_ONCE)
    assert ask(clients, "a", 100.0, most + 2) == [0] * most + [1, 1]
    assert ask(clients, "b", 100.0, 1) == [0]
    assert ask(clients, "a", 101.0, int(PER_SECOND) + 1) == [0] * int(PER_SECOND) + [1]
    assert ask(clients, "a", 1000.0, most + 1) == [0] * most + [1]


def test_large_answers_cost_more_and_the_wait_says_how_long() -> None:
    clients = PublicClients(THIS_MACHINE)
    assert clients.wait("a", 0.0) == 0
    clients.got("a", int(AT_ONCE + 3 * PER_SECOND) * TOKEN_BYTES)
    wait = clients.wait("a", 0.0)
    assert wait == 4
    assert clients.wait("a", wait - 1.5) > 0 and clients.wait("a", float(wait)) == 0


def test_who_is_refused_is_not_charged() -> None:
    clients = PublicClients(THIS_MACHINE)
    ask(clients, "a", 0.0, 10 * int(AT_ONCE))
    assert clients.wait("a", 1.0) == 0


def test_the_table_is_bounded_and_forgets_the_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_clients, "CLIENTS_MAX", 8)
    clients = PublicClients(THIS_MACHINE)
    ask(clients, "busy", 0.0, int(AT_ONCE))
    for number in range(100):
        clients.wait(str(number), 0.0)
        assert clients.wait("busy", 0.0) > 0, "a busy client stays known"
    assert len(clients._tokens) == 8 < CLIENTS_MAX


def test_connections_of_a_proxy_are_everybodys() -> None:
    clients = PublicClients(parse_proxies(["10.0.0.2"]))
    assert clients.connections_of("127.0.0.1") == clients.connections_of("10.0.0.2") == CONNECTIONS_MAX
    assert clients.connections_of("10.0.0.3") == clients.connections_of("") == CONNECTIONS_EACH
