"""`ftnode lab watch`: what looking at a swarm costs. Seconds from a cold start of `ftnode status` to its table, and the
share of a core that a watcher of many peers takes for itself.

The peers are fake responders with real p2pds (watch_responders.py). The watcher is `ftnode status --watch -v` with all
of their addresses, on a terminal of 120 columns; it follows the one that answers first, whose status tells of all.
"""

from __future__ import annotations

import json
import os
import pty
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from ftnode.lab.swarms.processes import processor_seconds
from ftnode.node.machine.child_processes import die_with
from ftnode.protocol.words.errors import UserError

COLD_SECONDS_MAX = 2.0
CORE_SHARE_MAX = 0.02
SETTLE_SECONDS = 10.0
"""Until the watcher has dialled, and its first pictures are drawn."""
STATUS_SECONDS_MAX = 60.0
COMMAND = (sys.executable, "-m", "ftnode.node.cli", "status")


def run(json_output: bool, peers: int, runs: int, seconds: float) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures; `passed` says whether both budgets hold."""
    with tempfile.TemporaryDirectory(prefix="ftnode-lab-") as home, responders(peers) as addresses:
        cold, used = zip(*(cold_start(addresses[0], Path(home)) for _ in range(runs)))
        share, pictures = watching(addresses, Path(home), seconds)
    figures = {
        "peers": peers,
        "cold_seconds": {
            "median": median(cold),
            "worst": max(cold),
            "processor": median(used),
            "runs": runs,
            "at_most": COLD_SECONDS_MAX,
        },
        "watcher_core_share": {"found": share, "seconds": seconds, "bytes": pictures, "at_most": CORE_SHARE_MAX},
        "passed": median(cold) <= COLD_SECONDS_MAX and share <= CORE_SHARE_MAX,
    }
    print(json.dumps(figures, indent=2) if json_output else table(figures))
    return figures


@contextmanager
def responders(count: int) -> Iterator[list[str]]:
    """Their full multiaddrs. Raises UserError (70) when they do not start."""
    argv = [sys.executable, "-m", "ftnode.lab.parts.watch_responders", str(count)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None and process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line:
            raise UserError(f"the responders ended with {process.wait()} instead of starting", 70)
        yield json.loads(line)
    finally:
        process.stdin.close()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cold_start(address: str, home: Path) -> tuple[float, float]:
    """Seconds from the start of a fresh process to its end, with the table printed, and its processor time, which
    depends less on what else the machine does."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    command = [*COMMAND, "--peer", address, "--home", str(home)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=STATUS_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        text = f"ftnode status took longer than {STATUS_SECONDS_MAX:g} s; measure on a quieter machine"
        raise UserError(text, 75) from None
    took = time.perf_counter() - began
    if done.returncode or "holders" not in done.stdout:
        raise UserError(f"ftnode status ended with {done.returncode}: {done.stderr.strip()}", 70)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return took, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def watching(addresses: Sequence[str], home: Path, seconds: float) -> tuple[float, int]:
    """(share of one core that the watcher's process used, bytes that it drew) over `seconds`."""
    asked = [part for address in addresses for part in ("--peer", address)]
    terminal, inside = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120", "LINES": "100"}
    process = subprocess.Popen(
        [*COMMAND, "--watch", "-v", *asked, "--home", str(home)], stdout=inside, stderr=subprocess.DEVNULL,
        env=environment, preexec_fn=partial(die_with, os.getpid()),
    )  # fmt: skip
    os.close(inside)
    drawn = [0]
    reader = threading.Thread(target=_drain, args=(terminal, drawn), daemon=True)
    reader.start()
    try:
        time.sleep(SETTLE_SECONDS)
        before, began, bytes_before = cpu_seconds(process.pid), time.perf_counter(), drawn[0]
        time.sleep(seconds)
        used, took = cpu_seconds(process.pid) - before, time.perf_counter() - began
        if process.poll() is not None or drawn[0] == bytes_before:
            raise UserError(f"the watcher drew nothing; it ended with {process.poll()}", 70)
    finally:
        process.terminate()
        process.wait()
        reader.join(5)
        os.close(terminal)
    return used / took, drawn[0] - bytes_before


def _drain(terminal: int, drawn: list[int]) -> None:
    with suppress(OSError):  # the other end is closed
        while data := os.read(terminal, 1 << 16):
            drawn[0] += len(data)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process. Raises UserError (70) when it is gone."""
    try:
        return processor_seconds(pid)
    except OSError as error:
        raise UserError(f"cannot read the times of process {pid}: {error.strerror}; this needs Linux", 70) from None


def table(figures: dict[str, Any]) -> str:
    cold, share = figures["cold_seconds"], figures["watcher_core_share"]
    return "\n".join([
        f"ftnode status, cold start to table   {cold['median']:.2f} s (worst of {cold['runs']}: {cold['worst']:.2f} s; "
        f"at most {cold['at_most']:g} s); processor {cold['processor']:.2f} s",
        f"watcher of {figures['peers']} peers               {100 * share['found']:.2f} % of a core over "
        f"{share['seconds']:g} s (at most {100 * share['at_most']:g} %)",
    ])  # fmt: skip
