"""`ftnode lab reduction`: how long a group takes to sum a gradient, against hivemind's averager, and with losses.

Peers are processes on this machine, each with a p2pd; the two kinds take turns within each round, so that a busy
machine slows both, and the ratio is the median of the rounds' ratios. A round ends when the last peer has the whole
sum. What is left out on both sides: finding the group (a view has it, hivemind's matchmaking takes seconds), the norm
and the optimiser.
"""

from __future__ import annotations

import json as json_module
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import IO, Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ftnode.lab.reduction_peers import gradient_of
from ftnode.lab.result_files import folder_for
from ftnode.models.tensors import digest
from ftnode.protocol.errors import UserError

BUDGET = 2.0
"""How many times as fast as hivemind's averager."""
KILL_EVERY = 3
ROUND_SECONDS = 120.0
"""A round that takes longer has failed."""
NUMBERS_PER_MEGABYTE = 250_000


class TooLate(Exception):
    """A peer that says nothing."""


@dataclass
class Member:
    """A peer that runs. `where`: what others need to find it."""

    index: int
    process: subprocess.Popen[bytes]
    where: Any = None
    _heard: bytes = b""

    def order(self, **order: Any) -> None:
        stdin = _pipe(self.process.stdin)
        stdin.write(json_module.dumps(order).encode() + b"\n")
        stdin.flush()

    def hear(self) -> Any:
        """The next line that it says. Raises TooLate, and UserError when it ends instead."""
        descriptor = _pipe(self.process.stdout).fileno()
        deadline = time.monotonic() + ROUND_SECONDS
        while b"\n" not in self._heard:
            if not select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TooLate
            data = os.read(descriptor, 1 << 16)
            if not data:
                raise UserError(f"a peer of the benchmark ended: {self.process.wait()}", 70)
            self._heard += data
        line, self._heard = self._heard.split(b"\n", 1)
        return json_module.loads(line)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    @property
    def peer_id(self) -> str:
        return str(self.where[0])


@dataclass
class Results:
    """Seconds per round; None: it failed. `repaired`: of the sum that the rest made again when a peer was killed."""

    ours: list[float | None] = field(default_factory=list)
    hivemind: list[float | None] = field(default_factory=list)
    repaired: list[float | None] = field(default_factory=list)
    exact: bool = True


def run(
    json: bool = False, peers: int = 4, megabytes: int = 100, rounds: int = 5, kill: bool = False,
    out: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure, print a table or JSON, and return the figures; with `out` they are also written there. Raises UserError
    (73) when there is no writing there."""
    folder = None if out is None else folder_for(out, "--out", empty=False)
    numbers = megabytes * NUMBERS_PER_MEGABYTE
    results = Results()
    with ExitStack() as stack:
        swarm = Swarm(stack, peers, numbers)
        averagers = _averagers(stack, peers, numbers)
        swarm.round(results)  # connections and buffers come with the first round
        _average(averagers, results)
        results.ours.clear()
        results.hivemind.clear()
        results.exact = swarm.digests() == {_expected(peers, numbers)}
        for _ in range(rounds):
            swarm.round(results)
            _average(averagers, results)
    if kill:
        with ExitStack() as stack:
            swarm, chance = Swarm(stack, peers, numbers), Random(0)
            losses = Results()
            swarm.round(losses)
            losses.ours.clear()
            for turn in range(1, KILL_EVERY * rounds + 1):
                swarm.round(losses, chance.randrange(peers) if turn % KILL_EVERY == 0 else None)
            results.repaired = losses.repaired
    result = {"peers": peers, "megabytes": megabytes, **summary(results)}
    if folder is not None:
        (folder / "reduction.json").write_text(json_module.dumps(result, indent=2) + "\n")
    if json:
        print(json_module.dumps(result, indent=2))
    else:
        Console().print(table(result))
    return result


class Swarm:
    """Our peers, and the views that say who is of the group: here the core's part is played by this process."""

    def __init__(self, stack: ExitStack, peers: int, numbers: int) -> None:
        self._stack, self._numbers = stack, numbers
        self._members = [self._join(index) for index in range(peers)]
        self._view = 0
        self._introduce()

    def _join(self, index: int) -> Member:
        member = self._stack.enter_context(_member("ours", index, self._numbers))
        member.where = member.hear()
        return member

    def _introduce(self) -> None:
        everybody = [member.where for member in self._members]
        for member in self._members:
            member.order(know=[where for where in everybody if where is not member.where])

    def round(self, results: Results, victim: int | None = None) -> None:
        """One sum. `victim`: who is killed while it is made; the others then make one without it."""
        group = list(self._members)
        self._start(group)
        if victim is None:
            results.ours.append(self._finish(group))
            return
        lost = self._members[victim]
        median_seconds = median(seconds for seconds in results.ours if seconds)
        try:
            lost.process.wait(median_seconds / 2)
        except subprocess.TimeoutExpired:
            lost.kill()
        rest = [member for member in group if member is not lost]
        self._start(rest)
        results.repaired.append(self._finish(rest))
        self._members[victim] = self._join(victim)
        self._introduce()

    def digests(self) -> set[str]:
        for member in self._members:
            member.order(digest=True)
        return {str(member.hear()) for member in self._members}

    def _start(self, group: list[Member]) -> None:
        self._view += 1
        for member in group:
            member.order(reduce=self._view, group=[other.peer_id for other in group])

    def _finish(self, group: list[Member]) -> float | None:
        """Seconds of the slowest; None when somebody does not come to an end."""
        seconds = []
        try:
            for member in group:
                view, taken = member.hear()
                while view != self._view:  # it was done with an earlier one before that was given up
                    view, taken = member.hear()
                seconds.append(float(taken))
        except TooLate:
            return None
        return max(seconds)


def _averagers(stack: ExitStack, peers: int, numbers: int) -> list[Member]:
    found: list[Member] = []
    for index in range(peers):
        member = stack.enter_context(_member("hivemind", index, numbers))
        member.order(join=found[0].where if found else [], peers=peers)
        member.where = member.hear()
        found.append(member)
    return found


def _average(averagers: list[Member], results: Results) -> None:
    for member in averagers:
        member.order(round=True)
    for member in averagers:
        member.hear()
    for member in averagers:
        member.order(go=True)
    seconds = [member.hear() for member in averagers]
    results.hivemind.append(None if None in seconds else max(seconds))


def _expected(peers: int, numbers: int) -> str:
    """Hash of the sum that everybody must have."""
    import torch

    total = gradient_of(0, numbers)
    for index in range(1, peers):
        total = np.add(total, gradient_of(index, numbers))
    return digest(torch.from_numpy(total))


def summary(results: Results) -> dict[str, Any]:
    def figures(seconds: list[float | None]) -> dict[str, Any]:
        done = [one for one in seconds if one is not None]
        return {
            "rounds": len(seconds), "completed": len(done), "median_seconds": median(done) if done else None,
            "worst_seconds": max(done, default=None),
        }  # fmt: skip

    ratios = [theirs / ours for theirs, ours in zip(results.hivemind, results.ours) if theirs and ours]
    ratio = median(ratios) if ratios else None
    return {
        "ours": figures(results.ours),
        "hivemind": figures(results.hivemind),
        "with_a_kill": figures(results.repaired),
        "exact": results.exact,
        "ratio": ratio,
        "budget": BUDGET,
        "passed": ratio is not None and ratio >= BUDGET and results.exact,
    }


def table(result: dict[str, Any]) -> Table:
    title = f"Sum of {result['megabytes']} MB on each of {result['peers']} peers, loopback, encrypted"
    shown = Table(title=title)
    for column in ("", "rounds", "completed", "median s", "worst s", "ratio"):
        shown.add_column(column, justify="right" if column else "left")
    names = {
        "ours": "our streams",
        "hivemind": "hivemind's averager",
        "with_a_kill": "ours, again, one killed",
    }
    for name, label in names.items():
        figures = result[name]
        if figures["rounds"]:
            times = [f"{one:.2f}" if one else "" for one in (figures["median_seconds"], figures["worst_seconds"])]
            ratio = f"{result['ratio']:.2f} ×" if name == "hivemind" and result["ratio"] else ""
            shown.add_row(label, str(figures["rounds"]), str(figures["completed"]), *times, ratio)
    shown.caption = f"must be ≥ {result['budget']} ×; sums equal to the bit: {'yes' if result['exact'] else 'NO'}"
    return shown


@contextmanager
def _member(kind: str, index: int, numbers: int) -> Iterator[Member]:
    """Ends when its stdin does."""
    argv = [sys.executable, "-m", "ftnode.lab.reduction_peers", kind, str(index), str(numbers)]
    process = subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )
    try:
        yield Member(index, process)
    finally:
        if process.poll() is None:
            _pipe(process.stdin).close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None
    return pipe
