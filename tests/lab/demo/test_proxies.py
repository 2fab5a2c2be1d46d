"""A public page behind nginx and Caddy: whom they ask for, and that nobody is served what is another's."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ftnode.node.watch import public_clients
from ftnode.node.watch.dashboard_feed import Feed
from ftnode.node.watch.dashboard_server import Public, serve_in_background
from tests.lab.demo.proxies import Behind, caddy, nginx

PROXY = (ipaddress.ip_network("127.0.0.1/32"),)
"""So that other addresses of loopback are as good as any of the Internet."""
ONE, OTHER = "127.0.0.2", "127.0.0.3"
AT_ONCE = 5
Proxied = Callable[[Path], Behind]
both = pytest.mark.parametrize("proxy", [nginx, caddy])


@contextmanager
def page_behind(folder: Path, proxy: Proxied) -> Iterator[str]:
    server, close = serve_in_background("127.0.0.1", 0, Feed("live"), Public(proxies=PROXY))
    try:
        with proxy(folder)(server.url) as url:
            yield url
    finally:
        close()


def ask(url: str, path: str, client: str = ONE, **headers: str) -> tuple[HTTPResponse, bytes]:
    place = urlsplit(url)
    connection = HTTPConnection(str(place.hostname), place.port, timeout=10, source_address=(client, 0))
    connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


@both
def test_the_path_without_its_slash_leads_to_the_page(tmp_path: Path, proxy: Proxied) -> None:
    with page_behind(tmp_path, proxy) as url:
        answer, _ = ask(url, "/tiny")
        assert answer.status in (301, 302)
        assert urlsplit(answer.headers["Location"]).path == "/tiny/"
        answer, body = ask(url, "/tiny/")
        assert answer.status == 200 and b"<title>" in body
        assert b"ftnode" in body and b"ftnode" not in ask(url, "/")[1], "nothing of it is elsewhere"


@both
def test_each_client_has_a_ration_of_its_own_whatever_it_says_of_itself(
    tmp_path: Path, proxy: Proxied, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(public_clients, "PER_SECOND", 0.001)
    monkeypatch.setattr(public_clients, "AT_ONCE", float(AT_ONCE))
    with page_behind(tmp_path, proxy) as url:
        codes = [ask(url, f"/tiny/look?{n}", X_Forwarded_For=f"203.0.113.{n}")[0].status for n in range(AT_ONCE + 2)]
        assert codes == [200] * AT_ONCE + [429] * 2
        refused, _ = ask(url, "/tiny/look?again", ONE)
        assert refused.status == 429 and int(refused.headers["Retry-After"]) > 0
        answer, body = ask(url, "/tiny/look?again", OTHER)
        assert answer.status == 200 and json.loads(body)["format"] == 1, "what another one is refused is kept by nobody"


@both
def test_who_takes_no_packed_answer_gets_a_plain_one(tmp_path: Path, proxy: Proxied) -> None:
    with page_behind(tmp_path, proxy) as url:
        for path in ("/tiny/look", "/tiny/dashboard.css"):
            for accepted, packed in (("gzip", "gzip"), ("identity", None), ("gzip", "gzip")):
                answer, body = ask(url, path, Accept_Encoding=accepted)
                assert answer.headers["Content-Encoding"] == packed and (body[:2] == b"\x1f\x8b") == bool(packed)
                assert "default-src 'none'" in answer.headers["Content-Security-Policy"] or path.endswith("look")
