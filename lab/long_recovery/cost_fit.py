"""The planner's cost of a loss (protocol/recovery/learning_cost.py), held against whole runs and fitted to them.

The next loss of a stage costs `first` · H(1 + H) / ((b + H)(b + 1 + H)) steps, where b losses came before it within
`window` steps. A run's steps are the sum over its schedule. The first block stage's losses count `ends` times as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import mean
from typing import Final

from ftnode.protocol.recovery.learning_cost import FIRST_STAGE, HALF, LONG_AGO, MIDDLE

HALVES: Final = tuple(2.0 ** (power / 2) for power in range(-2, 25))
"""Tried for H."""
DRAWS: Final = 1000
"""Of the bootstrap."""
INTERVAL: Final = 0.9

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
    return Fitted(cost, error, len(runs), _middle([one.first for one in drawn]), _middle([one.half for one in drawn]))


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


def _middle(values: list[float]) -> tuple[float, float]:
    values = sorted(values)
    cut = int(len(values) * (1 - INTERVAL) / 2)
    return values[cut], values[-1 - cut]
