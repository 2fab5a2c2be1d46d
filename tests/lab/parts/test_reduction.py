"""What the reduction benchmark makes of its seconds."""

from __future__ import annotations

import numpy as np
import pytest
from rich.console import Console

from ftnode.lab.parts import allreduce
from ftnode.lab.parts.allreduce import ALL, SURVIVORS, Outcome, RunnerResults
from ftnode.lab.parts.reduction import BUDGET, Results, summary, table

NUMBERS = allreduce.COMPARED_AT_ONCE + 3
"""More than are compared at once."""


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


def judged(*held: np.ndarray) -> Outcome:
    """What is said of survivors 0 and 1 of three that hold this after a round of one second."""
    averages = {ALL: allreduce.average([0, 1, 2], NUMBERS), SURVIVORS: allreduce.average([0, 1], NUMBERS)}
    shares = {name: allreduce.share(held, of) for name, of in averages.items()}
    return Outcome(1.0, shares, allreduce.apart(held))


def test_an_average_is_that_of_the_peers_named() -> None:
    one, other = (allreduce.average([index], NUMBERS) for index in (0, 2))
    assert np.allclose(allreduce.average([0, 2], NUMBERS), (one + other) / 2, atol=1e-6)


@pytest.mark.parametrize("group", [[0, 1, 2], [0, 1]], ids=["of all", "of the survivors"])
def test_one_and_the_same_whole_average_is_right(group: list[int]) -> None:
    found = judged(allreduce.average(group, NUMBERS), allreduce.average(group, NUMBERS) + np.float32(1e-7))
    assert found.right and found.equal


def test_survivors_with_averages_of_different_groups_are_neither_right_nor_equal() -> None:
    found = judged(allreduce.average([0, 1, 2], NUMBERS), allreduce.average([0, 1], NUMBERS))
    assert not found.right and not found.equal
    assert found.shares == pytest.approx({ALL: 0.5, SURVIVORS: 0.5}, abs=1e-3)


def test_one_wrong_number_at_the_end_is_found() -> None:
    wrong = allreduce.average([0, 1, 2], NUMBERS)
    wrong[-1] += 1
    assert not judged(wrong, wrong).right
    assert not judged(wrong, allreduce.average([0, 1, 2], NUMBERS)).equal


def test_equal_mixtures_are_equal_and_not_right() -> None:
    mixed = allreduce.average([0, 1, 2], NUMBERS)
    mixed[: NUMBERS // 4] = allreduce.average([0, 1], NUMBERS)[: NUMBERS // 4]
    found = judged(mixed, mixed.copy())
    assert found.equal and not found.right
    assert found.shares[SURVIVORS] == pytest.approx(0.25, abs=1e-3)


def test_what_runners_left_is_counted() -> None:
    right, mixed, stuck = (
        Outcome(3.0, {ALL: 1.0}, 1e-7),
        Outcome(2.0, {ALL: 0.5, SURVIVORS: 0.25}, 0.5, noticed=2),
        Outcome(None, {ALL: 0.25, SURVIVORS: 0.25}, 0.5, noticed=3),
    )
    runner = RunnerResults([right], [right, right], [mixed, stuck], [right, stuck])
    found = summary(Results(ours=[1.0], hivemind=[3.0], runner=runner))
    assert (found["all_reduce_runner_ratio"], found["all_reduce_runner"]["right"]) == (3.0, 1)
    killed = found["all_reduce_runner_with_a_kill"]
    assert {name: killed[name] for name in ("rounds", "completed", "equal", "right", "worst_seconds")} == {
        "rounds": 2, "completed": 1, "equal": 0, "right": 0, "worst_seconds": 2.0,
    }  # fmt: skip
    assert (killed["least"], killed["noticed"], killed["repeat"]["noticed"]) == (0.25, 2, 1)
    assert killed["shares"] == {ALL: 0.375, SURVIVORS: 0.25}
    assert (killed["noticed_by_fewest"], killed["apart"]) == (2, 0.5)
    assert (killed["repeat"]["completed"], killed["between"]["right"]) == (1, 2)
