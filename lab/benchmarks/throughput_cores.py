"""Where the time of the pinned cores goes while a swarm trains: by kind of process, idle, and to everything else.

The parts add up to the cores' whole time, so nothing that is lost stays without a name; a large rest says that
somebody else worked on this machine and the measurement is worth little.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ftnode.lab.swarms.memory import process_kind
from ftnode.lab.swarms.processes import processor_seconds
from ftnode.lab.swarms.swarm import descendants
from ftnode.protocol.words.errors import UserError

TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
IDLE, WAITING = 3, 4
"""Of a cpu line of /proc/stat, behind its name: ticks with nothing to do, or nothing but to wait for a disk."""


@dataclass(frozen=True, slots=True)
class CoreTime:
    """Seconds so far. `spent` by kind of process; processes that ended meanwhile are not in it."""

    time: float
    idle: float
    spent: dict[str, float]


def read_core_time(nodes: Iterable[int], cores: Iterable[int]) -> CoreTime:
    """`nodes`: process ids whose families count. Raises UserError where there is no /proc."""
    spent: dict[str, float] = {}
    for node in nodes:
        for pid in (node, *descendants(node)):
            try:
                kind = "node" if pid == node else process_kind(pid)
                spent[kind] = spent.get(kind, 0.0) + processor_seconds(pid)
            except OSError:
                continue  # it ended while we looked
    return CoreTime(time.monotonic(), _idle_seconds({f"cpu{core}" for core in cores}), spent)


def _idle_seconds(names: set[str]) -> float:
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError as error:
        raise UserError(f"cannot read the time of the cores: {error.strerror}; this needs Linux", 69) from error
    ticks = sum(int(line[1 + IDLE]) + int(line[1 + WAITING]) for line in lines if line and line[0] in names)
    return ticks / TICKS_PER_SECOND


def shares(before: CoreTime, after: CoreTime, cores: int, steps: int) -> dict[str, float]:
    """Core-seconds per step: one entry per kind of process, `idle`, and `rest` for what is left of all."""
    whole = cores * (after.time - before.time)
    found = {kind: seconds - before.spent.get(kind, 0.0) for kind, seconds in sorted(after.spent.items())}
    found["idle"] = after.idle - before.idle
    found["rest"] = max(0.0, whole - sum(found.values()))
    return {kind: seconds / steps for kind, seconds in found.items()}
