"""The web server in public mode, over real connections: anyone may look, nobody can use it up."""

from __future__ import annotations

import gzip
import json
import select
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPResponse

import pytest

from ftnode.node.watch import public_clients, public_site
from ftnode.node.watch.dashboard_feed import Feed
from ftnode.node.watch.dashboard_server import FILES, DashboardServer, Public, serve_in_background
from ftnode.node.watch.public_clients import AT_ONCE, PER_SECOND
from ftnode.node.watch.public_site import REQUEST_BYTES_MAX

LOOK = b"GET /look HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def server() -> Iterator[DashboardServer]:
    server, close = serve_in_background("127.0.0.1", 0, Feed("live"), Public())
    yield server
    close()


@pytest.fixture
def unproxied(monkeypatch: pytest.MonkeyPatch) -> Iterator[DashboardServer]:
    """Where a connection from loopback is as one from anywhere else."""
    server, close = serve_in_background("127.0.0.1", 0, Feed("live"), Public(proxies=()))
    yield server
    close()


def connect(server: DashboardServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_port), timeout=10)


def ask(server: DashboardServer, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def ends(connection: socket.socket) -> bool:
    """Whether the server hangs up, after whatever it says."""
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        pass
    return True


@pytest.mark.parametrize("host", ["swarm.example", "127.0.0.1", "evil.example:80", "", "[::1"])
def test_it_goes_by_any_name(host: str, server: DashboardServer) -> None:
    for path in ("/", "/look", "/past"):
        assert ask(server, path, Host=host)[0].status == 200


def test_documents_are_packed_and_may_be_kept_for_as_long_as_they_are_good(server: DashboardServer) -> None:
    for path, cache in (("/look", "public, max-age=1"), ("/past", "public, max-age=10")):
        answer, body = ask(server, path, Accept_Encoding="br, gzip;q=0.8")
        assert (answer.headers["Content-Encoding"], answer.headers["Cache-Control"]) == ("gzip", cache)
        assert answer.headers["Vary"] == "Accept-Encoding" and answer.headers.get_all("Cache-Control") == [cache]
        assert json.loads(gzip.decompress(body))["format"] == 1
        for accepted in ("", "identity", "gzip;q=0", "gzip; q=0.000"):
            answer, body = ask(server, path, Accept_Encoding=accepted)
            assert "Content-Encoding" not in answer.headers and json.loads(body)["format"] == 1


def test_files_may_be_kept_and_have_the_same_policy_as_before(server: DashboardServer) -> None:
    for path in FILES:
        answer, _ = ask(server, path)
        assert (answer.status, answer.headers["Cache-Control"]) == (200, "public, max-age=300")
        assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(method: str, server: DashboardServer) -> None:
    answer, _ = ask(server, "/look", method)
    assert (answer.status, answer.headers["Cache-Control"]) == (501, "no-store")
    assert ask(server, "/nothing")[0].status == 404


def until_refused(server: DashboardServer, **headers: str) -> HTTPResponse:
    for _ in range(4 * int(AT_ONCE)):
        answer, _ = ask(server, "/look", **headers)
        if answer.status == 429:
            return answer
        assert answer.status == 200
    raise AssertionError("nobody was refused")


def test_who_asks_too_often_is_told_when_to_come_back(server: DashboardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_clients, "PER_SECOND", PER_SECOND / 100)
    monkeypatch.setattr(public_clients, "AT_ONCE", 5.0)
    answer = until_refused(server, X_Forwarded_For="203.0.113.1")
    assert 1 <= int(answer.headers["Retry-After"]) <= 10
    assert (answer.headers["Connection"], answer.headers["Cache-Control"]) == ("close", "no-store")
    assert ask(server, "/", X_Forwarded_For="203.0.113.1")[0].status == 429, "for everything"
    assert ask(server, "/look", X_Forwarded_For="203.0.113.2")[0].status == 200, "others are not"


def test_who_is_no_proxy_is_one_client_whatever_it_says(
    unproxied: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_clients, "PER_SECOND", PER_SECOND / 100)
    monkeypatch.setattr(public_clients, "AT_ONCE", 5.0)
    statuses = [ask(unproxied, "/look", X_Forwarded_For=f"203.0.113.{n}")[0].status for n in range(8)]
    assert statuses == [200] * 5 + [429] * 3


def test_what_a_client_wrote_before_the_proxy_does_not_count(
    server: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_clients, "PER_SECOND", PER_SECOND / 100)
    monkeypatch.setattr(public_clients, "AT_ONCE", 5.0)
    statuses = []
    for number in range(8):
        with connect(server) as connection:
            lines = f"X-Forwarded-For: 198.51.100.{number}\r\nX-Forwarded-For: 203.0.113.1\r\n"
            connection.sendall(LOOK.replace(b"\r\n\r\n", f"\r\n{lines}\r\n".encode()))
            statuses.append(int(connection.recv(12)[9:]))
    assert statuses == [200] * 5 + [429] * 3


def test_what_two_proxies_wrote_on_lines_of_their_own_counts_together(
    server: DashboardServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_clients, "PER_SECOND", PER_SECOND / 100)
    monkeypatch.setattr(public_clients, "AT_ONCE", 2.0)
    for number in range(6):
        with connect(server) as connection:
            lines = f"X-Forwarded-For: 203.0.113.{number}\r\nX-Forwarded-For: 127.0.0.1\r\n"
            connection.sendall(LOOK.replace(b"\r\n\r\n", f"\r\n{lines}\r\n".encode()))
            assert connection.recv(12) == b"HTTP/1.1 200"


def test_one_client_has_so_many_connections(unproxied: DashboardServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_clients, "CONNECTIONS_EACH", 4)
    with ExitStack() as stack:
        idle = [stack.enter_context(connect(unproxied)) for _ in range(6)]
        assert ends(idle[0]) and ends(idle[1])
        idle[5].sendall(LOOK)
        assert idle[5].recv(15).startswith(b"HTTP/1.1 200")
        idle[2].sendall(LOOK)
        assert idle[2].recv(15).startswith(b"HTTP/1.1 200")


def test_all_together_have_so_many_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_site, "CONNECTIONS_MAX", 4)
    server, close = serve_in_background("127.0.0.1", 0, Feed("live"), Public())
    try:
        with ExitStack() as stack:
            idle = [stack.enter_context(connect(server)) for _ in range(6)]
            assert ends(idle[0]) and ends(idle[1])
            idle[5].sendall(LOOK)
            assert idle[5].recv(15).startswith(b"HTTP/1.1 200")
    finally:
        close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[DashboardServer]:
    """Waits for half a second, and rations nobody."""
    monkeypatch.setattr(public_site, "IDLE_SECONDS", 0.5)
    monkeypatch.setattr(public_clients, "AT_ONCE", 1e9)
    server, close = serve_in_background("127.0.0.1", 0, Feed("live"), Public())
    yield server
    close()


def test_who_sends_a_byte_now_and_then_is_hung_up_on(hasty: DashboardServer) -> None:
    with connect(hasty) as connection:
        connection.settimeout(0.1)
        sent = 0
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            for byte in LOOK * 100:
                connection.sendall(bytes([byte]))
                sent += 1
                try:
                    assert connection.recv(1 << 16) == b""
                except TimeoutError:
                    continue
        assert sent < len(LOOK)
    assert ask(hasty, "/look")[0].status == 200


def test_who_does_not_take_an_answer_is_hung_up_on(hasty: DashboardServer) -> None:
    """More of them than the kernel keeps for a connection."""
    size = len(ask(hasty, "/uPlot.js")[1])
    count = (32 << 20) // size
    with connect(hasty) as connection:
        connection.sendall(b"GET /uPlot.js HTTP/1.1\r\nHost: x\r\n\r\n" * count)
        ended = select.poll()
        ended.register(connection, 0)  # nothing is read; the end of a connection is told of always
        assert ended.poll(10_000)
    assert ask(hasty, "/look")[0].status == 200


def test_large_headers_end_the_connection(server: DashboardServer) -> None:
    with connect(server) as connection:
        connection.sendall(b"GET /look HTTP/1.1\r\nCookie: " + b"x" * (2 * REQUEST_BYTES_MAX))
        assert ends(connection)
    assert ask(server, "/look")[0].status == 200
