"""After how many steps a validation curve has come down to a loss.

At a constant rate the weights jitter, so that one validation lies a little above or below its neighbours. What a run
learns in ten steps is as little, so that a single low value may come many steps too early.
So a curve is smoothed before it is asked: each value becomes the mean of it and of two on either side. Where a curve
falls evenly, that moves nothing. Values without two neighbours on either side do not count, so that no single low one
ends a run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean
from typing import Final

Curve = Sequence[Sequence[float]]
"""(step, loss), in order."""
SIDE: Final = 2
"""Neighbours on either side."""


def smoothed(curve: Curve) -> list[tuple[float, float]]:
    """The values that have all their neighbours."""
    return [
        (curve[place][0], mean(loss for _, loss in curve[place - SIDE : place + SIDE + 1]))
        for place in range(SIDE, len(curve) - SIDE)
    ]


def steps_to(curve: Curve, loss: float) -> float | None:
    """Where the smoothed curve first is at most `loss`, on the line between two validations; None: nowhere."""
    points = smoothed(curve)
    if points and points[0][1] <= loss:
        return points[0][0]
    for (left, high), (right, low) in pairwise(points):
        if low <= loss:
            return left + (right - left) * (high - loss) / (high - low)
    return None


def lowest(curve: Curve) -> float | None:
    """Of the smoothed curve; None while it has no value."""
    return min((loss for _, loss in smoothed(curve)), default=None)
