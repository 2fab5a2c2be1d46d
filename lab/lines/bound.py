"""How fast a step could be over lines of a rate: no volunteer sends less than its tensors, nor before it has one.

Every microbatch passes the same chain of hops, forward through all stages back to the head, and backward the same way.
A line is idle before the first microbatch has come to it, and after it has sent its last, while that one goes on. In
between it may be busy all the time. So a step takes at least what the busiest line takes for its tensors, and what one
microbatch alone takes before and after it: one fill of the pipeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Step:
    """A step's work. `rates`: bytes a second of every line, up and down; `pace`: seconds of a stage for a microbatch,
    forward and backward."""

    microbatches: int
    tensor_bytes: int
    rates: tuple[float, float]
    delay_seconds: float
    pace: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Bound:
    """`tensors`: seconds of the busiest line for its tensors; `fill`: of one microbatch before and after it.
    `limiting`: whose line that is."""

    limiting: str
    tensors: float
    fill: float

    @property
    def seconds(self) -> float:
        return self.tensors + self.fill


def bound(holders: Sequence[str], step: Step) -> Bound:
    """Of a step whose stage i is held by `holders[i]` alone, the head being stage 0."""
    route = [*holders, holders[0]]
    pairs = list(pairwise(route))
    hops = [(sender, receiver, step.pace[0] if place else 0.0) for place, (sender, receiver) in enumerate(pairs)]
    backwards = enumerate(reversed(pairs))
    hops += [(sender, receiver, step.pace[1] if place else 0.0) for place, (receiver, sender) in backwards]
    sent = [(sender, receiver) for sender, receiver, _ in hops if sender != receiver]
    each = step.tensor_bytes / min(step.rates)
    found = []
    for name in dict.fromkeys(holders):
        up, down = (Counter(pair[side] for pair in sent)[name] * step.tensor_bytes for side in (0, 1))
        busy = step.microbatches * max(up / step.rates[0], down / step.rates[1])
        found.append(Bound(name, busy, _around(name, hops, each + step.delay_seconds)))
    return max(found, key=lambda one: one.seconds)


def _around(name: str, hops: Sequence[tuple[str, str, float]], hop_seconds: float) -> float:
    """What one microbatch takes before its first hop from `name` and after its last one. Every holder computes before
    it sends, but the paced head, which takes no time."""
    mine = [place for place, (sender, receiver, _) in enumerate(hops) if sender == name != receiver]
    if not mine:
        return 0.0
    outside = [*hops[: mine[0]], *hops[mine[-1] + 1 :]]
    return sum(seconds + (hop_seconds if sender != receiver else 0.0) for sender, receiver, seconds in outside)
