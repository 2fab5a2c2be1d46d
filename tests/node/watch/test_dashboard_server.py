"""The dashboard's web server lets people look, and nothing else."""

from __future__ import annotations

import hashlib
import json
import re
import socket
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from ftnode.node.watch import dashboard_server
from ftnode.node.watch.dashboard_feed import Feed
from ftnode.node.watch.dashboard_server import (
    CLIENTS_MAX,
    FILES,
    DashboardServer,
    is_loopback,
    parse_listen,
    serve_in_background,
)
from ftnode.node.watch.history import CommitRow
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import Rung
from tests.node.cli.cli_runner import Seen

ROOT = Path(__file__).parents[3]
PEER = "/ip4/127.0.0.1/tcp/1/p2p/12D3KooWHUw3Tn3p4HGPuk8Zb1HmL2Zq8zVs3PJ5GZqNBwRoiF6q"


@pytest.fixture
def feed() -> Feed:
    return Feed("live")


@pytest.fixture
def server(feed: Feed) -> Iterator[DashboardServer]:
    server, close = serve_in_background("127.0.0.1", 0, feed)
    yield server
    close()


def ask(server: DashboardServer, path: str, method: str = "GET", **headers: str) -> tuple[HTTPResponse, bytes]:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def raw(server: DashboardServer, data: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(1 << 16), b""))


def test_every_file_is_there_with_its_kind_and_the_policy(server: DashboardServer) -> None:
    for path, (name, kind) in FILES.items():
        answer, body = ask(server, path)
        assert (answer.status, answer.headers["Content-Type"]) == (200, kind)
        assert body == (ROOT / "node" / "watch" / "page" / name).read_bytes()
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_a_head_has_no_body(server: DashboardServer) -> None:
    answer, body = ask(server, "/", "HEAD")
    assert (answer.status, body) == (200, b"")
    assert int(answer.headers["Content-Length"]) > 1000


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_can_be_written(method: str, server: DashboardServer) -> None:
    answer, _ = ask(server, "/look", method)
    assert answer.status == 501
    assert "default-src 'none'" in answer.headers["Content-Security-Policy"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8080", "localhost", "localhost:1", "[::1]:8080", "192.0.2.7:80"]
)
def test_numbers_and_localhost_are_ours(host: str, server: DashboardServer) -> None:
    assert ask(server, "/look", Host=host)[0].status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "[::1", "", "a b"]
)
def test_a_rebound_name_sees_nothing(host: str, server: DashboardServer) -> None:
    for path in ("/", "/look"):
        answer, body = ask(server, path, Host=host)
        assert answer.status == 421
        assert b"generation" not in body and b"<html" not in body


def test_a_request_without_a_host_sees_nothing(server: DashboardServer) -> None:
    assert b" 421 " in raw(server, b"GET /look HTTP/1.0\r\n\r\n").split(b"\r\n")[0]


def test_a_body_is_not_read_as_the_next_request(server: DashboardServer) -> None:
    smuggled = b"GET /look HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    head = b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(smuggled)
    answer = raw(server, head + smuggled)
    assert answer.count(b"HTTP/1.1") == 1 and b" 400 " in answer.split(b"\r\n")[0]


def test_a_page_asks_again_on_the_same_connection(server: DashboardServer) -> None:
    connection = HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    try:
        connection.connect()
        first = connection.sock
        for _ in range(3):
            connection.request("GET", "/look")
            assert json.loads(connection.getresponse().read())["commits"]["rows"] == []
            assert connection.sock is first is not None
    finally:
        connection.close()


def test_two_questions_at_once_get_two_answers(server: DashboardServer) -> None:
    last = b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    answers = raw(server, b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n" + last)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == 2 and answers.endswith(b"</svg>\n")


@pytest.mark.parametrize("path", ["/nothing", "/../cli.py", "/..%2fcli.py", "//etc/passwd", "/dashboard/index.html"])
def test_there_is_nothing_else(path: str, server: DashboardServer) -> None:
    assert ask(server, path)[0].status == 404


@pytest.mark.parametrize(
    "query", ["commits=x", "commits=-1", f"notes={1 << 53}", "validations=1.5", "&".join("abcdefghij")]
)
def test_a_place_that_is_none_is_refused(query: str, server: DashboardServer) -> None:
    assert ask(server, f"/look?{query.replace('&', '=1&')}")[0].status == 400


def test_a_look_tells_what_is_new(server: DashboardServer, feed: Feed) -> None:
    feed.tell_commits([CommitRow(1, 2.0, 8, 0.5, False)], "r", "l")
    told = json.loads(ask(server, "/look")[1])
    assert told["commits"] == {"rows": [[1, 2.0, 8, 0.5, False]], "next": 1, "more": False}
    again = json.loads(ask(server, f"/look?generation={told['generation']}&commits=1")[1])
    assert again["commits"]["rows"] == []
    assert json.loads(ask(server, "/look?generation=other&commits=1")[1])["commits"]["rows"]


def test_the_oldest_of_too_many_clients_makes_room(server: DashboardServer) -> None:
    idle = [socket.create_connection(("127.0.0.1", server.server_port), timeout=10) for _ in range(CLIENTS_MAX + 3)]
    try:
        assert ask(server, "/")[0].status == 200
        assert idle[0].recv(1) == b""
        idle[-1].sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert idle[-1].recv(15).startswith(b"HTTP/1.1 200")
    finally:
        for connection in idle:
            connection.close()


def test_a_client_that_says_nothing_is_hung_up_on(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard_server, "IDLE_SECONDS", 0.2)
    server, close = serve_in_background("127.0.0.1", 0, feed)
    try:
        assert raw(server, b"GET / HT") == b""
    finally:
        close()


def test_closing_hangs_up_on_pages(feed: Feed) -> None:
    server, close = serve_in_background("127.0.0.1", 0, feed)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as connection:
        connection.sendall(b"GET /icon.svg HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(1 << 16)
        close()
        while connection.recv(1 << 16):
            pass


def test_a_port_in_use_is_one_line(server: DashboardServer, feed: Feed) -> None:
    with pytest.raises(UserError, match=f"127.0.0.1:{server.server_port} is in use") as refused:
        DashboardServer("127.0.0.1", server.server_port, feed)
    assert refused.value.exit_code == 69


@pytest.mark.parametrize(
    ("text", "where"),
    [("8080", ("127.0.0.1", 8080)), ("0.0.0.0:0", ("0.0.0.0", 0)), ("[::1]:80", ("::1", 80)), ("box:9", ("box", 9))],
)
def test_listen(text: str, where: tuple[str, int]) -> None:
    assert parse_listen(text) == where


@pytest.mark.parametrize("text", ["", "x", "1.2.3.4", "1.2.3.4:", "1.2.3.4:70000", "::1:80", "[]:80", "h:²", "h:-1"])
def test_no_listen(text: str) -> None:
    with pytest.raises(UserError):
        parse_listen(text)


def test_loopback() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.3.2.1", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.0.2.7", "box", "localhost.example")))


def test_the_page_has_no_code_or_style_of_its_own_and_asks_nobody_else() -> None:
    folder = ROOT / "node" / "watch" / "page"
    page = (folder / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=|javascript:", page)
    for path in folder.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        text = text.replace("/*! https://github.com/leeoniya/uPlot (v1.6.32) */", "")
        assert not re.search(
            r"https?://|//[a-z]+\.|@import|innerHTML|outerHTML|insertAdjacentHTML|document\.write", text
        )
        assert not re.search(r"\beval\b|new Function|setAttribute\(.(on|style|href|src)", text)


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("uPlot.iife.min.js", "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"),
        ("uPlot.min.css", "df630c6a8d6f8eeaff264b50f73ce5b114f646ffd9a0bb74f049b0a00135fa04"),
    ],
)
def test_uplot_is_as_its_package_has_it(name: str, digest: str) -> None:
    """Version 1.6.32. Decision 0016 says where it is from, and how to take another version."""
    folder = ROOT / "node" / "watch" / "page"
    assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert "MIT License" in (folder / "uPlot.LICENSE").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--listen", "nowhere"], 64, "HOST:PORT"),
        (["--listen", "no-such-host.invalid:0", "--replay", "{here}"], 66, "no traces below"),
        (["--replay", "{here}/missing"], 66, "there is no folder"),
        (["--replay", "{here}", "--peer", "x"], 64, "excludes"),
        (["--home", "{here}"], 64, "pass --peer ADDR"),
        (["--home", "{here}", "--peer", "x"], 64, "no multiaddr"),
        (["--home", "{here}", "--public"], 64, "pass --peer ADDR"),
        (["--home", "{here}", "--public", "--peer", "x"], 64, "no multiaddr"),
        (["--home", "{here}", "--public", "ftnode:x"], 64, "is no ftnode: link"),
        (["--home", "{here}", "--proxy", "10.0.0.2"], 64, "add --public"),
        (["--home", "{here}", "--public", "--peer", PEER, "--proxy", "proxy.example"], 64, "is no network"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], code: int, says: str, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    assert ftnode("dashboard", *(text.format(here=tmp_path) for text in arguments)).refused(code, says)


def test_the_page_has_the_words_of_the_terminal_for_where_weights_come_from() -> None:
    script = (Path(dashboard_server.__file__).parent / "page" / "dashboard.js").read_text(encoding="utf-8")
    table = script[script.index("const SOURCES = {") : script.index("const TELLING")]
    assert dict(re.findall(r'(\w+): "([^"]+)"', table)) == {rung.value: rung.spoken for rung in Rung}
    assert script.count("${row.rung}") == 0, "nothing else of a recovery shows the protocol's word"
