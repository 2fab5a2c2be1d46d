"""What a kind of lie comes to, and F1 over the kinds."""

from __future__ import annotations

from typing import Any

import pytest

from ftnode.lab.liars.figures import (
    ALL_KINDS,
    FOUND,
    OPEN,
    PREVENTED,
    ROW,
    f1,
    f1_by_setting,
    outcome,
    row,
    virtual_row,
)
from ftnode.lab.liars.ground import ONLY_HOLDER
from ftnode.lab.liars.kinds import KINDS
from ftnode.lab.liars.swarm import AFTER_STEPS, final

STEPS = range(1, 101)
TRUE = {str(step): 2.0 for step in STEPS}


def seen(**changes: Any) -> dict[str, Any]:
    usual = {
        "kind": "gradients-turned", "last": 100, "found_after": None, "removed": 0, "stopped": False, "before": 100.0,
        "during": 100.0, "losses": TRUE,
    }  # fmt: skip
    return usual | changes


@pytest.mark.parametrize(
    ("found", "removed", "loss", "tokens", "expected"),
    [
        (3, 0, 1.5, 0.5, FOUND),
        (3, 2, None, None, FOUND),
        (None, 0, 1.0, 1.0, PREVENTED),
        (None, 0, 1.01, 0.9, PREVENTED),
        (None, 0, 1.02, 1.0, OPEN),
        (None, 0, 1.0, 0.89, OPEN),
        (None, 1, 1.0, 1.0, OPEN),
        (None, 0, None, 1.0, OPEN),
        (None, 0, 1.0, None, OPEN),
    ],
)
def test_outcome(found: int | None, removed: int, loss: float | None, tokens: float | None, expected: str) -> None:
    assert outcome(found, removed, loss, tokens) == expected


def test_a_row_compares_the_last_steps_with_the_same_ones_without_the_lie() -> None:
    spoilt = TRUE | {str(step): 3.0 for step in range(101 - AFTER_STEPS, 101)}
    made = row(seen(losses=spoilt, found_after=7, during=50.0), TRUE)
    assert tuple(made) == ROW
    assert (made["loss_ratio"], made["tokens_ratio"], made["steps_until_found"]) == (1.5, 0.5, 7)
    assert row(seen(stopped=True), TRUE)["loss_ratio"] is None


def test_losses_that_are_missing_leave_no_mean() -> None:
    assert final(TRUE | {"99": 0.0}, 100) == 2.0 and final(dict.fromkeys(TRUE, 0.0), 100) is None, "skipped"
    assert final(TRUE, 100) == 2.0 and final(TRUE, 110) == 2.0 and final(TRUE, 200) is None


def test_a_kind_of_the_virtual_world_is_found_only_where_each_world_found_it() -> None:
    kind = next(kind for kind in KINDS if not kind.real)
    worlds = {"worlds": 4, "found": 4, "steps_until_found": 9.5, "honest_removed": 1, "harmless": 0}
    assert virtual_row(kind, worlds)["outcome"] == FOUND
    assert virtual_row(kind, worlds | {"found": 3})["outcome"] == OPEN
    assert virtual_row(kind, worlds | {"found": 0, "harmless": 4})["outcome"] == PREVENTED


@pytest.mark.parametrize(
    ("outcomes", "removed", "expected"),
    [
        ([FOUND, FOUND], 0, 1.0),
        ([FOUND, OPEN], 0, 0.667),
        ([FOUND, PREVENTED], 0, 1.0),
        ([FOUND, FOUND], 1, 0.8),
        ([OPEN], 0, 0.0),
        ([PREVENTED], 0, 1.0),
        ([], 0, 1.0),
    ],
)
def test_f1(outcomes: list[str], removed: int, expected: float) -> None:
    rows = [{"outcome": each, "honest_removed": removed if not place else 0} for place, each in enumerate(outcomes)]
    assert f1(rows) == expected


def test_f1_of_all_kinds_is_told_where_some_have_an_only_holder() -> None:
    found, missed = ({"outcome": each, "honest_removed": 0} for each in (FOUND, OPEN))
    both = f1_by_setting({"kinds": [found] * 3, "by_setting": {ONLY_HOLDER: [found, missed]}})
    assert both == {"usual": 1.0, ONLY_HOLDER: 0.667, ALL_KINDS: 0.889}
    assert ALL_KINDS not in f1_by_setting({"kinds": [found], "by_setting": {}})
    assert ALL_KINDS not in f1_by_setting({"kinds": [], "by_setting": {ONLY_HOLDER: [found]}})
