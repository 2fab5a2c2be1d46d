"""What made results come to: the fields that contest.json promises, T, and what it is a share of."""

from __future__ import annotations

from typing import Any

import pytest

from ftnode.lab.codecs.plan import FULL, Row
from ftnode.lab.codecs.step_seconds import ASSUMED, LINES
from ftnode.lab.codecs.table import REFERENCES, best, figures, page_table, text
from tests.lab.codecs.codecs_micro import TRIGRAM, result

BASE, INT4, SUBSPACE = Row("bfloat16", "adam"), Row("int4", "muon"), Row("int8", "muon", 64)
CONTRACT = ["line", "boundary", "subspace", "optimiser", "steps", "seconds_per_step", "T", "loss", "seeds"]


def told(*results: dict[str, Any]) -> dict[str, Any]:
    return figures(FULL, results, TRIGRAM, 40.0, (ASSUMED,))


RESULTS = (
    result(SUBSPACE, 0, 400.0), result(SUBSPACE, 1, None), result(INT4, 1, 420.0), result(INT4, 0, 380.0),
    result(BASE, 0, 800.0),
)  # fmt: skip


def test_every_row_has_what_the_contest_promises() -> None:
    rows = told(*RESULTS)["rows"]
    assert len(rows) == 6 and {row["line"] for row in rows} == set(LINES)
    for row in rows:
        assert list(row)[: len(CONTRACT)] == CONTRACT
    assert [row["boundary"] for row in rows] == ["bfloat16", "int4", "int8"] * 2
    assert [row["subspace"] for row in rows] == [None, None, 64] * 2
    assert [row["seeds"] for row in rows] == [1, 2, 2] * 2


def test_t_is_steps_times_seconds() -> None:
    for row in told(*RESULTS)["rows"]:
        if row["steps"] is not None:
            assert row["T"] == pytest.approx(row["steps"] * row["seconds_per_step"], rel=1e-3)
            assert row["loss"] == 3.6


def test_shares_are_of_bfloat16_with_adam_on_the_same_line() -> None:
    rows = told(*RESULTS)["rows"]
    base, int4, _ = rows[:3]
    assert base["of_bfloat16_adam"] == rows[3]["of_bfloat16_adam"] == 1.0
    assert int4["of_bfloat16_adam"] == pytest.approx(int4["T"] / base["T"], abs=1e-3)
    assert 0.1 < int4["of_bfloat16_adam"] < 0.2


def test_a_row_that_one_seed_did_not_bring_down_has_no_steps() -> None:
    found = told(*RESULTS)
    row = found["rows"][2]
    assert (row["steps"], row["T"], row["of_bfloat16_adam"]) == (None, None, None)
    assert row["loss"] == pytest.approx((3.7 + 3.8) / 2)
    assert found["trained"][2]["by_seed"] == {"0": 400.0, "1": None}
    assert "| not reached (3.75) |" in page_table(found)


def test_without_the_base_nothing_is_a_share() -> None:
    found = told(*RESULTS[:-1])
    assert {row["of_bfloat16_adam"] for row in found["rows"]} == {None}
    assert best(found["rows"], next(iter(LINES))) is None


def test_steps_are_held_against_bfloat16_with_the_same_optimiser() -> None:
    found = told(*RESULTS, result(Row("bfloat16", "muon"), 0, 320.0))
    shares = {each["row"]: each["of_bfloat16"] for each in found["trained"]}
    assert shares == {"bfloat16-adam": 1.0, "bfloat16-muon": 1.0, "int4-muon": 1.25, "int8-subspace64-muon": None}


def test_references_and_losses_are_told() -> None:
    found = told()
    assert found["rows"] == [] and found["references"] == REFERENCES
    assert REFERENCES == {"bfloat16": 1.0, "subspace": 0.62, "int8": 0.58, "int4": 0.37}
    assert (found["target_loss"], found["trigram_loss"]) == (FULL.target, 4.0)


def test_the_table_has_a_line_for_each_row() -> None:
    found = told(*RESULTS)
    lines = page_table(found).splitlines()
    assert len(lines) == 5 and len({line.count("|") for line in lines}) == 1
    assert lines[3].startswith("| int4 | muon | 2 | 400 (380 to 420) |")
    said = text(found, ["one was cut off"])
    assert "best is int4 with muon" in said and said.endswith("one was cut off")


def test_nothing_is_best_at_a_loss_that_a_trigram_table_reaches() -> None:
    found = told(*RESULTS) | {"target_loss": TRIGRAM["loss"]}
    assert "best is" not in text(found, [])
