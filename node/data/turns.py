"""Who is lent a file now, where more ask than there are places: turns, shared by networks, and by peers within one.

    asks → place             while there is one
    asks → waits → place     when one is free, or when somebody's turn is over who yields to it; else it is refused

A place is kept for as long as nobody waits with a better claim. Then it is a turn of TURN_SECONDS, however fast or slow
its holder is: it comes again for the rest. A better claim has whose network has fewer places, and within one network
the peer that has fewer. So neither many identities nor a slow reader keep others from their share.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import trio

PLACES_MAX: Final = 4
"""At a time: tensors of the step share the line."""
PLACES_PER_PEER_MAX: Final = 2
TURN_SECONDS: Final = 10.0
WAIT_SECONDS: Final = 12.0
"""Longer than a turn, so that whoever waits meets the end of each; less than it waits for an answer."""
WAITING_MAX: Final = 16
LOOK_SECONDS: Final = 1.0
"""Between two looks whether somebody's turn is over."""
NETWORKS_MAX: Final = 256
"""Of which it is remembered when they had a place."""


class Busy(Exception):
    """No place, for now."""


@dataclass(eq=False, slots=True)
class Borrower:
    """One request. `network`: where its peer is seen, "" when nobody knows."""

    peer: str
    network: str
    since: float
    """When it asked, and from then on when it was given its place."""
    called: trio.Event = field(default_factory=trio.Event)
    """It has a place, or gave up its hope of one to somebody else."""
    place: trio.CancelScope = field(default_factory=trio.CancelScope)


class Turns:
    """Of one lender."""

    def __init__(self) -> None:
        self.lent: list[Borrower] = []
        self.waiting: list[Borrower] = []
        self._served: OrderedDict[str, float] = OrderedDict()
        """Network → when it last gave a place back."""

    @asynccontextmanager
    async def place(self, peer: str, network: str) -> AsyncIterator[trio.CancelScope]:
        """A place, once there is one. It is cancelled when the turn is over. Raises Busy."""
        borrower = Borrower(peer, network, trio.current_time())
        self._line_up(borrower)
        try:
            await self._wait(borrower)
            with borrower.place:
                yield borrower.place
        finally:
            self._leave(borrower)

    def _line_up(self, borrower: Borrower) -> None:
        """Raises Busy where it may not even wait."""
        if sum(other.peer == borrower.peer for other in self.lent + self.waiting) >= PLACES_PER_PEER_MAX:
            raise Busy
        if len(self.waiting) >= WAITING_MAX:
            crowds = Counter(other.network for other in self.waiting)
            last = max(self.waiting, key=lambda other: (crowds[other.network], other.since))
            if crowds[last.network] <= crowds[borrower.network] + 1:
                raise Busy
            self.waiting.remove(last)
            last.called.set()
        self.waiting.append(borrower)
        self._share_out()

    async def _wait(self, borrower: Borrower) -> None:
        """Until it has its place. Raises Busy."""
        deadline = borrower.since + WAIT_SECONDS
        while not borrower.called.is_set():
            now = trio.current_time()
            if now >= deadline:
                raise Busy
            if (holder := self.who_yields(now)) is not None:
                holder.place.cancel()
            with trio.move_on_after(min(LOOK_SECONDS, deadline - now)):
                await borrower.called.wait()
        if borrower not in self.lent:
            raise Busy

    def who_yields(self, now: float) -> Borrower | None:
        """Whose turn is over, where somebody waits who has a better claim."""
        if not self.waiting or any(holder.place.cancel_called for holder in self.lent):
            return None
        networks, peers = self._places()
        first = self._first()
        over = [
            holder
            for holder in self.lent
            if now - holder.since >= TURN_SECONDS
            and (
                networks[holder.network] > networks[first.network]
                or (holder.network == first.network and peers[holder.peer] > peers[first.peer])
            )
        ]
        return max(
            over, key=lambda holder: (networks[holder.network], peers[holder.peer], -holder.since), default=None
        )  # fmt: skip

    def _places(self) -> tuple[Counter[str], Counter[str]]:
        """Of networks, and of peers."""
        return Counter(other.network for other in self.lent), Counter(other.peer for other in self.lent)

    def _first(self) -> Borrower:
        """Of those that wait, the one with the best claim."""
        networks, peers = self._places()
        return min(
            self.waiting,
            key=lambda other: (
                networks[other.network], peers[other.peer], self._served.get(other.network, 0.0), other.since,
            ),
        )  # fmt: skip

    def _share_out(self) -> None:
        while self.waiting and len(self.lent) < PLACES_MAX:
            borrower = self._first()
            self.waiting.remove(borrower)
            borrower.since = trio.current_time()
            self.lent.append(borrower)
            borrower.called.set()

    def _leave(self, borrower: Borrower) -> None:
        if borrower in self.waiting:
            self.waiting.remove(borrower)
        if borrower in self.lent:
            self.lent.remove(borrower)
            self._served[borrower.network] = trio.current_time()
            self._served.move_to_end(borrower.network)
            if len(self._served) > NETWORKS_MAX:
                self._served.popitem(last=False)
        self._share_out()
