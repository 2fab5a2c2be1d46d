"""Tensors that are kept and sent again: what is late is, and what is only slow is not."""

from __future__ import annotations

import pytest

from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.step.outbox import STALLS_MAX, Outbox
from ftnode.protocol.step.tensor_holds import Holds
from ftnode.protocol.words.messages import Boundary, Stored
from ftnode.protocol.words.types import Attempt, Direction, Peer

ME, NEAR, FAR = Peer("me", 1), Peer("near", 1), Peer("far", 1)
ATTEMPT = Attempt(1, 1)
FLOOR, CAP, STALL = 1.25, 15.0, 30.0


def tensor(microbatch: int, to: Peer) -> Boundary:
    return Boundary("line", 1, 1, ATTEMPT, microbatch, 1, Direction.FORWARD, (ME, to, ME))


def stored(microbatch: int) -> Stored:
    return Stored("line", 1, ATTEMPT, microbatch, 1, Direction.FORWARD)


def test_a_tensor_that_is_not_acknowledged_is_sent_again_less_and_less_often() -> None:
    outbox = Outbox(ME, Deadlines(FLOOR, CAP), Holds())
    outbox.put(tensor(0, FAR), 7, 0.0)
    again = [now for now in range(1, 41) if outbox.resend_late(float(now))]
    assert again == [2, 5, 10, 20, 35]


def test_a_slow_line_is_not_filled_with_copies() -> None:
    """Acknowledged after three seconds each, where 1.25 are the rule: some are sent twice, then none."""
    deadlines, sent = Deadlines(FLOOR, CAP), 0
    for step in range(40):
        outbox, start = Outbox(ME, deadlines, Holds()), 10.0 * step
        outbox.put(tensor(0, FAR), 7, start)
        for tick in range(1, 3):
            sent += len(outbox.resend_late(start + tick + 0.5))
        assert outbox.stored(FAR, stored(0), start + 3.0) is not None
    assert sent <= 3


def test_a_fast_receiver_is_not_waited_for_because_another_is_slow() -> None:
    outbox = Outbox(ME, Deadlines(FLOOR, CAP), Holds())
    for microbatch in range(8):
        outbox.put(tensor(microbatch, FAR), microbatch, 0.0)
        assert outbox.stored(FAR, stored(microbatch), 3.0) is not None
    outbox.put(tensor(9, NEAR), 9, 10.0)
    outbox.put(tensor(10, FAR), 10, 10.0)
    assert [effect.to for effect in outbox.resend_late(11.5)] == [NEAR]  # type: ignore[union-attr]


def test_who_acknowledges_one_after_the_other_is_not_stuck() -> None:
    outbox = Outbox(ME, Deadlines(FLOOR, CAP), Holds())
    for microbatch in range(8):
        outbox.put(tensor(microbatch, FAR), microbatch, 0.0)
    for microbatch in range(7):
        now = 20.0 * (microbatch + 1)
        assert outbox.stored(FAR, stored(microbatch), now) is not None
        assert not outbox.stalled(now + 19.0, STALL, STALL)
    assert [kept.to for kept in outbox.stalled(140.0 + STALL + 1.0, STALL, STALL)] == [FAR]


def test_who_acknowledges_others_and_never_this_one_is_stuck_in_the_end() -> None:
    outbox = Outbox(ME, Deadlines(FLOOR, CAP), Holds())
    outbox.put(tensor(0, FAR), 0, 0.0)
    for number in range(1, 100):
        now = 10.0 * number
        outbox.put(tensor(number, FAR), number, now)
        outbox.stored(FAR, stored(number), now)
        if outbox.stalled(now, STALL, STALL):
            assert now > STALLS_MAX * STALL
            return
    raise AssertionError("never noticed")


@pytest.mark.parametrize(
    ("usually", "least", "patience"),
    [(0.1, 10.0, 10.0), (2.0, 10.0, 16.0), (20.0, 10.0, STALL), (0.1, STALL, STALL), (None, 10.0, STALL)],
    ids=["fast", "slow", "very slow", "weights are fetched", "nothing was measured"],
)
def test_who_usually_is_fast_is_stuck_sooner(usually: float | None, least: float, patience: float) -> None:
    outbox = Outbox(ME, Deadlines(FLOOR, CAP), Holds())
    for number in range(200 if usually is not None else 0):  # so many that what was measured does not vary any more
        outbox.put(tensor(number, FAR), number, 0.0)
        outbox.stored(FAR, stored(number), usually or 0.0)
    outbox.put(tensor(1000, FAR), 1000, 100.0)
    assert not outbox.stalled(100.0 + patience - 0.1, STALL, least)
    assert [kept.to for kept in outbox.stalled(100.0 + patience + 0.1, STALL, least)] == [FAR]
