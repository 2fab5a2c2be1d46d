"""Headless Chromium over its DevTools protocol: enough of it to load a page, ask it things and take its picture.

https://chromedevtools.github.io/devtools-protocol/. The websocket is trio-websocket's, which libp2p brings along. The
browser has a profile of its own that is deleted, and talks to loopback only.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from ftnode.protocol.words.errors import LocalError, UserError

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
START_SECONDS: Final = 30.0
ANSWER_SECONDS: Final = 30.0
END_SECONDS: Final = 5.0
MESSAGE_BYTES_MAX: Final = 64 << 20
"""A picture of a large page is a few megabytes of base64."""
OPTIONS: Final = (
    "--headless=new", "--remote-debugging-port=0", "--remote-allow-origins=*", "--no-first-run", "--disable-gpu",
    "--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-extensions",
    "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars", "--metrics-recording-only", "--mute-audio",
    "--enable-precise-memory-info", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)  # fmt: skip


def find_chromium() -> str | None:
    """Its path, or None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Page:
    """One tab. Every call raises LocalError when the browser refuses, trio.TooSlowError when it does not answer."""

    def __init__(self, socket: Any, process: int) -> None:
        self._socket, self.process = socket, process
        self._count = 0

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command and its result; events in between are passed over."""
        self._count += 1
        with trio.fail_after(ANSWER_SECONDS):
            await self._socket.send_message(json.dumps({"id": self._count, "method": method, "params": parameters}))
            while True:
                told = json.loads(await self._socket.get_message())
                if told.get("id") == self._count:
                    break
        if "error" in told:
            raise LocalError(f"{method}: {told['error'].get('message')}")
        result: dict[str, Any] = told["result"]
        return result

    async def open(self, url: str) -> None:
        """Until it is there with its scripts."""
        found = await self.call("Page.navigate", url=url)
        if found.get("errorText"):
            raise LocalError(f"{url}: {found['errorText']}")
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; promises are awaited."""
        found = await self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in found:
            raise LocalError(f"{expression[:80]}: {found['exceptionDetails'].get('exception', found)}")
        return found["result"].get("value")

    async def until(self, expression: str, seconds: float = 20.0) -> Any:
        """The expression's value once it is true. Raises trio.TooSlowError."""
        with trio.fail_after(seconds):
            while not (found := await self.evaluate(expression)):
                await trio.sleep(0.05)
        return found

    async def resize(self, width: int, height: int, scale: float = 1.0) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=False
        )

    async def theme(self, name: str) -> None:
        """light or dark."""
        await self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    async def picture(self, path: Path) -> None:
        """What is seen, as PNG."""
        found = await self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))

    async def heap_bytes(self, collect: bool = True) -> int:
        """Bytes that JavaScript's objects take, after garbage is collected unless told otherwise."""
        if collect:
            await self.call("HeapProfiler.collectGarbage")
        found = await self.call("Performance.getMetrics")
        return int(next(metric["value"] for metric in found["metrics"] if metric["name"] == "JSHeapUsedSize"))


@asynccontextmanager
async def open_browser() -> AsyncIterator[Page]:
    """A page of a browser that ends with the block. Raises UserError when there is none, or it does not start."""
    program = find_chromium()
    if program is None:
        raise UserError("there is no Chromium on this machine; Debian: apt install chromium", 69)
    try:
        from trio_websocket import open_websocket_url
    except ImportError:
        raise UserError("trio-websocket is missing; pip install trio-websocket", 69) from None
    options = [*OPTIONS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]  # as root it will not start otherwise
    with tempfile.TemporaryDirectory(prefix="ftnode-browser-", ignore_cleanup_errors=True) as profile:
        process = await trio.lowlevel.open_process(
            [program, *options, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            url = await _page_url(Path(profile), process)
            async with open_websocket_url(url, max_message_size=MESSAGE_BYTES_MAX) as socket:
                page = Page(socket, process.pid)
                for domain in ("Page", "Runtime", "Performance", "HeapProfiler"):
                    await page.call(f"{domain}.enable")
                yield page
        finally:
            process.terminate()
            with trio.CancelScope(shield=True):
                with trio.move_on_after(END_SECONDS):
                    await process.wait()
                if process.poll() is None:
                    process.kill()
                    await process.wait()


async def _page_url(profile: Path, process: trio.Process) -> str:
    """Of its first page's websocket: the port stands in a file of the profile."""
    from http.client import HTTPConnection

    noted = profile / "DevToolsActivePort"
    try:
        with trio.fail_after(START_SECONDS):
            while not noted.exists() or noted.read_text().count("\n") < 1:
                if process.poll() is not None:
                    raise UserError(f"Chromium ended at once with code {process.returncode}", 69)
                await trio.sleep(0.05)
            port = int(noted.read_text().split()[0])
            while True:
                connection = HTTPConnection("127.0.0.1", port, timeout=START_SECONDS)
                connection.request("GET", "/json/list")
                pages = json.loads(connection.getresponse().read())
                connection.close()
                for page in pages:
                    if page["type"] == "page":
                        return str(page["webSocketDebuggerUrl"])
                await trio.sleep(0.05)
    except trio.TooSlowError:
        raise UserError(f"Chromium did not start within {START_SECONDS:g} s", 69) from None
