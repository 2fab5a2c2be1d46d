"""How fast a step could be over lines of a rate: no volunteer sends less than its tensors, nor before it has one.

Every microbatch passes the same chain of hops, forward through all stages back to the head, and backward the same way.
A line is idle before the first microbatch has come to it, and after it has sent its last, while that one goes on. In
between it may be busy all the time. So a step takes at least what the busiest line takes for its tensors, and what one
microbatch alone takes before and after it: one fill of the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Step:
    """A step's work. `tensor_bytes`: of one tensor forward, and of one backward; `rates`: bytes a second of every line,
    up and down; `pace`: seconds of a stage for a microbatch, forward and backward."""

    microbatches: int
    tensor_bytes: tuple[int, int]
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
    hops = _hops([*holders, holders[0]], step)
    found = []
    for name in dict.fromkeys(holders):
        up = sum(hop.size for hop in hops if hop.sender == name)
        down = sum(hop.size for hop in hops if hop.receiver == name)
        busy = step.microbatches * max(up / step.rates[0], down / step.rates[1])
        found.append(Bound(name, busy, _around(name, hops, step)))
    return max(found, key=lambda one: one.seconds)


@dataclass(frozen=True, slots=True)
class _Hop:
    """`seconds`: that the sender computes before it; `size`: bytes, none to oneself."""

    sender: str
    receiver: str
    seconds: float
    size: int


def _hops(route: Sequence[str], step: Step) -> list[_Hop]:
    """Of one microbatch, there and back. The paced head takes no time."""
    there, back = step.tensor_bytes
    pairs = list(pairwise(route))
    hops = [(pair, step.pace[0] if place else 0.0, there) for place, pair in enumerate(pairs)]
    hops += [(pair[::-1], step.pace[1] if place else 0.0, back) for place, pair in enumerate(reversed(pairs))]
    return [
        _Hop(sender, receiver, seconds, size if sender != receiver else 0)
        for (sender, receiver), seconds, size in hops
    ]  # fmt: skip


def _around(name: str, hops: Sequence[_Hop], step: Step) -> float:
    """What one microbatch takes before its first hop from `name` and after its last one."""
    mine = [place for place, hop in enumerate(hops) if hop.size and hop.sender == name]
    if not mine:
        return 0.0
    outside = [*hops[: mine[0]], *hops[mine[-1] + 1 :]]
    sent = [hop.size / min(step.rates) + step.delay_seconds for hop in outside if hop.size]
    return sum(sent) + sum(hop.seconds for hop in outside)
