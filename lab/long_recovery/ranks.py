"""Rank correlation (Spearman's), and intervals of means and of correlations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import nan, sqrt
from random import Random
from statistics import mean, stdev
from typing import Final

import numpy as np

DRAWS: Final = 1000
INTERVAL: Final = 0.9
STUDENT: Final = (0.0, 6.314, 2.920, 2.353, 2.132, 2.015, 1.943, 1.895, 1.860, 1.833)
"""Of Student's distribution, what 5 % are above, by degrees of freedom from 1 on."""


def ranks(values: Sequence[float]) -> list[float]:
    """From 1 on; equal values share the mean of their ranks."""
    order = sorted(range(len(values)), key=lambda number: values[number])
    found, start = [0.0] * len(values), 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for place in order[start:end]:
            found[place] = (start + 1 + end) / 2
        start = end
    return found


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Not a number where either side has no two different values."""
    left, right = (np.array(ranks([pair[side] for pair in pairs])) for side in (0, 1))
    if len(pairs) < 2 or not left.std() or not right.std():
        return nan
    return float(np.corrcoef(left, right)[0, 1])


def correlation_interval(pairs: Sequence[tuple[float, float]], chance: Random) -> tuple[float, float]:
    """INTERVAL of the bootstrap's draws of pairs."""
    drawn = [rank_correlation(chance.choices(pairs, k=len(pairs))) for _ in range(DRAWS)]
    sound = [one for one in drawn if one == one]
    if not sound:
        return nan, nan
    return middle(sound)


def middle(drawn: Iterable[float]) -> tuple[float, float]:
    """INTERVAL of what was drawn, at least one."""
    values = sorted(drawn)
    cut = int(len(values) * (1 - INTERVAL) / 2)
    return values[cut], values[-1 - cut]


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """INTERVAL of the mean by Student's distribution; None of fewer than two values."""
    if len(values) < 2:
        return None
    half = STUDENT[min(len(values), len(STUDENT)) - 1] * stdev(values) / sqrt(len(values))
    return mean(values) - half, mean(values) + half
