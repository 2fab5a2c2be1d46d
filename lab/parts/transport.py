"""`ftnode lab transport`: the tensor path's speed against what else could carry it, all in the same run.

Request and acknowledgement over loopback. The paths take turns within each round, so that a busy machine slows all of
them, and a ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import json as json_module
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from statistics import median
from typing import IO, Any

from rich.console import Console
from rich.table import Table

from ftnode.lab.parts.transport_paths import PATHS, SIZES
from ftnode.protocol.words.errors import UserError

ROUNDS = 5
BYTES_PER_ORDER = {64 << 10: 16 << 20, 4 << 20: 64 << 20}
"""How much goes each way per round and size; a fraction of a second on the faster paths."""
BUDGETS = {"bare": 0.8, "hivemind": 2.0, "libp2p": 5.0}
"""At 4 MB, the tensor path must be this many times as fast."""
NAMES = {
    "ours": "tensor path",
    "bare": "bare p2pd sockets",
    "hivemind": "hivemind's P2P",
    "libp2p": "py-libp2p",
}
START_SECONDS = 60.0


@dataclass
class End:
    """One end of a path, running."""

    name: str
    process: subprocess.Popen[str]

    def hear(self) -> Any:
        """The next line that it says. Raises UserError when it ends instead."""
        line = _pipe(self.process.stdout).readline()
        if not line:
            raise UserError(f"the benchmark of {NAMES[self.name]} ended: {self.process.wait()}", 70)
        return json_module.loads(line)

    def order(self, size: int, count: int) -> float:
        """Seconds for `count` times `size` bytes and their acknowledgements."""
        stdin = _pipe(self.process.stdin)
        stdin.write(f"{size} {count}\n")
        stdin.flush()
        return float(self.hear())


def run(json: bool = False, rounds: int = ROUNDS) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures; `passed` says whether the budgets hold at 4 MB.

    `ratios`: how many times as fast the tensor path is.
    """
    result = measure(rounds)
    if json:
        print(json_module.dumps(result, indent=2))
    else:
        Console().print(table(result))
    return result


def measure(rounds: int) -> dict[str, Any]:
    with ExitStack() as stack:
        senders = {name: stack.enter_context(_pair(name)) for name in PATHS}
        for name in PATHS:
            for size in SIZES:
                senders[name].order(size, 3)  # buffers and windows grow with the first tensors
        seconds = {(name, size): [0.0] * rounds for name in PATHS for size in SIZES}  # per order
        for turn in range(rounds):
            for size in SIZES:
                for name in PATHS:
                    seconds[name, size][turn] = senders[name].order(size, _count(size))
    return summary(seconds)


def tensor_path(rounds: int) -> float:
    """Megabytes per second of the tensor path alone, with its largest size: the median of some orders."""
    size = max(SIZES)
    with _pair("ours") as sender:
        sender.order(size, 3)
        return _count(size) * size / median(sender.order(size, _count(size)) for _ in range(rounds)) / 1e6


def _count(size: int) -> int:
    return BYTES_PER_ORDER[size] // size


def summary(seconds: dict[tuple[str, int], list[float]]) -> dict[str, Any]:
    paths = {
        name: {
            str(size): {
                "megabytes_per_second": _count(size) * size / median(seconds[name, size]) / 1e6,
                "milliseconds": median(seconds[name, size]) / _count(size) * 1e3,
            }
            for size in SIZES
        }
        for name in PATHS
    }
    ratios = {
        name: {
            str(size): median(theirs / ours for theirs, ours in zip(seconds[name, size], seconds["ours", size]))
            for size in SIZES
        }
        for name in BUDGETS
    }
    passed = all(ratios[name][str(max(SIZES))] >= budget for name, budget in BUDGETS.items())
    return {"paths": paths, "ratios": ratios, "budgets": BUDGETS, "passed": passed}


def table(result: dict[str, Any]) -> Table:
    shown = Table(title="Request and acknowledgement on loopback, encrypted; ratio = tensor path / this")
    shown.add_column("path")
    for size in SIZES:
        for column in (f"{_label(size)}: ms", "MB/s", "ratio"):
            shown.add_column(column, justify="right")
    shown.add_column("must be", justify="right")
    for name in PATHS:
        cells = []
        for size in SIZES:
            figures = result["paths"][name][str(size)]
            ratio = result["ratios"].get(name)
            cells += [
                f"{figures['milliseconds']:.2f}",
                f"{figures['megabytes_per_second']:.0f}",
                f"{ratio[str(size)]:.2f} ×" if ratio else "",
            ]
        budget = result["budgets"].get(name)
        shown.add_row(NAMES[name], *cells, f"≥ {budget} ×" if budget else "")
    return shown


def _label(size: int) -> str:
    return f"{size >> 20} MB" if size >= 1 << 20 else f"{size >> 10} KB"


@contextmanager
def _pair(name: str) -> Iterator[End]:
    """Both ends of a path, connected; the sender. They end when their stdin does."""
    with _end(name, "receive") as receiver, _end(name, "send", json_module.dumps(receiver.hear())) as sender:
        yield sender


@contextmanager
def _end(name: str, *arguments: str) -> Iterator[End]:
    argv = [sys.executable, "-m", "ftnode.lab.parts.transport_paths", name, *arguments]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        yield End(name, process)
    finally:
        _pipe(process.stdin).close()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipe(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe
