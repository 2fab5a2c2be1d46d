"""The window of tensors on their way: a line of any rate is full, and its queue short."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

import pytest

from ftnode.node.links.flow_window import QUEUE_SECONDS, WINDOW_BYTES_MAX, WINDOW_BYTES_MIN, FlowWindow

PIECE = 1 << 16
SECONDS = 30.0
BUSY_AFTER_SECONDS = 5.0
MBIT = 1e6 / 8
CLOCK = -1e6
"""What the peer's clock shows when ours is at 0."""


@dataclass
class Carried:
    """Over one line. `bytes` of each link in the second half of the time, and the longest wait before the line then."""

    bytes: list[int]
    wait: float = 0.0


def carry(rate: float, delay: float, back: float = 0.0, windows: Sequence[FlowWindow] = ()) -> Carried:
    """Send all that the windows allow over a line, whose receipts wait for `back` seconds behind other bytes, later."""
    windows = windows or [FlowWindow()]
    found, free_at, now = Carried([0] * len(windows)), 0.0, 0.0
    receipts: list[tuple[float, int, int, int, float]] = []
    serial = count()
    while now < SECONDS:
        while any(window.room > 0 for window in windows):
            for link, window in enumerate(windows):
                size = min(PIECE, max(0, window.room))
                if not size:
                    continue
                window.send(size, now)
                free_at = max(free_at, now) + size / rate
                there = free_at + delay
                late = back if now > BUSY_AFTER_SECONDS else 0.0
                heapq.heappush(receipts, (there + delay + late, next(serial), link, window.sent, there + CLOCK))
                if now > SECONDS / 2:
                    found.bytes[link] += size
                    found.wait = max(found.wait, free_at - now)
        now, _, link, received, at = heapq.heappop(receipts)
        windows[link].receipt(received, at, now)
        assert WINDOW_BYTES_MIN <= windows[link].size <= WINDOW_BYTES_MAX
    return found


@pytest.mark.parametrize("rate", [20 * MBIT, 100 * MBIT, 200 * MBIT])
@pytest.mark.parametrize("delay", [0.001, 0.03, 0.05])
@pytest.mark.parametrize("back", [0.0, 0.3])
def test_a_line_is_full_and_its_queue_short(rate: float, delay: float, back: float) -> None:
    found = carry(rate, delay, back)
    assert sum(found.bytes) >= 0.95 * rate * SECONDS / 2
    assert found.wait <= QUEUE_SECONDS + max(WINDOW_BYTES_MIN, 2 * PIECE) / rate


def test_two_links_over_one_line_fill_it_and_none_starves() -> None:
    early, late = FlowWindow(), FlowWindow()
    early.size, late.size = 1 << 20, WINDOW_BYTES_MIN
    found = carry(20 * MBIT, 0.03, windows=[early, late])
    assert sum(found.bytes) >= 0.95 * 20 * MBIT * SECONDS / 2
    assert min(found.bytes) >= 0.2 * sum(found.bytes)


def test_a_thin_line_waits_for_no_more_than_the_smallest_window() -> None:
    assert carry(2 * MBIT, 0.03).wait <= WINDOW_BYTES_MIN / (2 * MBIT) * 1.1


def test_a_window_that_is_not_used_up_stays_as_it_is() -> None:
    window = FlowWindow()
    before = window.size
    for now in range(100):
        window.send(1000, float(now))
        window.receipt(window.sent, 0.0, now + 0.9)
    assert window.size == before


@pytest.mark.parametrize("received", [0, 101])
def test_a_receipt_for_nothing_new_or_for_what_was_not_sent_is_refused(received: int) -> None:
    window = FlowWindow()
    window.send(100, 0.0)
    with pytest.raises(ValueError, match="a receipt"):
        window.receipt(received, 1.0, 1.0)
