"""How long a peer's own line is busy with a microbatch, by the acknowledgements of its tensors.

A line that has more to send than it takes carries one tensor after the other. Its word of a tensor is late by the way
there and back, which is the same for all that go to one peer. So the time between two words is the line's time for one
tensor, where the later one had to wait for the earlier. All links of a node share its line, so that its tensors are one
row, whoever gets them. That holds also when several are on the line at once, each with a part of it: their words come
in bursts, and on average as often.

- *Did it wait?* Word of another tensor came after it was made, and its own word took half as long again as the
  shortest way to that peer, which stands for an empty line (as in LEDBAT, RFC 6817). So no delay counts, however long.
- *When did it leave?* When its word came, less the shortest way to that peer. Peers may be near and far.
- No tensor takes longer than its whole way. This bounds a measurement that something else has spoilt. It also shows
  that a line got faster when nothing waits for it any more.
- A tensor that was sent again says nothing (Karn): nobody knows which copy was acknowledged.

What a line does besides, sums and weights, counts where tensors wait for it. A receiver whose line down is thinner than
our line up looks like a thin line of ours, as long as nothing goes to others meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection
from math import inf

from ftnode.protocol.words.types import Direction, Peer

WAITED = 1.5
"""Times the shortest way."""
WEIGHT = 1 / 16
"""Of the newest measurement in the mean. Words of far peers come late in bunches, which must not be all of it."""
SHORTEST_SECONDS = 300.0
"""The shortest way is that of the last five to ten minutes, since peers and routes change."""


class ShortestWay:
    """To one peer, of a time and of the time before it."""

    __slots__ = ("_before", "_now", "_renew_at")

    def __init__(self) -> None:
        self._now, self._before = inf, inf
        self._renew_at = -inf

    def observe(self, seconds: float, now: float) -> float:
        """The shortest so far, this one included."""
        if now >= self._renew_at:
            recent = now < self._renew_at + SHORTEST_SECONDS
            self._now, self._before = inf, self._now if recent else inf
            self._renew_at = now + SHORTEST_SECONDS
        self._now = min(self._now, seconds)
        return min(self._now, self._before)


class LinePace:
    """Of one peer. It outlives attempts, as its line does."""

    def __init__(self) -> None:
        self._shortest: dict[Peer, ShortestWay] = {}
        self._word, self._left = -inf, -inf
        """When the last word came, and when the last tensor left the line, up to a constant."""
        self._mean, self._count = 0.0, 0
        """Seconds of the line for one tensor."""
        self._sent: dict[tuple[int, Direction], float] = {}
        """(stage, direction) → the share of its tensors that others get: a moving mean."""

    def made(self, stage: int, direction: Direction, sent: bool) -> None:
        """A stage of ours has made a tensor. `sent`: it is for another peer."""
        before = self._sent.get((stage, direction), float(sent))
        self._sent[stage, direction] = before + WEIGHT * (sent - before)

    def acknowledged(self, peer: Peer, made: float, again: bool, now: float) -> None:
        """The peer has a tensor that was first sent at `made`. `again`: it was sent again since."""
        way, word, before = now - made, self._word, self._left
        shortest = self._shortest.setdefault(peer, ShortestWay()).observe(way, now)
        self._word, self._left = now, max(before, now - shortest)
        if again:
            return
        if made < word and way > WAITED * shortest:
            self._observe(min(way, self._left - before))
        elif self._count and way < self._mean:
            self._observe(way)

    def _observe(self, seconds: float) -> None:
        self._count += 1
        self._mean += max(WEIGHT, 1 / self._count) * (seconds - self._mean)

    def seconds(self, stage: int) -> float:
        """For one microbatch of the stage, forward and backward. 0.0: nothing has waited for the line yet."""
        return self._mean * sum(share for (of, _), share in self._sent.items() if of == stage)

    def keep_only(self, peers: Collection[Peer]) -> None:
        """Who is gone is forgotten, so that there are no more than members (I6)."""
        self._shortest = {peer: shortest for peer, shortest in self._shortest.items() if peer in peers}
