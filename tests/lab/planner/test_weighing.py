"""What is weighed: work, stops, what is lost, risk and patience."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ftnode.lab.planner.weighing import Choice, Option, chosen, risk

STAY = Option(2.0)
MOVE = Option(1.0, pause=10.0)


@pytest.mark.parametrize(
    ("options", "seconds", "place"),
    [
        ([STAY, MOVE], 30.0, 1),  # 15 steps, or 20 in the 20 s that are left
        ([STAY, MOVE], 10.0, 0),  # no time is left
        ([STAY, Option(1.0, pause=10.0, lost=6.0)], 30.0, 0),
        ([Option(1.0, pause=100.0), Option(2.0, pause=10.0)], 50.0, 1),  # nobody can go on
        ([Option(1.0, lost=200.0), Option(1.0, pause=150.0)], 10.0, 1),  # what is lost is not made good by a short time
        ([Option(1.0, risk=0.6), STAY], 1000.0, 1),  # it would lose more than it is faster
        ([Option(1.0, risk=0.4), STAY], 1000.0, 0),
    ],
)
def test_what_is_chosen(options: Sequence[Option], seconds: float, place: int) -> None:
    assert chosen(options, seconds).place == place


def test_who_waits_long_enough_moves() -> None:
    """Changes come every ten seconds. The move never pays before the next one, and pays over several."""
    missed, waited = 0.0, 0
    while (choice := chosen([STAY, MOVE], 10.0, missed)).place == 0:
        missed, waited = choice.missed + choice.missing * 10, waited + 1
    assert choice == Choice(1, 0.0, 0.0), "and begins to count anew"
    # Staying misses half a step a second, and a stop costs ten steps, of which it gains five before the next change.
    assert waited == 2


def test_nothing_is_missed_where_nothing_is_better() -> None:
    assert chosen([STAY, Option(3.0, pause=1.0)], 10.0, missed=50.0) == Choice(0, 0.0, 0.0)


def test_what_is_missed_counts_for_others_by_what_they_would_give() -> None:
    little = Option(1.9, pause=1.0)
    assert chosen([STAY, MOVE, little], 1.0, missed=5.0).place == 0, "it misses far more by the other one"
    assert chosen([STAY, MOVE, little], 1.0, missed=12.0).place == 1


def test_risk_is_of_those_whose_loss_leaves_nobody() -> None:
    ab, c = frozenset("ab"), frozenset("c")
    causes = [(0.01, frozenset("a")), (0.02, frozenset("b")), (0.04, frozenset("c")), (0.08, frozenset("ab"))]
    assert risk([ab, c], causes, 100.0) == pytest.approx(100 * (0.04 + 0.08))
    assert risk([ab, c], causes, 100.0, help_price=2.0) == pytest.approx(100 * 0.12 + 2 * 0.03)
    assert risk([frozenset("abc")], causes[:2], 100.0, 2.0) == 0.0
