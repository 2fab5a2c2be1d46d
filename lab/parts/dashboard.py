"""`ftnode lab dashboard`: when the dashboard's page is first painted, and what an hour of a run costs the browser.

The traces of a demo are repeated until they last an hour, and replayed to a page in headless Chromium, which so gets
what it would have got in that hour, in a minute. The heap is looked at all the while, garbage included. Then the whole
hour is there, and fresh pages of fresh browsers are timed: `first-contentful-paint` counts from the page's request.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import trio

from ftnode.lab.demo.browser import Page, open_browser
from ftnode.lab.demo.dashboard_replay import Recording, Replay, read_recording, repeated
from ftnode.lab.swarms.swarm import descendants
from ftnode.node.watch.dashboard_feed import Feed
from ftnode.node.watch.dashboard_server import serve_in_background
from ftnode.protocol.words.errors import UserError

HOUR_SECONDS = 3600.0
PAINT_BUDGET_SECONDS = 1.0
MEMORY_BUDGET_MEGABYTES = 50
PAINTS = 5
SAMPLE_SECONDS = 1.0
SETTLE_SECONDS = 3.0
"""After a start, until the browser's processes have what they need themselves."""
PAINTED = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
SHOWN = "performance.getEntriesByName('shown')[0]?.startTime"
STEP_SHOWN = "Number(document.getElementById('step').textContent.replaceAll(',', ''))"


def run(folder: Path, as_json: bool = False, hour: float = HOUR_SECONDS, speed: float = 60.0) -> dict[str, Any]:
    """Measure, print and return the figures. Raises UserError without traces or Chromium."""
    if not folder.exists():
        raise UserError(f"there is no folder {folder}", 66)
    recording = repeated(read_recording(folder), hour)
    figures = trio.run(measure, recording, speed)
    print(json.dumps(figures, indent=2) if as_json else table(figures))
    return figures


async def measure(recording: Recording, speed: float) -> dict[str, Any]:
    """Replay it to a page, then time pages that come late."""
    feed = Feed("replay")
    replay = Replay(recording, feed)
    server, close = serve_in_background("127.0.0.1", 0, feed)
    try:
        async with open_browser() as page:
            figures = await _memory(page, server.url, replay, speed)
        paints = [await _paint(server.url) for _ in range(PAINTS)]
    finally:
        close()
    first, shown = ([paint[index] for paint in paints] for index in (0, 1))
    return {
        "recorded_seconds": round(recording.ended - recording.began, 1),
        "speed": speed,
        **figures,
        "first_paint_seconds": median(first),
        "first_paint_slowest_seconds": max(first),
        "shown_seconds": median(shown),
        "passed": median(first) <= PAINT_BUDGET_SECONDS
        and max(figures["heap_highest_megabytes"], figures["renderer_highest_megabytes"]) <= MEMORY_BUDGET_MEGABYTES,
    }


async def _memory(page: Page, url: str, replay: Replay, speed: float) -> dict[str, Any]:
    """Megabytes (10^6) of JavaScript's heap, and of private memory of the process that draws the page, over what it
    had with an icon of the same server in it: of all that draw, the one that grew most."""
    await page.open(f"{url}icon.svg")
    await trio.sleep(SETTLE_SECONDS)
    blank = renderer_bytes(page.process)
    await page.open(url)
    heaps, renderers = [], []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replay.run, speed)
        while not replay.over:
            await trio.sleep(SAMPLE_SECONDS)
            heaps.append(await page.heap_bytes(collect=False))
            now = renderer_bytes(page.process)
            renderers.append(max(size - blank.get(pid, 0) for pid, size in now.items()))
        nursery.cancel_scope.cancel()
    newest = replay.newest_step
    await page.until(f"{STEP_SHOWN} === {newest}")
    return {
        "commits": newest,
        "heap_highest_megabytes": round(max(heaps) / 1e6, 2),
        "heap_after_megabytes": round(await page.heap_bytes() / 1e6, 2),
        "renderer_highest_megabytes": round(max(renderers) / 1e6, 1),
    }


async def _paint(url: str) -> tuple[float, float]:
    """Seconds from the request of a page to its first paint, and until it shows the run. On a busy machine the script
    may have the run in the page before anything is painted; nobody sees it earlier."""
    async with open_browser() as page:
        await page.open(url)
        painted, shown = await page.until(PAINTED), await page.until(SHOWN)
    return round(painted / 1e3, 3), round(max(painted, shown) / 1e3, 3)


def renderer_bytes(browser: int) -> dict[int, int]:
    """Memory that each process that draws a browser's pages has written and shares with nobody. What it only reads of
    the browser's own files can be dropped at any time, and is not counted."""
    return {pid: _private_bytes(pid) for pid in descendants(browser) if _is_renderer(pid)}


def _is_renderer(pid: int) -> bool:
    try:
        return b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _private_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_Dirty"))


def table(figures: dict[str, Any]) -> str:
    return "\n".join([
        f"{'first paint':<34}{figures['first_paint_seconds']:>8.2f} s   slowest of {PAINTS} "
        f"{figures['first_paint_slowest_seconds']:.2f} (at most {PAINT_BUDGET_SECONDS:g})",
        f"{'the run shown':<34}{figures['shown_seconds']:>8.2f} s",
        f"{'memory of the page, highest':<34}{figures['renderer_highest_megabytes']:>8.1f} MB  "
        f"private, over an empty page (at most {MEMORY_BUDGET_MEGABYTES})",
        f"{'… its heap, with garbage':<34}{figures['heap_highest_megabytes']:>8.1f} MB",
        f"{'… its heap afterwards, collected':<34}{figures['heap_after_megabytes']:>8.1f} MB",
        f"{figures['commits']:,} commits in {figures['recorded_seconds']:,.0f} recorded seconds, "
        f"{figures['speed']:g} times as fast",
    ])  # fmt: skip
