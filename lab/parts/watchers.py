"""`ftnode lab watchers`: what many watchers of one public page cost the dashboard, and the run that it shows.

The run is fake responders with real p2pds (watch_responders.py), the dashboard a process of its own. Watchers ask as
the page's script does, each over a connection of its own, and say like a reverse proxy that they come from different
places. The run's step goes on with every question that a member is asked, so the page itself tells how many were asked.

Before there were public pages, all watchers were served by a plain dashboard. It is measured as well: the same
watchers, each of whom asks once a second for what is new to it.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, Final
from urllib.parse import urlsplit

import trio

from ftnode.lab.parts.watch import cpu_seconds, responders
from ftnode.node.machine.child_processes import die_with
from ftnode.node.watch.public_page import LOGS, PAGE_SECONDS
from ftnode.protocol.words.errors import UserError

CORE_SHARE_MAX: Final = 0.10
ASKED_MORE_MAX: Final = 1.2
"""Times what members are asked for one watcher: on a busy machine a look takes longer at one time than at another."""
SETTLE_SECONDS: Final = 5.0
START_SECONDS: Final = 60.0
PLAIN_SECONDS: Final = 1.0
"""A page that is not public asks so often."""
HEADERS: Final = (
    "Host: swarm.example\r\nConnection: keep-alive\r\nAccept: */*\r\nAccept-Encoding: gzip, deflate, br, zstd\r\n"
    "Accept-Language: en-GB,en;q=0.9\r\nCache-Control: no-cache\r\nPragma: no-cache\r\n"
    'Sec-Ch-Ua: "Chromium";v="140", "Not.A/Brand";v="24"\r\nSec-Ch-Ua-Mobile: ?0\r\nSec-Ch-Ua-Platform: "Linux"\r\n'
    "Sec-Fetch-Dest: empty\r\nSec-Fetch-Mode: cors\r\nSec-Fetch-Site: same-origin\r\n"
    "User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"
    "\r\nX-Forwarded-For: 203.0.113.{number}\r\nX-Forwarded-Proto: https\r\n\r\n"
)
"""Of Chromium, and of a proxy in front. A plain dashboard wants to be called by its number."""


@dataclass
class Counts:
    answers: int = 0
    refused: int = 0
    """Answers that were none, and connections that ended."""
    size: int = 0
    """Bytes of their bodies, as they came."""
    steps: list[int] = field(default_factory=list)


def run(json_output: bool, watchers: int, peers: int, seconds: float) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures; `passed` says whether the budgets hold."""
    with responders(peers) as addresses:
        with dashboard(addresses[0], "--public") as (url, pid):
            one = measure(url, pid, 1, seconds, PAGE_SECONDS)
            many = measure(url, pid, watchers, seconds, PAGE_SECONDS)
        with dashboard(addresses[0]) as (url, pid):
            plain = measure(url, pid, watchers, seconds, PLAIN_SECONDS)
    figures = {
        "watchers": watchers,
        "peers": peers,
        "seconds": seconds,
        "one": one,
        "many": many,
        "plain": plain,
        "plain_over_public": round(plain["core_share"] / many["core_share"], 2) if many["core_share"] else None,
        "core_share_at_most": CORE_SHARE_MAX,
        "passed": many["core_share"] <= CORE_SHARE_MAX
        and many["asked_per_second"] <= ASKED_MORE_MAX * one["asked_per_second"]
        and not many["refused"],
    }
    print(json.dumps(figures, indent=2) if json_output else table(figures))
    return figures


@contextmanager
def dashboard(address: str, *options: str) -> Iterator[tuple[str, int]]:
    """Its URL and its process. Raises UserError (70) when it does not start."""
    with tempfile.TemporaryDirectory(prefix="ftnode-lab-") as home:
        argv = [sys.executable, "-m", "ftnode.node.cli", "dashboard", "--listen", "127.0.0.1:0", "--home", home]
        process = subprocess.Popen(
            [*argv, "--peer", address, *options], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            preexec_fn=partial(die_with, os.getpid()),
        )  # fmt: skip
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
            if " is at " not in line:
                raise UserError(f"the dashboard ended with {process.wait()}; run it by hand and read what it says", 70)
            yield line.split(" is at ")[1].split(";")[0], process.pid
        finally:
            process.terminate()
            process.wait()


def measure(url: str, pid: int, watchers: int, seconds: float, every: float) -> dict[str, Any]:
    """Share of a core that a dashboard takes for so many watchers, and how often it asks members."""
    return trio.run(_measure, url, pid, watchers, seconds, every)


async def _measure(url: str, pid: int, watchers: int, seconds: float, every: float) -> dict[str, Any]:
    counts, chance = Counts(), Random(0)
    async with trio.open_nursery() as nursery:
        with trio.move_on_after(START_SECONDS) as start:
            while not counts.steps:
                await _ask_once(url, counts)
                await trio.sleep(0.2)
        if start.cancelled_caught:
            raise UserError(f"no run on the page after {START_SECONDS:g} s; try again on a quieter machine", 70)
        for number in range(watchers):
            nursery.start_soon(_watch, url, number, every, Random(chance.random()), counts)
        await trio.sleep(SETTLE_SECONDS)
        await _ask_once(url, counts)
        first, counts.answers, counts.refused, counts.size = counts.steps[-1], 0, 0, 0
        before, began = cpu_seconds(pid), time.perf_counter()
        await trio.sleep(seconds)
        used, took = cpu_seconds(pid) - before, time.perf_counter() - began
        answers, refused, size = counts.answers, counts.refused, counts.size
        await _ask_once(url, counts)
        nursery.cancel_scope.cancel()
    return {
        "core_share": round(used / took, 4),
        "answers_per_second": round(answers / took, 1),
        "bytes_per_answer": round(size / max(answers, 1)),
        "asked_per_second": round((counts.steps[-1] - first) / took, 2),
        "refused": refused,
    }


async def _ask_once(url: str, counts: Counts) -> None:
    """The step that the page shows."""
    with suppress(OSError, trio.BrokenResourceError):
        told = await _ask(await _connect(url), url, "look", 250, counts)
        if told and told["status"]:
            counts.steps.append(told["status"]["step"])


async def _watch(url: str, number: int, every: float, chance: Random, counts: Counts) -> None:
    """One page, until cancelled. It comes at a moment of its own."""
    await trio.sleep(chance.uniform(0, every))
    stream: trio.SocketStream | None = None
    where = "look"
    while True:
        told = None
        try:
            stream = stream or await _connect(url)
            told = await _ask(stream, url, where, number % 250, counts)
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        if told is None:
            counts.refused += 1
            stream = None
        elif "public" not in told:
            places = "&".join(f"{log}={told[log]['next']}" for log in LOGS)
            where = f"look?generation={told['generation']}&{places}"
        await trio.sleep(every * chance.uniform(0.8, 1.2))


async def _connect(url: str) -> trio.SocketStream:
    where = urlsplit(url)
    assert where.hostname is not None and where.port is not None
    return await trio.open_tcp_stream(where.hostname, where.port)


async def _ask(stream: trio.SocketStream, url: str, path: str, number: int, counts: Counts) -> dict[str, Any] | None:
    """None when it is no answer, or none comes."""
    headers = HEADERS.replace("swarm.example", urlsplit(url).netloc).replace("{number}", str(number))
    await stream.send_all(f"GET /{path} HTTP/1.1\r\n{headers}".encode())
    head, _, body = (await _until(stream, b"", lambda data: b"\r\n\r\n" in data)).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        return None
    fields = dict(line.split(": ", 1) for line in head.decode("latin-1").split("\r\n")[1:])
    length = int(fields["Content-Length"])
    body = await _until(stream, body, lambda data: len(data) >= length)
    if len(body) < length:
        return None
    counts.answers += 1
    counts.size += length
    told: dict[str, Any] = json.loads(gzip.decompress(body) if fields.get("Content-Encoding") == "gzip" else body)
    return told


async def _until(stream: trio.SocketStream, data: bytes, enough: Any) -> bytes:
    while not enough(data):
        more = await stream.receive_some()
        if not more:
            break
        data += more
    return data


def table(figures: dict[str, Any]) -> str:
    rows = [
        ("public, 1 watcher", figures["one"]),
        (f"public, {figures['watchers']} watchers", figures["many"]),
        (f"plain, {figures['watchers']} watchers", figures["plain"]),
    ]
    return "\n".join([
        f"{'':<24}{'of a core':>10}{'answers/s':>11}{'bytes each':>12}{'asked/s':>9}{'refused':>9}",
        *(
            f"{name:<24}{100 * row['core_share']:>8.2f} %{row['answers_per_second']:>11.1f}"
            f"{row['bytes_per_answer']:>12,}{row['asked_per_second']:>9.2f}{row['refused']:>9}"
            for name, row in rows
        ),
        f"a run of {figures['peers']}; asked: questions to members; over {figures['seconds']:g} s each; "
        f"at most {100 * CORE_SHARE_MAX:g} % of a core",
    ])  # fmt: skip
