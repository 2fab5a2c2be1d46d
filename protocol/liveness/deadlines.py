"""Deadlines from measured times: a slow line gets the time that it needs, and no more than a few times that.

TCP's retransmission timer (RFC 6298): the mean plus four mean deviations of what was measured, the first measurement
counting for both; after a deadline that passed in vain twice as much, until something is measured again. A floor and a
cap, which come from the manifest, hold it where the run's other deadlines leave room.

What is measured is from the first time that something was owed to its first acknowledgement. Of what was sent again
nobody knows which copy was acknowledged; TCP leaves it out (Karn), and would learn nothing on a line where everything
is sent again. The time since the first copy is never too short, and too long only until the line is well again.
"""

from __future__ import annotations

from collections.abc import Collection

from ftnode.protocol.words.types import Peer

MEAN_WEIGHT = 1 / 8
DEVIATION_WEIGHT = 1 / 4
DEVIATIONS = 4.0
"""RFC 6298's alpha, beta and K."""
DOUBLINGS_MAX = 6


class Deadline:
    """One deadline that adapts. `seconds` is the floor until something is measured. 0 < floor <= seconds <= cap."""

    __slots__ = ("_deviation", "_doublings", "_mean", "cap", "floor")

    def __init__(self, floor: float, cap: float) -> None:
        assert 0 < floor <= cap
        self.floor, self.cap = floor, cap
        self._mean: float | None = None
        self._deviation = 0.0
        self._doublings = 0

    def observe(self, seconds: float) -> None:
        """Something took so long, from its beginning to its end."""
        self._doublings = 0
        if self._mean is None:
            self._mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += DEVIATION_WEIGHT * (abs(self._mean - seconds) - self._deviation)
        self._mean += MEAN_WEIGHT * (seconds - self._mean)

    def passed(self) -> None:
        """It passed in vain."""
        self._doublings = min(self._doublings + 1, DOUBLINGS_MAX)

    @property
    def mean(self) -> float | None:
        """Of what was measured; None: nothing was."""
        return self._mean

    @property
    def usual(self) -> float | None:
        """What was measured, and nearly nothing takes longer; None: nothing was."""
        return None if self._mean is None else self._mean + DEVIATIONS * self._deviation

    @property
    def seconds(self) -> float:
        return min(self.cap, max(self.floor, self.usual or 0.0) * 2.0**self._doublings)


class Deadlines:
    """One for each peer; those of peers that are gone are forgotten, so that there are no more than members (I6)."""

    def __init__(self, floor: float, cap: float) -> None:
        self.floor, self.cap = floor, cap
        self._of: dict[Peer, Deadline] = {}

    def of(self, peer: Peer) -> Deadline:
        if peer not in self._of:
            self._of[peer] = Deadline(self.floor, self.cap)
        return self._of[peer]

    def seconds(self) -> dict[Peer, float]:
        """Of all peers that have one."""
        return {peer: deadline.seconds for peer, deadline in self._of.items()}

    def keep_only(self, peers: Collection[Peer]) -> None:
        self._of = {peer: deadline for peer, deadline in self._of.items() if peer in peers}
