"""The step that an author goes back to before (rules 47 and 51)."""

from __future__ import annotations

import pytest

from ftnode.protocol.leader import first_lie as module
from ftnode.protocol.leader.first_lie import first_lie
from ftnode.protocol.words.effects import KeepConvicted
from ftnode.protocol.words.messages import Convicted, Poisoned
from ftnode.protocol.words.types import NO_ORDER, Attempt, Peer, RollbackOrder


def lie(step: int, committed: int, order: int = 0) -> KeepConvicted:
    """Of this step, heard of when `committed` was the newest, under the order of this number."""
    said = Poisoned("line", 3, step, Attempt(3, 2), 1, -1, "1 of its size away", Peer("x", 1), 1.0)
    return KeepConvicted(Convicted(Peer("a", 1), said, ()), committed, order)


@pytest.mark.parametrize(
    ("found", "newest", "step"),
    [
        ([], NO_ORDER, None), ([lie(9, 8)], NO_ORDER, 9), ([lie(9, 8), lie(7, 6), lie(8, 7)], NO_ORDER, 7),
        ([lie(9, 9)], NO_ORDER, 9), ([lie(9, 10)], NO_ORDER, None), ([lie(9, -1)], NO_ORDER, None),
        ([lie(1, 900), lie(950, 949)], NO_ORDER, 950), ([lie(9, 8)], RollbackOrder(2, 8), None),
        ([lie(9, 8)], RollbackOrder(2, 9), 9), ([lie(9, 8), lie(12, 11, 2)], RollbackOrder(2, 8), 12),
    ],
)  # fmt: skip
def test_the_first_that_was_seen_and_that_no_order_goes_before(
    found: list[KeepConvicted], newest: RollbackOrder, step: int | None
) -> None:
    first = first_lie(found, newest)
    assert (first and first.case.accusation.step) == step


def test_planted_nobody_asks_when_it_was_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then a liar that signs two tensors of step 1 has an author undo the whole run."""
    monkeypatch.setattr(module, "was_seen", lambda kept: True)
    first = first_lie([lie(1, 900), lie(950, 949)], NO_ORDER)
    assert first is not None and first.case.accusation.step == 1
