"""How many bytes may be on their way to a peer: as many as keep the line full, and few more.

What is given to p2pd beyond that stands in buffers, which hold megabytes. There it cannot be put in another order. And
what the peer needs to send on, receipts of ours and yamux's leave to send more, waits behind it.

A receipt says when the peer had the bytes, by its own clock. The least difference to when they were written stands for
an empty way, and what is beyond it was spent in a queue (LEDBAT, RFC 6817). The window is what the peer gets in the
time from writing a byte to its receipt, without that queue, and QUEUE_SECONDS more (FAST TCP, Wei et al. 2006). How
long the receipt took counts as way: it may wait behind the peer's tensors, and a window that shrank for that would
starve one direction of two.
"""

from __future__ import annotations

from collections import deque
from math import inf
from typing import Final

WINDOW_BYTES_MIN: Final = 1 << 18
"""More than RECEIPT_BYTES_MAX (streams.py)."""
WINDOW_BYTES_FIRST: Final = 1 << 19
WINDOW_BYTES_MAX: Final = 1 << 24
"""What yamux, below us, lets pass at most."""
FULL_BYTES: Final = 1 << 16
"""A window with less room is used up."""
MARK_BYTES: Final = 1 << 16
"""When so many were written is remembered for their receipt."""
QUEUE_SECONDS: Final = 0.1
SHRINK_MAX: Final = 0.7
GROW_MAX: Final = 2.0
"""Of the window, in one round."""
SHORTEST_SECONDS: Final = 300.0
"""The way is as long as the shortest of the last five to ten minutes: clocks drift, some 50 µs a second."""


class FlowWindow:
    """One direction to one peer. Times are of our clock, but `at`. 0 <= sent - received, at most `size`, or what it was
    when they were sent; WINDOW_BYTES_MIN <= size <= WINDOW_BYTES_MAX."""

    def __init__(self) -> None:
        self.size = WINDOW_BYTES_FIRST
        self.sent = 0
        self.received = 0
        """As far as its receipts say."""
        self.queued = 0.0
        """Seconds that what the last receipt is for stood in a queue on its way."""
        self._written: deque[tuple[int, float]] = deque()
        """What was sent by when, of all that has no receipt yet."""
        self._shortest = [inf, inf]
        """Of the time before `_renew_at` and of that before it."""
        self._renew_at = -inf
        self._round: tuple[int, int, float] | None = None
        """(sent, received, at) when it began. It is over when what was sent by then has its receipt."""
        self._full = False
        """The window was used up in this round. Otherwise it says nothing of the line."""

    @property
    def room(self) -> int:
        """Bytes that may be sent now; 0 or less: none."""
        return self.size - (self.sent - self.received)

    def send(self, count: int, now: float) -> None:
        """So many bytes more, at once."""
        for _ in range(0, count - MARK_BYTES, MARK_BYTES):
            self.sent += MARK_BYTES
            self._written.append((self.sent, now))
            count -= MARK_BYTES
        self.sent += count
        self._written.append((self.sent, now))

    def receipt(self, received: int, at: float, now: float) -> float:
        """The peer had so many bytes `at` a moment of its clock. When that was by ours, without the shortest way.

        Raises ValueError when it cannot be.
        """
        if not self.received < received <= self.sent:
            raise ValueError(f"a receipt for {received} bytes after {self.received}, where {self.sent} were sent")
        self._full = self._full or self.room < FULL_BYTES
        self.received = received
        written = None
        while self._written and self._written[0][0] <= received:
            written = self._written.popleft()[1]
        if written is None:
            return now
        queued = self.queued = self._queued(at - written, now)
        if self._round is not None and received >= self._round[0]:
            _, before, began = self._round
            if self._full and at > began:
                self._adapt((received - before) / (at - began), now - written - queued)
            self._round = None
        if self._round is None:
            self._round, self._full = (self.sent, received, at), False
        return written + queued

    def _adapt(self, rate: float, way: float) -> None:
        """`rate`: bytes a second that the peer got; `way`: there and back without our queue."""
        size = max(SHRINK_MAX * self.size, min(GROW_MAX * self.size, rate * (way + QUEUE_SECONDS)))
        self.size = int(min(WINDOW_BYTES_MAX, max(WINDOW_BYTES_MIN, size)))

    def _queued(self, way: float, now: float) -> float:
        """Seconds beyond the shortest way. The two clocks have nothing in common, but their difference is the same."""
        if now >= self._renew_at:
            self._renew_at = now + SHORTEST_SECONDS
            self._shortest = [inf, self._shortest[0]]
        self._shortest[0] = min(self._shortest[0], way)
        return way - min(self._shortest)
