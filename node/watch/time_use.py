"""What a volunteer does with its time: it computes, its tensors are on their way, or it waits for others.

Looked at some ten times a second, and counted over the last minute. Nothing is sent for it: what a line gives is what
the pace of its tensors has found out (links/sending_pace.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from typing import Final

from ftnode.protocol.words.errors import PeerError

KEPT_SECONDS: Final = 60.0
GAP_SECONDS: Final = 1.0
"""A node that looked at nothing for longer stood still itself."""
KNOWN_SECONDS: Final = 10.0
"""Before that, shares mean nothing."""
RATE_MAX: Final = 1e12
"""Bytes a second, that anybody may claim."""
SPANS_MAX: Final = 1200


@dataclass(frozen=True, slots=True)
class Glance:
    """One moment. `computing`: compute has something to do; `sending`: tensors are on their way; `full`: one more waits
    for them; `up`: bytes a second that the line takes, 0.0 while nobody knows."""

    computing: bool
    sending: bool
    full: bool
    up: float


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Shares of the last minute, 0 to 1; the first two may overlap. `waited`: neither. `full`: more was to be sent than
    the line took. `up`: bytes a second that it takes; None while it was never full for long."""

    computed: float
    sent: float
    waited: float
    full: float
    up: float | None


class TimeRecord:
    """Of one node. Times are of one clock and do not fall."""

    def __init__(self) -> None:
        self._last: tuple[float, Glance] | None = None
        self._spans: deque[tuple[float, float, Glance]] = deque(maxlen=SPANS_MAX)
        """(end, seconds, glance at its beginning)."""

    def glance(self, glance: Glance, now: float) -> None:
        if self._last is not None:
            began, before = self._last
            if 0 < now - began <= GAP_SECONDS:
                self._spans.append((now, now - began, before))
        self._last = now, glance
        while self._spans and self._spans[0][0] < now - KEPT_SECONDS:
            self._spans.popleft()

    def use(self) -> TimeUse | None:
        """None until enough was seen."""
        whole = sum(seconds for _, seconds, _ in self._spans)
        if whole < KNOWN_SECONDS:
            return None
        computed, sent, waited, full = 0.0, 0.0, 0.0, 0.0
        for _, seconds, glance in self._spans:
            computed += seconds * glance.computing
            sent += seconds * glance.sending
            waited += seconds * (not glance.computing and not glance.sending)
            full += seconds * glance.full
        shares = _shares([min(1.0, part / whole) for part in (computed, sent, waited, full)])
        up = self._spans[-1][2].up
        return TimeUse(*shares, up if up > 0 else None)


def told(use: TimeUse | None) -> dict[str, float | None]:
    """As fields of an answer to who we are (peer_latency.py); none while nothing is known."""
    return asdict(use) if use is not None else {}


def read_told(found: Mapping[object, object]) -> TimeUse | None:
    """What `told` says among the fields of an answer; None where a peer says nothing of it, as versions before do not.

    Raises PeerError for what cannot be.
    """
    if "computed" not in found:
        return None
    shares = _shares([_number(found.get(name), 1.0) for name in ("computed", "sent", "waited", "full")])
    up = found.get("up")
    return TimeUse(*shares, None if up is None else _number(up, RATE_MAX))


def _shares(four: Sequence[float]) -> tuple[float, float, float, float]:
    computed, sent, waited, full = four
    return computed, sent, waited, full


def _number(value: object, most: float) -> float:
    if not isinstance(value, float | int) or not isfinite(value) or not 0 <= value <= most:
        raise PeerError("shares of its time that cannot be")
    return float(value)
