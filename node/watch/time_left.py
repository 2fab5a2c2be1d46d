"""How long the rest of a run takes: one estimate, for status, dashboard, metrics and the live line."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

STEPS_SEEN: Final = 512
"""Newest ones that count; what older ones would weigh is small."""
HALF_STEPS: Final = 32
HALF_SECONDS: Final = 300.0
"""A step counts half as much as the newest when so many came after it and so much time has passed since. A swarm that
grows is believed after some minutes; a few slow steps are not believed to go on."""
SLOWED: Final = 1.5
"""Times the pace of before: steps of which nine in ten took longer, eight at least, show a new pace, and those before
them count no more. Few slow steps among quick ones do not show one."""
SLOWED_STEPS_MIN: Final = 8
LONGEST: Final = 4.0
"""Times the median: in a step that took longer somebody was lost, or slept, which the next ones do not repeat."""


def seconds_left(steps: int, seconds: Sequence[float]) -> float | None:
    """For `steps` more steps, where the last ones took `seconds`, oldest first. None until one is known: the first step
    of a run has no seconds, for none came before it, and is 0.0 here."""
    known = [each for each in seconds[-STEPS_SEEN:] if each > 0]
    if not known:
        return None
    return max(0, steps) * _pace(_since_slower(known))


def _since_slower(known: Sequence[float]) -> Sequence[float]:
    """The newest steps where they are clearly slower than those before them; else all."""
    count = SLOWED_STEPS_MIN
    slower = known
    while count <= len(known) - SLOWED_STEPS_MIN:
        newest, before = known[-count:], known[:-count]
        if sorted(newest)[count // 10] > SLOWED * _pace(before):
            slower = newest
        count *= 2
    return slower


def _pace(known: Sequence[float]) -> float:
    """Seconds of the next step."""
    longest = LONGEST * median(known)
    age, whole, weights = 0.0, 0.0, 0.0
    for after, each in enumerate(reversed(known)):
        weight = 0.5 ** min(after / HALF_STEPS, age / HALF_SECONDS)
        whole += weight * min(each, longest)
        weights += weight
        age += each
    return whole / weights
