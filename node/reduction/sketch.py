"""A few hundred sums by which two long vectors can be compared without both being in one place.

Each number is added, with a sign by lot, to the bucket of its position (a count sketch: Charikar, Chen and
Farach-Colton 2002). Such sums keep the distance of two vectors on average (Alon, Matias and Szegedy 1996): with BUCKETS
of them ‖sketch(a) - sketch(b)‖ is within about a tenth of ‖a - b‖. The signs follow from a key that whoever makes a
vector does not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any, Final

import numpy as np

BUCKETS: Final = 256
BLOCK: Final = 1 << 16
"""Numbers whose signs are drawn together. A multiple of BUCKETS."""
Numbers = np.ndarray[Any, np.dtype[Any]]


class Sketch:
    """Of any parts of a vector, each added once, in any order."""

    def __init__(self, key: int) -> None:
        """`key`: 64 bits."""
        self.key = key
        self.sums: Numbers = np.zeros(BUCKETS)

    def add(self, at: int, numbers: Numbers, less: Numbers | None = None) -> None:
        """The numbers from position `at` on, or what they have more than others there."""
        end = at + len(numbers)
        for block in range(at // BLOCK, -(-end // BLOCK)):
            first = max(at, block * BLOCK)
            here = slice(first - at, min(end, (block + 1) * BLOCK) - at)
            x = numbers[here].astype(np.float64)
            if less is not None:
                x -= less[here]
            whole: Numbers = np.zeros(BLOCK)
            start = first - block * BLOCK
            whole[start : start + len(x)] = x
            self.sums += np.einsum("ij,ij->j", whole.reshape(-1, BUCKETS), self._signs(block))

    def _signs(self, block: int) -> Numbers:
        """1 or -1, [BLOCK / BUCKETS, BUCKETS]."""
        bits = np.random.Philox(key=self.key, counter=block << 64).random_raw(BLOCK // 64).view(np.uint8)
        return 1.0 - 2.0 * np.unpackbits(bits).reshape(-1, BUCKETS)


DISTANCE_MAX: Final = 1e30


def norm(sums: Sequence[float] | Numbers) -> float:
    """About that of what was sketched."""
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.linalg.norm(np.asarray(sums)))


def distance(said: Sequence[float] | Numbers, right: Sequence[float] | Numbers, beside: float = 0.0) -> float:
    """‖said - right‖ / ‖right‖, of two sketches: 0 where both are nothing, and at most DISTANCE_MAX. `beside`: what is
    right counts as no smaller than this."""
    said, right = np.asarray(said), np.asarray(right)
    with np.errstate(over="ignore", invalid="ignore"):
        away = norm(said - right)
    return relative(away, max(norm(right), beside))


def relative(away: float, size: float) -> float:
    """`away / size`: 0 where both are nothing, and at most DISTANCE_MAX, also where one of them is no finite number."""
    if away == 0.0:
        return 0.0
    return min(away / size, DISTANCE_MAX) if size and isfinite(away) and isfinite(size) else DISTANCE_MAX
