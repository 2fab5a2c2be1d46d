"""The homes of a lab's volunteers: the process that carries their packets (switch.py), how a program gets inside, and
what the lines have carried."""

from __future__ import annotations

import bisect
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ftnode.lab.lines.switch import Homes
from ftnode.lab.swarms.swarm import Place
from ftnode.node.machine.child_processes import start_child, stop_child
from ftnode.protocol.words.errors import UserError

PORT: Final = 4101
"""Where everybody listens, each in a home of its own."""
SWITCH: Final = "ftnode.lab.lines.switch"


@dataclass(frozen=True, slots=True)
class Counts:
    """Bytes that each home's line had carried, up and down, at moments of CLOCK_MONOTONIC."""

    moments: tuple[float, ...]
    carried: tuple[tuple[tuple[int, int], ...], ...]

    def between(self, home: int, begin: float, end: float) -> tuple[float, float]:
        """Bytes up and down from `begin` to `end`; between two counts as if they had flowed evenly."""
        first, last = self._at(home, begin), self._at(home, end)
        return last[0] - first[0], last[1] - first[1]

    def _at(self, home: int, moment: float) -> tuple[float, float]:
        after = min(max(1, bisect.bisect(self.moments, moment)), len(self.moments) - 1)
        (begin, end), (before, now) = self.moments[after - 1 : after + 1], self.carried[after - 1 : after + 1]
        part = min(1.0, max(0.0, (moment - begin) / (end - begin)))
        up, down = (before[home][way] + part * (now[home][way] - before[home][way]) for way in (0, 1))
        return up, down


def read_counts(path: Path) -> Counts:
    """What the switch has written so far. Raises UserError (75) when that is nothing yet."""
    lines = [
        json.loads(line) for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if line[-1] == "\n"
    ]
    if len(lines) < 2:
        raise UserError("the lines have carried nothing yet", 75)
    return Counts(
        tuple(moment for moment, _ in lines), tuple(tuple((up, down) for up, down in homes) for _, homes in lines)
    )


@contextmanager
def open_network(names: Sequence[str], homes: Homes) -> Iterator[dict[str, Place]]:
    """A home for each name, which sees all the others and nothing else. Raises UserError (69) where there can be
    none."""
    ready, told = os.pipe()
    log = Path(homes.counts).with_suffix(".log")
    try:
        switch = start_child([sys.executable, "-m", SWITCH, homes.text(), str(told)], log=log, pass_fds=[told])
    finally:
        os.close(told)
    try:
        with os.fdopen(ready, encoding="utf-8") as answer:
            text = answer.readline()
        if not text:
            said = log.read_text(errors="replace").splitlines()[-1:] or ["nothing"]
            raise UserError(
                f"no network namespaces can be made here: {said[0]}; run it as root, or after `unshare -rn`", 69
            )
        inside = zip(names, json.loads(text))
        yield {name: _place(switch, homes.inside(home), namespace) for home, (name, namespace) in enumerate(inside)}
    finally:
        stop_child(switch)


def _place(switch: subprocess.Popen[bytes], host: str, namespace: int) -> Place:
    enter = ("nsenter", f"--net=/proc/{switch.pid}/fd/{namespace}")
    return Place(enter, f"/ip4/{host}/tcp/{PORT}")
