"""How fast a step could be over lines of a rate: no volunteer sends less than its tensors, nor before it has one.

Every microbatch passes the same chain of hops, forward through all stages back to the head, and backward the same way.
A line is idle before the first microbatch has come to it, and after it has sent its last, while that one goes on. In
between it may be busy all the time, and so may the device behind it. So a step takes at least what the busiest of them
takes for its work, and what one microbatch alone takes before and after it: one fill of the pipeline.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from ftnode.protocol.manifest.boundary import BoundaryBytes

WAYS: Final = ("up", "down", "compute")
"""What a volunteer can be busy with."""


@dataclass(frozen=True, slots=True)
class Work:
    """A step's work. `tensors`: bytes of one in either direction; `rates`: bytes a second of every line, up and down;
    `paces`: of each stage, the head first, its seconds for a microbatch, forward and backward."""

    microbatches: int
    tensors: BoundaryBytes
    rates: tuple[float, float]
    delay_seconds: float
    paces: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Bound:
    """`busy`: seconds of the busiest volunteer for its work; `fill`: of one microbatch before and after it.
    `limiting`: whose work that is; `way`: one of WAYS."""

    limiting: str
    way: str
    busy: float
    fill: float

    @property
    def seconds(self) -> float:
        return self.busy + self.fill


@dataclass(frozen=True, slots=True)
class Hop:
    """One microbatch from a stage to the next. `compute`: seconds of the sender for it before that."""

    sender: str
    receiver: str
    size: int
    compute: float


def bound(holders: Sequence[str], work: Work) -> Bound:
    """Of a step whose stage i is held by `holders[i]` alone, the head being stage 0."""
    return max(bounds(holders, work), key=lambda one: one.seconds)


def bounds(holders: Sequence[str], work: Work) -> list[Bound]:
    """As `bound`, of each holder and each of WAYS."""
    hops = hops_of(holders, work)
    found: list[Bound] = []
    for name in dict.fromkeys(holders):
        seconds = [work.microbatches * one for one in _busy(name, holders, hops, work)]
        fill = _around(name, hops, work)
        found += [Bound(name, way, busy, fill) for way, busy in zip(WAYS, seconds)]
    return found


def hops_of(holders: Sequence[str], work: Work) -> list[Hop]:
    """Forward and backward. The head embeds in no time, and its pass through the loss is before the first hop back."""
    last = len(holders)
    pairs = list(pairwise([*holders, holders[0]]))
    forward, backward = zip(*work.paces)
    hops = [
        Hop(sender, receiver, work.tensors.forward, forward[stage] if stage else 0.0)
        for stage, (sender, receiver) in enumerate(pairs)
    ]
    for visit in range(last, 0, -1):
        receiver, sender = pairs[visit - 1]
        compute = backward[visit] if visit < last else forward[0] + backward[0]
        hops.append(Hop(sender, receiver, work.tensors.backward, compute))
    return hops


def hop_seconds(hop: Hop, work: Work) -> float:
    """On an idle line, with the compute before it. Between two stages of one peer nothing is sent."""
    line = hop.size / min(work.rates) + work.delay_seconds if hop.sender != hop.receiver else 0.0
    return hop.compute + line


def _busy(name: str, holders: Sequence[str], hops: Sequence[Hop], work: Work) -> tuple[float, float, float]:
    """Seconds that a microbatch keeps the line up, the line down and the device of one volunteer busy."""
    sent = [hop for hop in hops if hop.sender != hop.receiver]
    up = sum(hop.size for hop in sent if hop.sender == name)
    down = sum(hop.size for hop in sent if hop.receiver == name)
    compute = sum(sum(pace) for holder, pace in zip(holders, work.paces) if holder == name)
    return up / work.rates[0], down / work.rates[1], compute


def _around(name: str, hops: Sequence[Hop], work: Work) -> float:
    """What one microbatch takes before its first hop from `name` and after its last one."""
    mine = [place for place, hop in enumerate(hops) if hop.sender == name != hop.receiver]
    if not mine:
        return 0.0
    return sum(hop_seconds(hop, work) for hop in (*hops[: mine[0]], *hops[mine[-1] + 1 :]))
