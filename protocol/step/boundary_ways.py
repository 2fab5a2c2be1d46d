"""Which way the activations of a stage usually point, and which of them points elsewhere (rule 42).

The mean of an activation over a microbatch's places is much the same for all microbatches, and what turns its sign or
gives noise of the same size has another one. Gradients have no such mean: theirs point anywhere, and are not looked at.
What is far out counts a quarter for what is usual, so that one of two makers does not bend it. What has turned for
all is usual again after some fifty tensors.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import sqrt
from typing import Final

from ftnode.protocol.step.doubts import FAR, RATE, SEEN_MIN, Running

FAR_MIN: Final = 1.25
"""Less than the usual cosine by so much is never far."""
NEAR: Final = 3.0
"""Deviations: what is farther and not far counts as this, so that noise which happens to be near hides no other."""
LITTLE: Final = 0.25
"""What is far out counts so much."""


@dataclass(slots=True)
class Ways:
    """Of one place, from all makers."""

    mean: list[float] = field(default_factory=list)
    """Of vectors of length 1."""
    cosines: Running = field(default_factory=Running)
    """Of each with the mean before it."""

    def see(self, way: tuple[int, ...]) -> str:
        """Why the maker of an activation that points this way is doubted; empty when it is like others."""
        size = sqrt(sum(number * number for number in way))
        if not size:  # zeros have an unusual norm
            return ""
        unit = [number / size for number in way]
        if len(self.mean) != len(unit):
            self.mean, self.cosines = unit, Running()
            return ""
        length = sqrt(sum(number * number for number in self.mean))
        cosine = sum(one * other for one, other in zip(unit, self.mean)) / length if length else 0.0
        usual = self.cosines
        least = usual.mean - max(FAR_MIN, FAR * usual.deviation)
        far = usual.count >= SEEN_MIN and cosine < least
        rate = max(RATE, 1 / (usual.count + 2)) * (LITTLE if far else 1.0)
        self.mean = [mean + rate * (number - mean) for mean, number in zip(self.mean, unit)]
        if not far:
            usual.add(max(cosine, usual.mean - NEAR * usual.deviation) if usual.count >= SEEN_MIN else cosine)
        return f"turned away from what activations usually are (cosine {cosine:.2f})" if far else ""
