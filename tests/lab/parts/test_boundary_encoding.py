"""The figures of the encoding benchmark, from made-up times, and one real round of the smallest preset."""

from __future__ import annotations

import pytest

from ftnode.lab.parts.boundary_encoding import ENCODINGS, SHARE_MAX, measure, summary, table


def test_shares_are_medians_of_rounds() -> None:
    """A round in which the machine was busy slows both sides."""
    figures = summary([1.0, 10.0, 1.0], {"int8": (8.125, [0.04, 0.4, 0.03]), "int4": (4.125, [0.01, 0.1, 0.01])})
    assert [cost["share"] for cost in figures["encodings"]] == pytest.approx([0.04, 0.01])
    assert (figures["stage_seconds"], figures["encodings"][0]["seconds"], figures["passed"]) == (1.0, 0.04, True)
    assert table(figures).row_count == 2


def test_one_encoding_beyond_the_budget_is_enough() -> None:
    below, beyond = (8.0, [0.99 * SHARE_MAX]), (8.0, [1.01 * SHARE_MAX])
    assert summary([1.0], {"int8": below, "int4": below})["passed"]
    assert not summary([1.0], {"int8": below, "int4": beyond})["passed"]


def test_a_round_measures_everything() -> None:
    stage, codecs = measure("tiny", 1)
    assert len(stage) == 1 and stage[0] > 0 and tuple(codecs) == ENCODINGS
    assert [bits for bits, _ in codecs.values()] == [32, 16, 8.5, 4.5]
    assert all(len(seconds) == 1 and seconds[0] > 0 for _, seconds in codecs.values())
