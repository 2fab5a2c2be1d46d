"""Named deadlines (invariant I8)."""

from __future__ import annotations

import pytest

from ftnode.protocol.words.timers import Timers


@pytest.mark.parametrize(("before", "expected"), [(None, 5.0), (3.0, 3.0), (9.0, 5.0)])
def test_a_timer_that_is_set_not_later_is_the_earlier_one(before: float | None, expected: float) -> None:
    timers = Timers()
    if before is not None:
        timers.set("offer", before)
    timers.set_earlier("offer", 5.0)
    assert timers.deadline == expected and timers.expired(expected) == ["offer"] and timers.deadline == float("inf")


def test_those_that_are_due_come_earliest_first() -> None:
    timers = Timers()
    for name, at in (("late", 3.0), ("early", 1.0), ("never", 9.0)):
        timers.set(name, at)
    assert timers.expired(0.5) == [] and timers.expired(4.0) == ["early", "late"] and timers.deadline == 9.0
