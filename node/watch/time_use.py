"""What a volunteer does with its time: it computes, its tensors are on their way, or it waits for others.

Looked at some ten times a second, and counted over the last minute. Nothing is sent for it: what a line gives is seen
where it is full, which is while a tensor waits for those before it. Then receipts (links/tensor_lane.py) say how many
bytes have come to other peers meanwhile.
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
FULL_SECONDS_MIN: Final = 3.0
FULL_BYTES_MIN: Final = 1 << 20
"""Of a line that was full for less, the rate is not known: receipts come in bursts."""
RATE_MAX: Final = 1e12
"""Bytes a second, that anybody may claim."""
SPANS_MAX: Final = 1200


@dataclass(frozen=True, slots=True)
class Glance:
    """One moment. `computing`: compute has something to do; `sending`: tensors are on their way; `full`: one more waits
    for them; `received`: bytes of tensors that others have ever had from us."""

    computing: bool
    sending: bool
    full: bool
    received: int


@dataclass(frozen=True, slots=True)
class TimeUse:
    """Shares of the last minute, 0 to 1; the first two may overlap. `waited`: neither. `full`: more was to be sent than
    the line took. `up`: bytes a second that it took then; None while it was hardly ever full."""

    computed: float
    sent: float
    waited: float
    full: float
    up: float | None


class TimeRecord:
    """Of one node. Times are of one clock and do not fall."""

    def __init__(self) -> None:
        self._last: tuple[float, Glance] | None = None
        self._spans: deque[tuple[float, float, Glance, int]] = deque(maxlen=SPANS_MAX)
        """(end, seconds, glance at its beginning, bytes that others got meanwhile)."""

    def glance(self, glance: Glance, now: float) -> None:
        if self._last is not None:
            began, before = self._last
            if 0 < now - began <= GAP_SECONDS:
                self._spans.append((now, now - began, before, max(0, glance.received - before.received)))
        self._last = now, glance
        while self._spans and self._spans[0][0] < now - KEPT_SECONDS:
            self._spans.popleft()

    def use(self) -> TimeUse | None:
        """None until enough was seen."""
        whole = sum(seconds for _, seconds, _, _ in self._spans)
        if whole < KNOWN_SECONDS:
            return None
        computed, sent, waited, full, carried = 0.0, 0.0, 0.0, 0.0, 0
        for _, seconds, glance, count in self._spans:
            computed += seconds * glance.computing
            sent += seconds * glance.sending
            waited += seconds * (not glance.computing and not glance.sending)
            full += seconds * glance.full
            carried += count * glance.full
        known = full >= FULL_SECONDS_MIN and carried >= FULL_BYTES_MIN
        shares = _shares([min(1.0, part / whole) for part in (computed, sent, waited, full)])
        return TimeUse(*shares, carried / full if known else None)


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
