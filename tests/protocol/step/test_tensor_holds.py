"""One ledger says why a tensor is here; it is released with its last use."""

from __future__ import annotations

import pytest

from ftnode.protocol.step.tensor_holds import Holds, Use
from ftnode.protocol.words.types import Direction

KEY, OTHER = (0, 1, Direction.FORWARD), (0, 1, Direction.BACKWARD)


@pytest.mark.parametrize(("first", "second"), [(Use.READ, Use.RESEND), (Use.RESEND, Use.READ)])
def test_a_tensor_with_two_uses_goes_with_the_second(first: Use, second: Use) -> None:
    holds = Holds()
    for use in (first, second):
        holds.hold(use, KEY, 7)
    assert len(holds.handles) == 1
    assert holds.let_go(first, [KEY]) == ()
    assert (holds.handle(first, KEY), holds.handle(second, KEY)) == (None, 7)
    assert holds.let_go(second, [KEY]) == (7,)
    assert not holds.handles


def test_two_tensors_of_one_place_are_two() -> None:
    """What was made here for another is not what a third sent for the same place."""
    holds = Holds()
    holds.hold(Use.READ, KEY, 7)
    holds.hold(Use.RESEND, KEY, 8)
    assert len(holds.handles) == 2
    assert holds.let_go(Use.READ, [KEY, OTHER]) == (7,)
    assert holds.let_go(Use.READ, [KEY]) == (), "nothing is let go of twice"


def test_all_are_let_go_of_once() -> None:
    holds = Holds()
    holds.hold(Use.READ, KEY, 7)
    holds.hold(Use.RESEND, KEY, 7)
    holds.hold(Use.READ, OTHER, 8)
    assert sorted(holds.let_go_of_all()) == [7, 8]
    assert holds.let_go_of_all() == () and not holds.handles


def test_what_two_ledgers_hold_is_released_by_the_last() -> None:
    attempt = Holds()
    trial = Holds(beside=attempt)
    attempt.hold(Use.SEEN, KEY, 7)
    trial.hold(Use.CHECK, KEY, 7)
    trial.hold(Use.CHECK, OTHER, 8)
    assert attempt.handles == {7} and trial.handles == {7, 8}
    assert attempt.let_go_of_all() == () and attempt.handles == frozenset()
    assert trial.let_go_of_all() == (7, 8)
