"""The homes of a lab's volunteers: the process that carries their packets (switch.py), how a program gets inside, and
what the lines have carried."""

from __future__ import annotations

import bisect
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
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


class Network(dict[str, Place]):
    """A home for each name. `order`: where the switch takes orders from."""

    def __init__(self, places: Mapping[str, Place], order: int) -> None:
        super().__init__(places)
        self._order = order

    def move(self, name: str, outside: str) -> None:
        """The home's router has another address from now on."""
        os.write(self._order, f"{json.dumps([list(self).index(name), outside])}\n".encode())

    def inside(self, name: str, *argv: str) -> None:
        """Run a command in a home. Raises CalledProcessError."""
        subprocess.run((*self[name].enter, *argv), check=True)


@contextmanager
def open_network(names: Sequence[str], homes: Homes) -> Iterator[Network]:
    """A home for each name, which sees all the others and nothing else. Raises UserError (69) where there can be
    none."""
    ready, told = os.pipe()
    taken, order = os.pipe()
    log = Path(homes.counts).with_suffix(".log")
    try:
        argv = [sys.executable, "-m", SWITCH, homes.text(), str(told), str(taken)]
        switch = start_child(argv, log=log, pass_fds=[told, taken])
    finally:
        os.close(told)
        os.close(taken)
    try:
        with os.fdopen(ready, encoding="utf-8") as answer:
            text = answer.readline()
        if not text:
            said = log.read_text(errors="replace").splitlines()[-1:] or ["nothing"]
            raise UserError(
                f"no network namespaces can be made here: {said[0]}; run it as root, or after `unshare -rn`", 69
            )
        inside = zip(names, json.loads(text))
        places = {
            name: _place(switch, homes.addresses(home), namespace) for home, (name, namespace) in enumerate(inside)
        }
        yield Network(places, order)
    finally:
        os.close(order)
        stop_child(switch)


def _place(switch: subprocess.Popen[bytes], hosts: Sequence[str], namespace: int) -> Place:
    enter = ("nsenter", f"--net=/proc/{switch.pid}/fd/{namespace}")
    return Place(enter, tuple(f"/ip{6 if ':' in host else 4}/{host}/tcp/{PORT}" for host in hosts))
