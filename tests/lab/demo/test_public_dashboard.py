"""The public page in headless Chromium, behind a path of a reverse proxy. Skips, and says so, without Chromium."""

from __future__ import annotations

import json
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from ftnode.lab.demo.browser import Page
from ftnode.node.watch import public_clients, public_page
from ftnode.node.watch.dashboard_feed import Decision, Feed
from ftnode.node.watch.dashboard_server import Public
from ftnode.node.watch.history import CommitRow
from ftnode.node.watch.public_page import Joining
from ftnode.node.watch.status import Speaker, StageRow, SwarmStatus
from tests.lab.demo.browsing import in_browser, needs_chromium
from tests.lab.demo.proxies import Behind, caddy, nginx

PREFIX = "/swarms/tiny/"
TINY = SwarmStatus(
    Speaker("p", "", "", ""), run="r", name="tiny", step=3, steps=9, lineage="l", state="training", loss=2.0,
    stages=(StageRow(0, "p", "training", 0, 3, 1, 0, 0.1),), announcement="The run ends on Friday.",
)  # fmt: skip


class Proxy(BaseHTTPRequestHandler):
    """Passes on what is below PREFIX, under the name that the browser used, and nothing else."""

    upstream = ""

    def do_GET(self) -> None:
        if not self.path.startswith(PREFIX):
            self.send_error(404)
            return
        host = urlsplit(self.upstream).netloc
        connection = HTTPConnection(host, timeout=10)
        told = {name: self.headers[name] for name in ("Accept-Encoding", "Host") if name in self.headers}
        forwarded = {"X-Forwarded-For": self.client_address[0].replace("127.0.0.1", "203.0.113.9")}
        connection.request("GET", self.path[len(PREFIX) - 1 :], headers=told | forwarded)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name not in ("Date", "Server", "Connection"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@contextmanager
def proxied(upstream: str) -> Iterator[str]:
    handler = type("Handler", (Proxy,), {"upstream": upstream})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_no_address_of_the_page_leaves_its_path() -> None:
    folder = Path(public_page.__file__).parent / "page"
    page, script = ((folder / name).read_text(encoding="utf-8") for name in ("index.html", "dashboard.js"))
    assert 'href="/' not in page and 'src="/' not in page and "fetch(`/" not in script and 'ask("/' not in script


@needs_chromium
@pytest.mark.parametrize("proxy", [lambda folder: proxied, nginx, caddy], ids=["ours", "nginx", "caddy"])
def test_the_page_works_behind_a_path_and_says_how_to_join(tmp_path: Path, proxy: Callable[[Path], Behind]) -> None:
    feed = Feed("live")
    feed.tell_status(TINY)
    feed.tell_commits([CommitRow(step, 2.0, 8, 0.5, False) for step in range(1, 1001)], "r", "l")
    feed.tell_decisions([Decision(1.0, 2, "p", "lost", "stage 2 is lost"), Decision(2.0, 2, "p", "x", "at 1.2.3.4")])
    ways = Joining("ftnode join 'ftnode:0?peer=/dns4/m/tcp/1'", "ftnode status 'ftnode:0'", True)

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("document.getElementById('step').textContent === '3'")
        assert await page.evaluate("known.loss.length") == 1000, "the past is there as well"
        assert await page.evaluate("getComputedStyle(document.getElementById('joining')).borderRadius") != "0px"
        text = await page.evaluate("document.body.textContent")
        assert "stage 2 is lost" in text and "1.2.3.4" not in text and "The run ends on Friday." in text
        assert await page.evaluate("document.getElementById('joining').hidden") is False
        assert await page.evaluate("document.getElementById('join').textContent") == ways.join
        assert await page.evaluate("document.getElementById('listed').hidden") is False
        await page.evaluate("document.querySelector('[data-copies=join]').click()")
        await page.until("document.querySelector('[data-copies=join]').textContent !== 'Copy'")
        assert await page.evaluate("getSelection().toString()") == ways.join
        feed.tell_commits([CommitRow(1001, 2.0, 8, 0.5, False)], "r", "l")
        feed.tell_decisions([Decision(30.0, 2, "p", "rebuilt", "stage 2 is back")])
        await page.until("known.loss.length === 1001")
        log = await page.evaluate("[...document.querySelectorAll('#log .kind + span')].map((one) => one.textContent)")
        assert log == ["stage 2 is back", "at …", "stage 2 is lost"], "each decision once"
        feed.tell_status(replace(TINY, lineage="another", step=4))
        await page.until("document.getElementById('step').textContent === '4' && known.loss.length === 0")

    in_browser(feed, test, Public(lambda: ways), proxy(tmp_path))


@needs_chromium
def test_a_page_that_asked_too_often_says_so_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_clients, "PER_SECOND", 0.2)
    monkeypatch.setattr(public_clients, "AT_ONCE", 30.0)
    feed = Feed("live")
    feed.tell_status(TINY)

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("document.getElementById('step').textContent === '3'")
        feed.tell_status(replace(TINY, step=5))
        await page.evaluate("Promise.all(Array.from({ length: 40 }, () => fetch('look', { cache: 'no-store' })))")
        await page.until("document.getElementById('banner').textContent.includes('too many questions')")
        await page.until("document.getElementById('step').textContent === '5'")
        assert await page.evaluate("document.getElementById('banner').hidden")

    in_browser(feed, test, Public(), proxied)


@needs_chromium
def test_a_page_that_is_not_public_says_nothing_of_joining() -> None:
    feed = Feed("live")
    feed.tell_status(TINY)

    async def test(page: Page, url: str) -> None:
        await page.open(url)
        await page.until("document.getElementById('step').textContent === '3'")
        assert await page.evaluate("document.getElementById('joining').hidden")
        with urllib.request.urlopen(f"{url}look", timeout=10) as answer:
            assert "public" not in json.load(answer)

    in_browser(feed, test)
