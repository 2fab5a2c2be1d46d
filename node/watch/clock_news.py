"""What a volunteer is told of its machine's clock, which goes wrong unseen: others then refuse what it signs."""

from __future__ import annotations

from collections.abc import Iterable

from ftnode.node.watch.clock_offset import FIX, SECONDS_GOOD, median
from ftnode.node.watch.peer_latency import Acquaintance


class ClockNews:
    """`seconds_max`: further ahead of theirs, others refuse our records."""

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._told = False

    def too_far(self, known: Iterable[Acquaintance]) -> str:
        """By how much our clock is off, where that is so far that their records are none to us, nor ours to them; ""
        where it is not, or nobody tells the time."""
        offset = median([each.clock for each in known if each.clock is not None])
        return f"this machine's clock is {offset}" if offset is not None and offset.off > self._seconds_max else ""

    def look(self, known: Iterable[Acquaintance]) -> str:
        """What to say now; "" for nothing. A wrong clock is said once, and so is that it is right again."""
        offset = median([each.clock for each in known if each.clock is not None])
        wrong = offset is not None and offset.off > SECONDS_GOOD
        if offset is None or wrong == self._told:
            return ""
        self._told = wrong
        if not wrong:
            return "this machine's clock is right again"
        return f"this machine's clock is {offset}; others refuse what is {self._seconds_max:g} s off; {FIX}"
