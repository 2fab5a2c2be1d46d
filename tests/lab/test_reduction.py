"""What the reduction benchmark makes of its seconds."""

from __future__ import annotations

import pytest
from rich.console import Console

from ftnode.lab.reduction import BUDGET, Results, summary, table


def test_the_ratio_is_that_of_rounds_next_to_each_other() -> None:
    found = summary(Results(ours=[1.0, 2.0, 1.0], hivemind=[3.0, 4.0, 2.5], repaired=[1.5]))
    assert found["ratio"] == 2.5 >= BUDGET and found["passed"]
    assert found["ours"] == {"rounds": 3, "completed": 3, "median_seconds": 1.0, "worst_seconds": 2.0}


@pytest.mark.parametrize(
    "results",
    [
        Results(ours=[1.0], hivemind=[1.9]),
        Results(ours=[1.0], hivemind=[9.0], exact=False),
        Results(ours=[1.0], hivemind=[None]),
    ],
    ids=["slow", "inexact", "failed"],
)
def test_what_misses_the_budget_has_not_passed(results: Results) -> None:
    assert not summary(results)["passed"]


def test_a_round_that_failed_is_shown_as_not_completed() -> None:
    found = {"peers": 4, "megabytes": 1, **summary(Results([1.0, None], [2.0, 2.0], [None]))}
    assert (found["ours"]["completed"], found["with_a_kill"]["completed"]) == (1, 0)
    console = Console(width=100)
    with console.capture() as shown:
        console.print(table(found))
    assert "2.00 ×" in shown.get()
