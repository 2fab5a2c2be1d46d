"""How much a peer may make us do by what it says: messages and bytes a second, before any of it is decoded.

Members of the view that we go by, and learners, have a wide budget, far above what any swarm needs.
Who spends it is read no faster, and never struck for it: after a pause, everything that an honest member has to say
comes at once. Strangers have a narrow budget: some certificates of a large view at once, then a few messages a second.
Who spends that is a flood, and banned. All strangers together have a budget, too, beyond which each waits for its turn.
Small messages have turns of their own, so that a newcomer's heartbeat does not wait behind others' certificates.

Tensors of strangers are dropped in any case, so they take turns at a rate that costs us little.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import trio

from ftnode.node.links.newest import newest
from ftnode.node.links.tokens import Tokens
from ftnode.protocol.words.errors import PeerError
from ftnode.protocol.words.types import Peer

KIB: Final = 1 << 10
MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Budget:
    """A second's messages and bytes, and how much of both may come at once after a pause."""

    messages: float
    bytes: float
    messages_at_once: float
    bytes_at_once: float


MEMBER: Final = Budget(20_000, 4 * MIB, 40_000, 64 * MIB)
"""A microbatch makes some ten messages between two members: a thousand microbatches a second are within it, and ten
Begins of 400 members, of 0.4 MiB each."""
STRANGER: Final = Budget(16, 32 * KIB, 256, 2 * MIB)
"""A standby says a word per half a lease. A certificate has 0.22 KiB for each member; one of another lineage says it
once a heartbeat."""
SMALL_BYTES: Final = 4 * KIB
SMALL_WORDS: Final = Budget(256, 96 * KIB, 1024, MIB)
"""Of all strangers: heartbeats of some hundred standbys."""
LARGE_WORDS: Final = Budget(32, 64 * KIB, 128, 4 * MIB)
"""Of all strangers: certificates."""
TENSORS: Final = Budget(1000, 16 * MIB, 1000, 16 * MIB)
"""Of all strangers, to be dropped; more than a line that is worth having brings."""
PEERS_MAX: Final = 4096
"""Whose budgets are remembered; the one that was silent for longest is forgotten first."""
VOUCHED_SECONDS: Final = 5.0
"""How long somebody counts as a learner after we have looked."""


class Flood(PeerError):
    """A stranger says more than any honest one would."""


class Allowance:
    """What is left of a budget. It fills with the time, up to what may come at once. `spend` may leave it in debt."""

    def __init__(self, budget: Budget, now: float) -> None:
        self._messages = Tokens(budget.messages, budget.messages_at_once, now)
        self._bytes = Tokens(budget.bytes, budget.bytes_at_once, now)

    def spend(self, size: int, now: float) -> float:
        """A message of `size` bytes; seconds until it is made up for."""
        self._left(now)
        self._messages.take()
        self._bytes.take(size)
        return max(self._messages.debt_seconds, self._bytes.debt_seconds)

    def take(self, size: int, now: float) -> bool:
        """Whether there is enough for a message of `size` bytes; it is spent then, and nothing otherwise."""
        messages, bytes_left = self._left(now)
        enough = messages >= 1 and bytes_left >= size
        if enough:
            self.spend(size, now)
        return enough

    def _left(self, now: float) -> tuple[float, float]:
        """(messages, bytes)."""
        return self._messages.left(now), self._bytes.left(now)


class Turns:
    """One allowance for many, who wait for it in the order in which they came."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._allowance: Allowance | None = None
        self._line = trio.StrictFIFOLock()

    async def wait(self, size: int) -> None:
        """Until the message's turn has come."""
        async with self._line:
            now = trio.current_time()
            self._allowance = self._allowance or Allowance(self._budget, now)
            await trio.sleep(self._allowance.spend(size, now))


class Attention:
    """Budgets by PeerId. `knows`: whether a peer is a member of the view that we go by; asked for every frame.
    `vouches`: whether it has another reason to say much; asked when it has spent a stranger's budget."""

    def __init__(self, knows: Callable[[Peer], bool], vouches: Callable[[Peer], bool] = lambda peer: False) -> None:
        self.knows = knows
        self._vouches = vouches
        self._members: dict[str, Allowance] = {}
        self._strangers: dict[str, Allowance] = {}
        self._vouched: dict[str, float] = {}
        """PeerId → until when."""
        self._small, self._large, self._tensors = Turns(SMALL_WORDS), Turns(LARGE_WORDS), Turns(TENSORS)

    def pause(self, sender: Peer, size: int, now: float) -> float | None:
        """Seconds for which a member, that has said too much, is not read; None: a stranger, which needs a turn.

        `size`: of the control message that it has begun to say, in bytes. Raises Flood.
        """
        if self.knows(sender) or now < self._vouched.get(sender.id, now):
            return allowance_of(self._members, sender.id, MEMBER, now).spend(size, now)
        if allowance_of(self._strangers, sender.id, STRANGER, now).take(size, now):
            return None
        if not self._vouches(sender):
            raise Flood("more words than a stranger can have for us")
        newest(self._vouched, sender.id, now + VOUCHED_SECONDS, PEERS_MAX)
        return 0.0

    async def word(self, sender: Peer, size: int) -> None:
        """A control message of `size` bytes is about to be read: wait until it may be. Raises Flood."""
        pause = self.pause(sender, size, trio.current_time())
        if pause is None:
            await (self._small if size <= SMALL_BYTES else self._large).wait(size)
        elif pause:
            await trio.sleep(pause)

    async def stranger_tensor(self, size: int) -> None:
        """A frame of a stranger's tensor lane, `size` bytes in all, is about to be read and dropped."""
        await self._tensors.wait(size)


def allowance_of(table: dict[str, Allowance], peer_id: str, budget: Budget, now: float) -> Allowance:
    """The peer's allowance, which is the newest of the table from now on."""
    return newest(table, peer_id, table.get(peer_id) or Allowance(budget, now), PEERS_MAX)
