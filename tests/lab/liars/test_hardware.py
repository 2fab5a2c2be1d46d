"""What honest machines differ by: compute processes with other settings do each other's visits again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ftnode.lab.liars import hardware
from ftnode.lab.liars.hardware import BETWEEN, COMPARED, OLD, Setting, limit, table, text

TWO = (Setting("all instructions"), Setting("SSE4, bfloat16", OLD, threads=2, products="bfloat16"))


@pytest.fixture(scope="module")
def rows() -> Iterator[list[dict[str, Any]]]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(hardware, "SETTINGS", TWO)
        patched.setattr(hardware, "BOUNDARIES", ("int8",))
        yield hardware.measure(hardware.QUICK_STEPS)


@pytest.mark.fresh
def test_two_machines_differ_by_what_bfloat16_rounds(rows: list[dict[str, Any]]) -> None:
    assert [each["between"] for each in rows] == [*BETWEEN]
    same, rounded, _ = rows
    assert all(same[what] == 0.0 for what in COMPARED), "there is one machine without bfloat16"
    for what in COMPARED:
        assert 0.0 < rounded[what] < limit(what, "int8") / 2, what
    assert rounded["exact"] < rounded["int8"] < rounded["int4"]
    assert all(each["alike"] for each in rows)


def test_what_is_said_of_it(rows: list[dict[str, Any]]) -> None:
    assert "activations, int8 | 0.07 | 0 |" in table(rows)
    most = max(each[what] / limit(what, "int8") for each in rows for what in COMPARED)
    assert text(rows) == f"honest machines differ by {most:.0%} of what a check allows at most"
    assert text([{**each, "alike": False} for each in rows]).endswith("some made other weights from the same sum")
