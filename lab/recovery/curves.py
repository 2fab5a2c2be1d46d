"""Validation curves compared: how far behind one is, when it gets there. A curve: (iteration, loss), in order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean

Curve = Sequence[Sequence[float]]
SMOOTHING = 3


def smoothed(curve: Curve) -> list[tuple[float, float]]:
    """Mean of each value with its neighbours; the ends as they are."""
    half = SMOOTHING // 2
    found = []
    for index, (iteration, _) in enumerate(curve):
        room = min(half, index, len(curve) - 1 - index)
        found.append((iteration, mean(value for _, value in curve[index - room : index + room + 1])))
    return found


def reached(reference: Curve, at: float) -> float:
    """The smoothed loss at iteration `at`, between two evaluations on the line through them."""
    points = smoothed(reference)
    for (left, high), (right, low) in pairwise(points):
        if left <= at <= right:
            return high + (low - high) * (at - left) / (right - left)
    raise ValueError(f"the curve does not have iteration {at}")


def iteration_of(reference: Curve, loss: float) -> float:
    """When the smoothed curve first falls to `loss`; its last iteration when it does not."""
    points = smoothed(reference)
    if loss >= points[0][1]:
        return points[0][0]
    lowest = points[0]
    for point in points[1:]:
        if point[1] < lowest[1]:
            if point[1] <= loss:
                return lowest[0] + (point[0] - lowest[0]) * (lowest[1] - loss) / (lowest[1] - point[1])
            lowest = point
    return points[-1][0]


def excess_iterations(curve: Curve, reference: Curve) -> float:
    """How many iterations a curve is behind the reference at equal loss, mean over its second half."""
    length = min(curve[-1][0], reference[-1][0])
    # A curve longer than the others (the reference itself) is compared over the same part.
    late = [(iteration, loss) for iteration, loss in curve if length / 2 < iteration <= length]
    return mean(iteration - iteration_of(reference, loss) for iteration, loss in late)


def first_below(curve: Curve, loss: float) -> float | None:
    """The first evaluation whose smoothed loss is at most `loss`."""
    return next((iteration for iteration, value in smoothed(curve) if value <= loss), None)


def level(curve: Curve, until: float) -> float:
    """Mean loss over the last quarter of the iterations up to `until`."""
    return mean(loss for iteration, loss in curve if 0.75 * until < iteration <= until)
