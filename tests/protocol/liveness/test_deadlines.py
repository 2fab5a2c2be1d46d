"""Deadlines from measured times: long enough for a slow line, short enough for a dead peer."""

from __future__ import annotations

import random

import pytest

from ftnode.protocol.liveness.deadlines import Deadline, Deadlines
from ftnode.protocol.words.types import Peer

A, B = Peer("a", 1), Peer("b", 1)


def test_without_a_measurement_the_floor_counts() -> None:
    assert Deadline(1.25, 15.0).seconds == 1.25


def test_the_first_measurements_are_those_of_the_standard() -> None:
    """RFC 6298, section 2: SRTT = R, RTTVAR = R/2; then with alpha 1/8 and beta 1/4."""
    deadline = Deadline(0.01, 100.0)
    deadline.observe(2.0)
    assert deadline.seconds == pytest.approx(2.0 + 4 * 1.0)
    deadline.observe(4.0)
    assert deadline.seconds == pytest.approx(2.25 + 4 * (0.75 * 1.0 + 0.25 * 2.0))


def test_fast_lines_keep_the_floor_and_slow_ones_end_at_the_cap() -> None:
    fast, slow = Deadline(1.25, 15.0), Deadline(1.25, 15.0)
    for _ in range(20):
        fast.observe(0.2)
        slow.observe(60.0)
    assert (fast.seconds, slow.seconds) == (1.25, 15.0)


@pytest.mark.parametrize("seed", range(5))
def test_few_of_a_slow_lines_times_are_beyond_it(seed: int) -> None:
    """Tensors that take three seconds, give or take one, against a fixed deadline of 1.25 that all of them miss."""
    chance, deadline = random.Random(seed), Deadline(1.25, 15.0)
    late = 0
    for _ in range(1000):
        seconds = chance.uniform(2.0, 4.0)
        late += seconds > deadline.seconds
        deadline.observe(seconds)
    assert late <= 40
    assert deadline.seconds < 8.0


def test_it_comes_down_when_the_line_is_well_again() -> None:
    deadline = Deadline(1.25, 15.0)
    for _ in range(20):
        deadline.observe(5.0)
    assert deadline.seconds > 5.0
    for _ in range(40):
        deadline.observe(0.2)
    assert deadline.seconds == 1.25


def test_in_vain_it_doubles_up_to_the_cap_until_something_arrives() -> None:
    deadline = Deadline(1.0, 15.0)
    seen = []
    for _ in range(5):
        seen.append(deadline.seconds)
        deadline.passed()
    assert seen == [1.0, 2.0, 4.0, 8.0, 15.0]
    for _ in range(1000):
        deadline.passed()
    deadline.observe(0.1)
    assert deadline.seconds == 1.0


def test_each_peer_has_its_own() -> None:
    deadlines = Deadlines(1.25, 15.0)
    deadlines.of(A).observe(3.0)
    assert deadlines.of(A).seconds > deadlines.of(B).seconds == 1.25
    deadlines.keep_only({B})
    assert deadlines.of(A).seconds == 1.25
