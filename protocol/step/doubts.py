"""Whose parts of a sum look unlike the others', by what their owner sees of them for nothing (rule 42).

Nobody is accused for it. Whoever is doubted is checked in one of the next steps (check.py), as far as a budget goes:
honest parts have heavy tails, and a drift that all have must not make everybody check all the time. A check that agrees
ends the doubt.

A part is doubted
- when it was cut off, being larger than the group lets it (rule 43);
- when its size is far from those of earlier parts of the stage, or its member's sizes differ from the others' on
  average;
- when its member's parts have pointed against the sum of the others' on average. Honest parts agree or are mostly
  noise: what one expects of their cosine is never below zero.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import log2, sqrt
from random import Random
from typing import Final, NamedTuple, TypeVar

from ftnode.protocol.words.types import PartSeen, Peer

RATE: Final = 1 / 16
"""Of a running mean: what was 16 steps ago weighs a third."""
SEEN_MIN: Final = 16
"""Parts before anything is far from what is usual."""
FAR: Final = 6.0
"""Deviations of one part from the stage's."""
FAR_MEAN: Final = 4.0
"""Deviations of a mean."""
DEVIATION_MIN: Final = 0.1
"""Of sizes, in powers of two, and of cosines: exact multiples must not make everything far."""
SIZE_MIN: Final = 2.0**-16
BUDGET_MAX: Final = 4.0
BUDGET_A_STEP: Final = 1 / 32
"""Checks of doubted peers, on average at most in one of so many steps."""
PEERS_MAX: Final = 256
TOLD_MAX: Final = 16
QUIET_STEPS: Final = 256
"""A peer is named again after so many steps."""
Key = TypeVar("Key")
Value = TypeVar("Value")


class Doubt(NamedTuple):
    """`stage`: of whose sum; `step`: when it was noticed; `reason`: in words."""

    peer: Peer
    stage: int
    step: int
    reason: str


@dataclass(slots=True)
class Running:
    """Mean and variance of numbers, where the newest count most."""

    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, number: float) -> None:
        self.count += 1
        rate = max(RATE, 1 / self.count)
        away = number - self.mean
        self.mean += rate * away
        self.variance = (1 - rate) * (self.variance + rate * away * away)

    @property
    def deviation(self) -> float:
        return max(DEVIATION_MIN, sqrt(self.variance))

    @property
    def error(self) -> float:
        """Of the mean."""
        return self.deviation * sqrt(max(RATE / (2 - RATE), 1 / max(1, self.count)))


@dataclass(slots=True)
class _Member:
    """Of one peer and stage."""

    size: Running = field(default_factory=Running)
    cosine: Running = field(default_factory=Running)


class Doubts:
    """Of one holder, from step to step."""

    def __init__(self) -> None:
        self.cut_off = 0
        """Parts that did not count in full."""
        self.told: list[Doubt] = []
        """The newest, oldest first."""
        self._open: dict[Peer, Doubt] = {}
        """Those that wait for a check."""
        self._stages: dict[int, Running] = {}
        self._members: dict[tuple[int, Peer], _Member] = {}
        self._named: dict[Peer, int] = {}
        self._budget = BUDGET_MAX
        self._step = -1

    def see(self, stage: int, step: int, parts: Iterable[PartSeen]) -> list[Doubt]:
        """What others gave to a sum of the stage. Those of whom there is something new to say."""
        found = list[Doubt]()
        for part in parts:
            self.cut_off += part.counted < 1.0
            reason = self._judge(stage, part)
            if reason:
                doubt = Doubt(part.peer, stage, step, reason)
                self._open[part.peer] = doubt
                if step - self._named.get(part.peer, -QUIET_STEPS) >= QUIET_STEPS:
                    self._named[part.peer] = step
                    found.append(doubt)
        self.told = [*self.told, *found][-TOLD_MAX:]
        _bound(self._open)
        _bound(self._members)
        _bound(self._named)
        return found

    def choose(self, step: int, able: Iterable[Peer], chance: Random) -> Peer | None:
        """Whom to check in this step for a doubt, if there is one and the budget lets us. It is in doubt no more."""
        if step > self._step:
            self._budget = min(BUDGET_MAX, self._budget + BUDGET_A_STEP * (step - self._step if self._step >= 0 else 1))
            self._step = step
        doubted = sorted({*able} & self._open.keys())
        if not doubted or self._budget < 1.0:
            return None
        self._budget -= 1.0
        chosen = chance.choice(doubted)
        del self._open[chosen]
        return chosen

    def _judge(self, stage: int, part: PartSeen) -> str:
        """Why a part is doubted; empty when it is like others. It counts for what is usual from now on."""
        member = self._members.setdefault((stage, part.peer), _Member())
        usual, size = self._stages.setdefault(stage, Running()), log2(max(part.size, SIZE_MIN))
        reason = _unlike(part, size, usual, member)
        if part.counted == 1.0:  # one that is far out must not become what is usual
            usual.add(size)
            member.size.add(size)
        member.cosine.add(part.cosine)
        return reason


def _bound(table: dict[Key, Value]) -> None:
    while len(table) > PEERS_MAX:
        del table[next(iter(table))]


def _unlike(part: PartSeen, size: float, usual: Running, member: _Member) -> str:
    if part.counted < 1.0:
        return f"{part.size:,.0f} times what is usual in its group; {part.counted:.1%} of it counts"
    if usual.count < SEEN_MIN:
        return ""
    if abs(size - usual.mean) > FAR * usual.deviation:
        return f"{part.size:.2g} times what is usual in its group, after {2.0**usual.mean:.2g} times on average"
    if member.size.count >= SEEN_MIN:
        away = member.size.mean - usual.mean
        if abs(away) > FAR_MEAN * (member.size.error + usual.error):
            return f"{2.0**away:.2g} times what others give, on average"
    if member.cosine.count >= SEEN_MIN and member.cosine.mean < -FAR_MEAN * member.cosine.error:
        return f"against what the others give, on average (cosine {member.cosine.mean:.2f})"
    return ""
