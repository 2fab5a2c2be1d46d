"""The planner's cost of a loss (protocol/recovery/learning_cost.py), held against whole runs and fitted to them.

The next loss of a stage costs `first` · H(1 + H) / ((b + H)(b + 1 + H)) steps, where b losses came before it within
`window` steps. A run's steps are the sum over its schedule. The first block stage's losses count `ends` times as much.

`python -m ftnode.lab.long_recovery.cost_fit docs/recovery` fits it to the runs of 800 iterations that lie there, writes
cost_fit.csv beside them, and prints it.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import mean
from typing import Final

from ftnode.lab.long_recovery.plan import LONG, SEEDS
from ftnode.lab.long_recovery.ranks import DRAWS, middle
from ftnode.lab.recovery.curves import excess_iterations
from ftnode.lab.recovery.failures import PER_ITERATION, draw
from ftnode.lab.recovery.plan import CHECKFREE, NONE
from ftnode.lab.results.result_files import read_kept
from ftnode.protocol.recovery.learning_cost import FIRST_STAGE, HALF, LONG_AGO, MIDDLE

HALVES: Final = tuple(2.0 ** (power / 4) for power in range(-4, 49))
"""Tried for H."""
ENDS: Final = (1.0, 3.0, 8.0)
"""Tried beside the planner's own."""
SHORT: Final = 800
"""Iterations of the runs that the planner's constants come from."""
COLUMNS: Final = (
    "constants", "first stage counts", "first loss", "first loss, 90 %", "H", "H, 90 %", "error, iterations",
)  # fmt: skip

Losses = Sequence[tuple[int, int]]
"""(iteration, stage)."""


@dataclass(frozen=True, slots=True)
class Cost:
    """`first`: steps, of the first loss of a middle stage in a run. `half`: H. `ends`: of the first block stage, in
    `first`. `window`: steps after which a loss counts no more among those before."""

    first: float = MIDDLE
    half: float = HALF
    ends: float = FIRST_STAGE / MIDDLE
    window: int = LONG_AGO

    def steps(self, losses: Losses) -> float:
        """Of all losses of a run together."""
        return self.first * _weight(losses, self.half, self.ends, self.window)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run: what it lost, and how many iterations that was worth, by its loss at the end."""

    seed: int
    losses: Losses
    behind: float


@dataclass(frozen=True, slots=True)
class Fitted:
    """`interval`: of `first` and of `half`, INTERVAL of the bootstrap's draws; None of fewer than two runs."""

    cost: Cost
    error: float
    """Root of the mean squared difference, in the runs' iterations."""
    runs: int
    first_interval: tuple[float, float] | None
    half_interval: tuple[float, float] | None


def _weight(losses: Losses, half: float, ends: float, window: int) -> float:
    total, seen = 0.0, [at for at, _ in losses]
    oldest = 0
    for number, (at, stage) in enumerate(losses):
        while at - seen[oldest] >= window:
            oldest += 1
        before = number - oldest
        total += (ends if stage == 1 else 1.0) / ((before + half) * (before + 1 + half))
    return total * half * (1 + half)


def fitted(runs: Sequence[Measured], ends: float, window: int, chance: Random) -> Fitted:
    """`first` by least squares for each of HALVES, and the best of these. The bootstrap draws seeds where there are
    several, else runs. Raises ValueError without a run."""
    if not runs:
        raise ValueError("there is no run to fit the cost of a loss to")
    weights = {half: [_weight(one.losses, half, ends, window) for one in runs] for half in HALVES}
    cost, error = _best(range(len(runs)), runs, weights, ends, window)
    if len(runs) < 2:
        return Fitted(cost, error, len(runs), None, None)
    by_seed: dict[int, list[int]] = {}
    for number, one in enumerate(runs):
        by_seed.setdefault(one.seed, []).append(number)
    groups = list(by_seed.values()) if len(by_seed) > 1 else [[number] for number in range(len(runs))]
    drawn = []
    for _ in range(DRAWS):
        chosen = [number for group in chance.choices(groups, k=len(groups)) for number in group]
        drawn.append(_best(chosen, runs, weights, ends, window)[0])
    return Fitted(cost, error, len(runs), middle(one.first for one in drawn), middle(one.half for one in drawn))


def short_runs(folder: Path) -> list[Measured]:
    """CheckFree's runs of 800 iterations in the recovery lab's folder, also those that lose only middle stages."""
    results = [read_kept(path) for path in sorted((folder / "results").glob("tiny-*-s*.json"))]
    clean = {one["seed"]: one["curve"] for one in results if one["policy"]["name"] == NONE.name}
    return [
        Measured(
            one["seed"], tuple((at, stage) for at, lost, _ in one["damages"] for stage in lost),
            excess_iterations(one["curve"], clean[one["seed"]]),
        )
        for one in results
        if one["policy"]["name"] == CHECKFREE.name and one["iterations"] == SHORT
    ]  # fmt: skip


def table(runs: Sequence[Measured]) -> list[tuple[str, ...]]:
    """What the planner has, and the fit for several weights of the first stage."""
    now = Cost()
    error = mean((now.steps(one.losses) - one.behind) ** 2 for one in runs) ** 0.5
    planned = ("as it is now", f"{now.ends:.1f}", f"{now.first:.1f}", "", f"{now.half:.1f}", "", f"{error:.0f}")
    rows: list[tuple[str, ...]] = [COLUMNS, planned]
    for ends in (*ENDS, now.ends):
        fit = fitted(runs, ends, now.window, Random(0))
        assert fit.first_interval is not None and fit.half_interval is not None
        rows.append((
            "fitted", f"{ends:.1f}", f"{fit.cost.first:.1f}", _range(fit.first_interval), f"{fit.cost.half:.1f}",
            _range(fit.half_interval), f"{fit.error:.0f}",
        ))  # fmt: skip
    return rows


def foretold(rate: str, cost: Cost) -> float:
    """Steps that a long run loses, mean over its seeds' schedules."""
    size = LONG.size
    drawn = (draw(rate, seed, size.stages, LONG.iterations, 1.0, size.warmup_steps + 1) for seed in SEEDS)
    return mean(cost.steps(schedule.failures) for schedule in drawn)


def main(folder: Path) -> None:
    rows = table(short_runs(folder))
    with (folder / "cost_fit.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    for row in rows:
        print(" | ".join(row))
    for window in (LONG_AGO, LONG.iterations):
        steps = ", ".join(f"{foretold(rate, Cost(window=window)):.0f} at {rate}" for rate in PER_ITERATION)
        print(f"foretold of {LONG.iterations} iterations with a window of {window}: {steps}")


def _range(interval: tuple[float, float]) -> str:
    return f"{interval[0]:.1f} to {interval[1]:.1f}"


def _best(
    chosen: Sequence[int], runs: Sequence[Measured], weights: dict[float, list[float]], ends: float, window: int
) -> tuple[Cost, float]:
    found = []
    for half, each in weights.items():
        square = sum(each[number] ** 2 for number in chosen)
        first = max(0.0, sum(each[number] * runs[number].behind for number in chosen) / square)
        error = mean((first * each[number] - runs[number].behind) ** 2 for number in chosen) ** 0.5
        found.append((error, half, first))
    error, half, first = min(found)
    return Cost(first, half, ends, window), error


if __name__ == "__main__":
    main(Path(sys.argv[1]))
