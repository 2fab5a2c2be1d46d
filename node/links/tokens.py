"""Tokens: a rate, and how much of it may be used at once after a pause."""

from __future__ import annotations


class Tokens:
    """They come back with the time, up to `at_once`, which is what there is at first. `now`: seconds; a time before an
    earlier one counts as that."""

    def __init__(self, per_second: float, at_once: float, now: float) -> None:
        self._per_second, self._at_once = per_second, at_once
        self._left, self._seen = at_once, now

    def left(self, now: float) -> float:
        """How many there are; below 0, how many are owed."""
        passed = max(0.0, now - self._seen)
        self._seen += passed
        self._left = min(self._at_once, self._left + passed * self._per_second)
        return self._left

    def take(self, count: float = 1.0) -> None:
        """Use as many, whether there are enough or not; `left` says it before."""
        self._left -= count

    def give_back(self, count: float = 1.0) -> None:
        """They were taken and not needed."""
        self._left = min(self._at_once, self._left + count)

    @property
    def debt_seconds(self) -> float:
        """From the last `left` on, until nothing is owed."""
        return max(0.0, -self._left / self._per_second)
