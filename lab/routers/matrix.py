"""The matrix of `ftnode lab routers`: which way two volunteers find to each other, by the routers that they are behind.

Real p2pd's, and the parts of a node that dial, each in a home of its own (lab/lines/switch.py), with one meeting point
outside. Of each kind of router there are two homes: one that dials, one that is dialled. So each cell of the matrix is
a pair that has never met before.

What RFC 5128 allows: a punch works unless one side's port depends on the destination and the other lets in only the
very port that it has sent something to.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

from ftnode.lab.lines.network import open_network
from ftnode.lab.lines.router import KINDS
from ftnode.lab.lines.switch import Homes
from ftnode.lab.swarms.swarm import Place, Swarm
from ftnode.node.machine.child_processes import stop_child
from ftnode.node.owner.limits import rate_text
from ftnode.protocol.words.errors import UserError

POINT: Final = "bootstrap"
PEER: Final = "ftnode.lab.routers.peer"
SENT_BYTES: Final = 2_000_000
WAYS: Final = ("direct", "punched", "relayed")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person asked for. Rates: bytes a second up and down, of each home and of the meeting point."""

    kinds: tuple[str, ...]
    rates: tuple[float, float]
    point_rates: tuple[float, float]
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class Cell:
    """One pair. `seconds`: from the wish to reach the other to a connection; `rate`: bytes a second over it; `why`
    there is no direct one."""

    dials: str
    dialled: str
    way: str
    seconds: float
    rate: float
    why: str


class Peer:
    """A process of peer.py. `said`: who it is and where it can be reached."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self._process, self._log = process, log
        self.said: dict[str, Any] = {}

    def answer(self) -> dict[str, Any]:
        """The next line that it says. Raises UserError (70) when it has ended instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last = self._log.read_text(errors="replace").splitlines()[-1:] or ["nothing"]
            raise UserError(f"a peer of the matrix ended by itself; it said: {last[0]}", 70)
        found: dict[str, Any] = json.loads(line)
        return found

    def dial(self, other: Peer) -> dict[str, Any]:
        assert self._process.stdin is not None
        order = {"peer": other.said["peer"], "addresses": other.said["addresses"], "bytes": SENT_BYTES}
        self._process.stdin.write(json.dumps(order).encode() + b"\n")
        self._process.stdin.flush()
        return self.answer()


def can_be_opened(one: str, other: str) -> bool:
    """Whether a punch between two of these kinds works by RFC 5128, 3.3 and 3.4."""
    kinds = KINDS[one], KINDS[other]
    return not any(
        mine.port_per == "destination" and theirs.lets_in == "ports" for mine, theirs in (kinds, kinds[::-1])
    )


def measure(asked: Asked, folder: Path) -> list[Cell]:
    """Each kind with each."""
    names = [f"{role}-{kind}" for role in ("dials", "dialled") for kind in asked.kinds]
    rates = (asked.point_rates, *[asked.rates] * len(names))
    homes = Homes(rates, asked.delay_seconds, str(folder / "counts.jsonl"), ("none", *asked.kinds, *asked.kinds))
    with open_network((POINT, *names), homes) as places, Swarm(folder, folder, places=places) as swarm:
        swarm.start_bootstrap(POINT)
        with open_peers(folder, {name: places[name] for name in names}, swarm.address) as peers:
            return [
                Cell(one, other, **peers[f"dials-{one}"].dial(peers[f"dialled-{other}"]))
                for one, other in product(asked.kinds, repeat=2)
            ]


@contextmanager
def open_peers(folder: Path, places: Mapping[str, Place], point: str) -> Iterator[dict[str, Peer]]:
    """One at each place, all of which know where they can be reached."""
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for name, place in places.items():
            home, log = folder / name, folder / f"{name}.log"
            home.mkdir(mode=0o700)
            argv = [*place.enter, sys.executable, "-m", PEER, str(home), place.listen[0], point]
            with log.open("wb") as errors:
                process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors)
            stack.callback(stop_child, process)
            peers[name] = Peer(process, log)
        for peer in peers.values():
            peer.said = peer.answer()
        yield peers


# -- what is told


def figures_of(asked: Asked, cells: Sequence[Cell]) -> dict[str, Any]:
    punched = [cell.seconds for cell in cells if cell.way == "punched"]
    return {
        "asked": asdict(asked),
        "cells": [asdict(cell) for cell in cells],
        "ways": {way: sum(cell.way == way for cell in cells) for way in (*WAYS, "none")},
        "punched_seconds": median(punched) if punched else None,
        "missed": [[cell.dials, cell.dialled] for cell in cells if missed(cell)],
    }


def missed(cell: Cell) -> bool:
    """Whether there could be a direct connection, and is none."""
    return cell.way not in ("direct", "punched") and can_be_opened(cell.dials, cell.dialled)


def table(figures: Mapping[str, Any]) -> str:
    asked = figures["asked"]
    cells = {(cell["dials"], cell["dialled"]): cell for cell in figures["cells"]}
    home, point = (" up and ".join(map(rate_text, asked[name])) for name in ("rates", "point_rates"))
    lines = [
        f"homes on lines of {home} down, a meeting point with {point} down, {asked['delay_seconds'] * 1e3:g} ms from "
        "one to another; the row dials the column: its way, seconds until then, and MB/s",
        " " * 20 + "".join(f"{kind:<22}" for kind in asked["kinds"]),
    ]
    for one in asked["kinds"]:
        row = [cells[one, other] for other in asked["kinds"]]
        told = [f"{cell['way']} {cell['seconds']:.2f} s {cell['rate'] / 1e6:.2f}" for cell in row]
        lines.append(f"{one:<20}" + "".join(f"{text:<22}" for text in told))
    ways = ", ".join(f"{number} {way}" for way, number in figures["ways"].items() if number)
    seconds = figures["punched_seconds"]
    lines.append(ways + (f"; a punch takes {seconds:.2f} s (median)" if seconds is not None else ""))
    if figures["missed"]:
        pairs = ", ".join(f"{one} to {other}" for one, other in figures["missed"])
        lines.append(f"no direct connection, though RFC 5128 allows one: {pairs}")
    return "\n".join(lines)
