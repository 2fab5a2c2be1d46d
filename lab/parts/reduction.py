"""`ftnode lab reduction`: how long a group takes to sum a gradient, against hivemind's averager and the runner in it,
and with losses.

Peers are processes on this machine, each with a p2pd; the three kinds take turns within each round, so that a busy
machine slows all, and a ratio is the median of the rounds' ratios. A round ends when the last peer has the whole
sum. What is left out on every side: finding the group (a view has it, hivemind's matchmaking takes seconds), the norm
and the optimiser.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ftnode.lab.parts.allreduce import RunnerResults, Runners, figures_killed
from ftnode.lab.parts.allreduce import figures as figures_of_runners
from ftnode.lab.parts.reduction_members import Member, TooLate, started
from ftnode.lab.parts.reduction_peers import gradient_of
from ftnode.lab.results.result_files import folder_for, write_atomically
from ftnode.models.tensors import digest

BUDGET = 2.0
"""How many times as fast as hivemind's averager."""
KILL_EVERY = 3
NUMBERS_PER_MEGABYTE = 250_000


@dataclass
class Results:
    """Seconds per round; None: it failed. `repaired`: of the sum that the rest made again when a peer was killed.
    `exact`: every sum that was looked at is the one in the group's order, to the bit."""

    ours: list[float | None] = field(default_factory=list)
    hivemind: list[float | None] = field(default_factory=list)
    repaired: list[float | None] = field(default_factory=list)
    exact: bool = True
    runner: RunnerResults = field(default_factory=RunnerResults)


def run(
    json: bool = False, peers: int = 4, megabytes: int = 100, rounds: int = 5, kill: bool = False,
    out: Path | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Measure, print a table or JSON, and return the figures; with `out` they are also written there. Raises UserError
    (73) when there is no writing there."""
    folder = None if out is None else folder_for(out, "--out", empty=False)
    numbers = megabytes * NUMBERS_PER_MEGABYTE
    results = Results()
    _take_turns(results, peers, numbers, rounds)
    if kill:
        _lose(results, peers, numbers, rounds)
        _lose_runners(results.runner, peers, numbers, rounds)
    result = {"peers": peers, "megabytes": megabytes, **summary(results)}
    if folder is not None:
        write_atomically(folder / "reduction.json", json_module.dumps(result, indent=2) + "\n")
    if json:
        print(json_module.dumps(result, indent=2))
    else:
        Console().print(table(result))
    return result


def _take_turns(results: Results, peers: int, numbers: int, rounds: int) -> None:
    with ExitStack() as stack:
        swarm = Swarm(stack, peers, numbers)
        averagers = _averagers(stack, peers, numbers)
        runners = Runners(stack, peers, numbers)
        swarm.round(Results())  # connections and buffers come with the first round
        _average(averagers, Results())
        runners.round()
        results.exact = swarm.digests() == {_expected(range(peers), numbers)}
        for _ in range(rounds):
            swarm.round(results)
            _average(averagers, results)
            results.runner.undisturbed.append(runners.round())


def _lose(results: Results, peers: int, numbers: int, rounds: int) -> None:
    with ExitStack() as stack:
        swarm, chance = Swarm(stack, peers, numbers), Random(0)
        swarm.round(Results())
        losses = Results()
        for turn in range(1, KILL_EVERY * rounds + 1):
            swarm.round(losses, chance.randrange(peers) if turn % KILL_EVERY == 0 else None)
        results.repaired = losses.repaired
        results.exact = results.exact and losses.exact


def _lose_runners(results: RunnerResults, peers: int, numbers: int, rounds: int) -> None:
    """Victims and moments are those of ours."""
    with ExitStack() as stack:
        runners, chance = Runners(stack, peers, numbers), Random(0)
        runners.round()
        for _ in range(rounds):
            results.between += [runners.round() for _ in range(KILL_EVERY - 1)]
            usual = median([one.seconds for one in results.between if one.seconds] or [0.0])
            alone, repeated = runners.lose(chance.randrange(peers), usual / 2)
            results.killed.append(alone)
            results.repeated.append(repeated)


class Swarm:
    """Our peers, and the views that say who is of the group: here the core's part is played by this process."""

    def __init__(
        self, stack: ExitStack, peers: int, numbers: int, encoding: str = "exact", megabits: float = 0
    ) -> None:
        """`encoding`: as pipeline.sums; `megabits`: a second, of each peer's line in either direction; 0: no limit."""
        self._stack, self._numbers, self._how = stack, numbers, (encoding, megabits)
        self._members = [self._join(index) for index in range(peers)]
        self._view = 0
        self._introduce()

    def _join(self, index: int) -> Member:
        arguments = "ours", index, self._numbers, *self._how
        member = self._stack.enter_context(started("reduction_peers", *arguments, index=index))
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
        lost.kill_after(median(seconds for seconds in results.ours if seconds) / 2)
        rest = [member for member in group if member is not lost]
        self._start(rest)
        results.repaired.append(self._finish(rest))
        if results.repaired[-1] is not None:
            expected = _expected([member.index for member in rest], self._numbers)
            results.exact = results.exact and self.digests(rest) == {expected}
        self._members[victim] = self._join(victim)
        self._introduce()

    def digests(self, group: Sequence[Member] = ()) -> set[str]:
        """Hashes of the sums that these have; without a group, all."""
        asked = group or self._members
        for member in asked:
            member.order(digest=True)
        return {str(member.hear()) for member in asked}

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
        member = stack.enter_context(started("reduction_peers", "hivemind", index, numbers, index=index))
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


def _expected(group: Sequence[int], numbers: int) -> str:
    """Hash of the sum that every peer of the group must have."""
    import torch

    total = gradient_of(group[0], numbers)
    for index in group[1:]:
        total = np.add(total, gradient_of(index, numbers))
    return digest(torch.from_numpy(total))


def summary(results: Results) -> dict[str, Any]:
    def figures(seconds: list[float | None]) -> dict[str, Any]:
        done = [one for one in seconds if one is not None]
        return {
            "rounds": len(seconds), "completed": len(done), "median_seconds": median(done) if done else None,
            "worst_seconds": max(done, default=None),
        }  # fmt: skip

    def ratio_to_ours(seconds: Sequence[float | None]) -> float | None:
        ratios = [theirs / ours for theirs, ours in zip(seconds, results.ours) if theirs and ours]
        return median(ratios) if ratios else None

    ratio, runner = ratio_to_ours(results.hivemind), results.runner
    return {
        "ours": figures(results.ours),
        "hivemind": figures(results.hivemind),
        "with_a_kill": figures(results.repaired),
        "exact": results.exact,
        "ratio": ratio,
        "budget": BUDGET,
        "passed": ratio is not None and ratio >= BUDGET and results.exact,
        "all_reduce_runner": figures_of_runners(runner.undisturbed),
        "all_reduce_runner_ratio": ratio_to_ours([one.seconds for one in runner.undisturbed]),
        "all_reduce_runner_with_a_kill": figures_killed(runner),
    }


def table(result: dict[str, Any]) -> Table:
    title = f"Sum of {result['megabytes']} MB on each of {result['peers']} peers, loopback, encrypted"
    shown = Table(title=title)
    for column in ("", "rounds", "completed", "right", "median s", "worst s", "ratio"):
        shown.add_column(column, justify="right" if column else "left")
    killed = result["all_reduce_runner_with_a_kill"]
    rows = (
        ("our streams", result["ours"], None),
        ("hivemind's averager", result["hivemind"], result["ratio"]),
        ("hivemind's AllReduceRunner", result["all_reduce_runner"], result["all_reduce_runner_ratio"]),
        ("ours, again, one killed", result["with_a_kill"], None),
        ("AllReduceRunner, one killed", killed, None),
        ("AllReduceRunner, again without it", killed["repeat"], None),
    )
    for label, figures, ratio in rows:
        if figures["rounds"]:
            times = [f"{one:.2f}" if one else "" for one in (figures["median_seconds"], figures["worst_seconds"])]
            counts = [str(figures["rounds"]), str(figures["completed"]), str(figures.get("right", ""))]
            shown.add_row(label, *counts, *times, f"{ratio:.2f} ×" if ratio else "")
    exact = "yes" if result["exact"] else "NO"
    shown.caption = f"averager must be ≥ {result['budget']} ×; our sums equal to the bit: {exact}"
    return shown
