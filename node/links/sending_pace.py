"""How fast tensors leave a node, over all its links together: as fast as its line carries them.

What leaves faster than the line carries it waits in buffers below us, and with it whatever the neighbours need in order
to send: receipts, acknowledgements, and leave to send more. A window for each link (flow_window.py) bounds what waits
there. But all links have one line, and pieces leave in bursts as receipts come in bursts.

The line's rate is what receipts tell: while there is always a tensor to send, bytes come to the peers as fast as the
line carries them. A round in which there was none for a while says nothing, whatever came in it. The best of the last
rounds counts, since a line that carries something else besides shows too little (BBR, Cardwell et al. 2016). Now and
then a round is faster than that, to see whether the line carries more. The next one is slower, so that what has piled
up can leave.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import trio

ROUND_SECONDS: Final = 1.0
QUEUED_SECONDS: Final = 0.05
"""On the mean of a round: more than two pieces that leave at once wait for each other, and half of what a window lets
stand (QUEUE_SECONDS of flow_window.py)."""
ROUNDS: Final = 10
"""With something to send all the time, of which the best counts."""
GAINS: Final = (1.2, 0.7, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0)
"""Of the line's rate, one for each round in turn that has something to send all the time: a faster one with pauses
would show nothing. From the beginning again when a round was faster than all before. What has piled up leaves in a
pause as well."""
FASTER: Final = 1.08
RATE_MAX: Final = 5e7
"""Bytes a second. From here on nobody waits for the line, and nothing is held back."""
PIECE_SECONDS: Final = 0.02
PIECE_BYTES_MIN: Final = 1 << 12
PIECE_BYTES_MAX: Final = 1 << 16


class SendingPace:
    """Times are of our clock and never go back. `rate`: bytes a second that the line carries, 0 while nobody knows."""

    def __init__(self) -> None:
        self.rate = 0.0
        self._best: deque[float] = deque(maxlen=ROUNDS)
        self._round = self._turn = 0
        self._came: dict[int, tuple[int, float]] = {}
        """Round → bytes that came to peers in it, and these times the seconds that they stood in a queue."""
        self._sending = False
        self._idle: set[int] = set()
        """Rounds in which there was nothing to send for a while."""
        self._free_at = 0.0
        """When what has passed has left, at this pace."""

    @property
    def piece(self) -> int:
        """Bytes that pass at a time, so that others have their turn."""
        size = int(self.rate * PIECE_SECONDS)
        return max(PIECE_BYTES_MIN, min(PIECE_BYTES_MAX, size)) if self.rate else PIECE_BYTES_MAX

    def wait(self, now: float) -> float:
        """Seconds until the next piece may pass."""
        self._renew(now)
        return max(0.0, self._free_at - now) if self.rate else 0.0

    def passed(self, count: int, now: float) -> None:
        """So many bytes leave. What was not used before is made up for as far as two pieces go, since who sleeps wakes
        late."""
        if self.rate:
            rate = self.rate * GAINS[self._turn]
            self._free_at = max(self._free_at, now - 2 * PIECE_SECONDS) + count / rate

    def came(self, count: int, at: float, now: float, queued: float) -> None:
        """So many bytes came to a peer at a moment of the past, after `queued` seconds in a queue."""
        self._renew(now)
        number = int(at / ROUND_SECONDS)
        if number >= self._round - 1:
            before, stood = self._came.get(number, (0, 0.0))
            self._came[number] = before + count, stood + count * queued

    def begin(self, now: float) -> None:
        """From now on there is something to send."""
        self._renew(now)
        self._sending = True

    def end(self, now: float) -> None:
        """Now there is not."""
        self._renew(now)
        self._sending = False
        self._idle.add(self._round)

    def _renew(self, now: float) -> None:
        """Judge each round a round after its end, when receipts for it have come."""
        number = int(now / ROUND_SECONDS)
        if not self._sending:
            self._idle.update(range(max(self._round, number - 2), number + 1))
        if number == self._round:
            return
        before, paused = max(self._best, default=0.0), self._round in self._idle
        for judged in sorted(round_ for round_ in self._came if round_ <= number - 2):
            came, stood = self._came.pop(judged)
            full = stood >= QUEUED_SECONDS * came
            if judged not in self._idle and (full or 0 < max(self._best, default=0.0) < came / ROUND_SECONDS):
                self._best.append(came / ROUND_SECONDS)
        best = max(self._best, default=0.0)
        self.rate = best if best < RATE_MAX else 0.0
        if best > FASTER * before:
            self._turn = 0
        elif not paused or GAINS[self._turn] < 1:
            self._turn = (self._turn + 1) % len(GAINS)
        self._idle = {each for each in self._idle if each >= number - 1}
        self._round = number


class SharedLine:
    """The pace of one node, and the links that wait for their turn."""

    def __init__(self) -> None:
        self.pace = SendingPace()
        self._turn = trio.StrictFIFOLock()
        self._sending = 0

    @contextmanager
    def sending(self) -> Iterator[None]:
        """A link has something to send."""
        if not self._sending:
            self.pace.begin(trio.current_time())
        self._sending += 1
        try:
            yield
        finally:
            self._sending -= 1
            if not self._sending:
                self.pace.end(trio.current_time())

    async def turn(self, wanted: int) -> int:
        """Wait until some of `wanted` bytes may pass; how many."""
        async with self._turn:
            while (seconds := self.pace.wait(trio.current_time())) > 0:
                await trio.sleep(seconds)
            count = min(wanted, self.pace.piece)
            self.pace.passed(count, trio.current_time())
        return count
