"""The pace of a node's line: what leaves fills the line, and hardly anything waits before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from ftnode.node.links.sending_pace import PIECE_BYTES_MIN, QUEUED_SECONDS, RATE_MAX, ROUND_SECONDS, ROUNDS, SendingPace

MBIT = 1e6 / 8
DELAY = 0.03
LEARNS_SECONDS = 5.0
SECONDS = 40.0
AFTER_SECONDS = 20.0
"""By then what had piled up at first has left."""
WINDOW_SECONDS = 0.25
"""Of the line's rate, what is on its way at most."""


class Sent:
    """What came through a line whose rate may change: bytes after the first seconds, and how long each piece stood
    before the line."""

    def __init__(
        self, rate: Callable[[float], float], busy: Callable[[float], bool] = lambda now: True, seconds: float = SECONDS
    ) -> None:
        self.pace = SendingPace()
        self.bytes = 0
        self.waits: list[tuple[float, float]] = []
        free_at, now, sending = 0.0, 0.0, False
        under_way: deque[tuple[float, int, float]] = deque()
        while now < seconds:
            while under_way and under_way[0][0] + DELAY <= now:
                came, count, queued = under_way.popleft()
                self.pace.came(count, came, now, queued)
            if sending != busy(now):
                sending = not sending
                (self.pace.begin if sending else self.pace.end)(now)
            if not sending:
                now += 0.01
                continue
            window = WINDOW_SECONDS * rate(now)
            while not self.pace.wait(now) and sum(count for _, count, _ in under_way) < window:
                count = self.pace.piece
                self.pace.passed(count, now)
                free_at = max(free_at, now) + count / rate(now)
                under_way.append((free_at, count, free_at - now - PIECE_BYTES_MIN / rate(now)))
                self.waits.append((now, free_at - now))
                self.bytes += count if now >= LEARNS_SECONDS else 0
            now += max(self.pace.wait(now), 1e-3)

    def wait(self, after: float) -> float:
        """That of half the pieces."""
        waits = sorted(wait for now, wait in self.waits if now >= after)
        return waits[len(waits) // 2]


@pytest.mark.parametrize("rate", [2 * MBIT, 20 * MBIT, 200 * MBIT])
def test_a_line_is_full_and_nothing_waits_before_it(rate: float) -> None:
    sent = Sent(lambda now: rate)
    assert 0.93 * rate <= sent.bytes / (SECONDS - LEARNS_SECONDS) <= 1.02 * rate
    assert sent.wait(AFTER_SECONDS) < WINDOW_SECONDS / 3


def test_without_a_pace_pieces_wait_before_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SendingPace, "wait", lambda self, now: 0.0)
    assert Sent(lambda now: 20 * MBIT).wait(AFTER_SECONDS) > 0.8 * (WINDOW_SECONDS - DELAY)


@pytest.mark.parametrize(("before", "after"), [(20.0, 40.0), (40.0, 20.0)])
def test_a_line_that_changes_is_found_out(before: float, after: float) -> None:
    sent = Sent(lambda now: (before if now < 10.0 else after) * MBIT)
    assert sent.pace.rate == pytest.approx(after * MBIT, rel=0.05)


def test_rounds_in_which_there_was_nothing_to_send_say_nothing() -> None:
    """Half of each round. The line is as fast as it was before."""
    sent = Sent(lambda now: 20 * MBIT, busy=lambda now: now < 12.0 or now % 1.0 < 0.5)
    assert sent.pace.rate == pytest.approx(20 * MBIT, rel=0.05)


def test_a_line_with_pauses_is_found_to_be_faster_than_it_was() -> None:
    """Half of each step of five seconds has something to send, so that few rounds show anything. At first the line
    carries something else besides."""
    sent = Sent(lambda now: (10 if now < 15.0 else 40) * MBIT, busy=lambda now: now % 5.0 < 2.6, seconds=120.0)
    assert sent.pace.rate == pytest.approx(40 * MBIT, rel=0.05)


def test_a_line_with_pauses_is_not_forgotten() -> None:
    """A round that is held back to the pace shows no more than that. One in eight of those that show anything is
    faster, so that the best of ten is the line's."""
    sent = Sent(lambda now: 20 * MBIT, busy=lambda now: now % 5.0 < 2.6, seconds=300.0)
    assert sent.pace.rate == pytest.approx(20 * MBIT, rel=0.05)


def test_who_waits_for_late_receipts_is_not_held_back_to_that() -> None:
    """A tenth of what the line carries comes, and nothing of it has stood in a queue."""
    pace = SendingPace()
    pace.begin(0.0)
    for number in range(1, 60):
        pace.came(100_000, number, number, 0.01)
    assert pace.rate == 0.0
    for number in range(60, 80):
        pace.came(1_000_000, number, number, 0.1)
    assert pace.rate == 1_000_000
    for number in range(80, 120):
        pace.came(100_000, number, number, 0.01)
    assert pace.rate == 1_000_000, "what is known stays"


def test_what_comes_while_nothing_is_sent_is_no_rate() -> None:
    """A step of 1.4 s has a fifth of a second of tensors, and the last of them come when nothing is sent any more. In
    some rounds that is all. It had passed for the rate of the line, 33 KB a second, and tensors were held back to
    it."""
    pace, now = SendingPace(), 0.0
    while now < 60.0:
        pace.begin(now)
        pace.passed(65_536, now)
        pace.end(now + 0.2)
        pace.came(32_768, now + 0.1, now + 0.2, 0.1)
        pace.came(32_768, now + 0.25, now + 0.35, 0.1)
        assert pace.rate == 0.0
        now += 1.4


def test_a_line_for_which_nobody_waits_has_no_pace() -> None:
    sent = Sent(lambda now: 2 * RATE_MAX)
    assert sent.pace.rate == 0.0


def test_a_faster_round_counts_until_it_is_forgotten() -> None:
    pace, rates = SendingPace(), []
    pace.begin(0.0)
    for number in range(2, 2 * ROUNDS):
        now = number * ROUND_SECONDS
        pace.came(1000 if number == 3 else 500, now, now, QUEUED_SECONDS)
        rates.append(pace.rate)
    assert rates[:3] == [0.0, 0.0, 500.0] and rates[3 : 3 + ROUNDS] == [1000.0] * ROUNDS and rates[-1] == 500.0
