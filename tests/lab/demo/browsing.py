"""A dashboard's page in headless Chromium, which must load nothing that its policy refuses, and raise no error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

import pytest
import trio

from ftnode.lab.demo.browser import Page, find_chromium, open_browser
from ftnode.node.watch.dashboard_feed import Feed
from ftnode.node.watch.dashboard_server import Public, serve_in_background

needs_chromium = pytest.mark.skipif(
    find_chromium() is None, reason="there is no Chromium here; Debian: apt install chromium"
)
WATCH = """
window.refused = [];
addEventListener("securitypolicyviolation", (event) => window.refused.push(event.violatedDirective));
addEventListener("error", (event) => window.refused.push(event.message));
addEventListener("unhandledrejection", (event) => window.refused.push(String(event.reason)));
"""


def in_browser(
    feed: Feed,
    test: Callable[[Page, str], Awaitable[None]],
    public: Public | None = None,
    behind: Callable[[str], AbstractContextManager[str]] = nullcontext,
) -> None:
    """Serve the feed, and test with a page and the URL to open. `behind`: a proxy in front of the server's URL; it
    gives its own."""

    async def main() -> None:
        server, close = serve_in_background("127.0.0.1", 0, feed, public)
        try:
            with behind(server.url) as url:
                async with open_browser() as page:
                    await page.call("Page.addScriptToEvaluateOnNewDocument", source=WATCH)
                    await test(page, url)
                    assert await page.evaluate("window.refused") == []
        finally:
            await trio.to_thread.run_sync(close)

    trio.run(main)
