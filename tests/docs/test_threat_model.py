"""SECURITY.md: each line of the threat model has an outcome, and names a test that there is."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
ACTORS: Final = (
    "One identity", "Many identities", "A stage's only holder", "The majority of a group", "The majority of the voters",
    "author's key", "A meeting point", "A relay", "A reader",
)  # fmt: skip
OUTCOMES: Final = ("prevented", "found", "only limited", "not defended")
MEASURED: Final = "docs/reference/liars.md"


def rows() -> list[list[str]]:
    table = PAGE.partition("| who | does what |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def shown_by(row: list[str]) -> list[str]:
    return re.findall(r"\]\(([^)]+)\)", row[3])


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[1][:60])
def test_a_line_has_an_outcome_and_is_shown_by_what_there_is(row: list[str]) -> None:
    assert len(row) == 4 and row[2] in OUTCOMES
    paths = shown_by(row)
    assert paths
    for path in paths:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert path == MEASURED or (re.search(r"(?m)^(async )?def test_", text) and path.startswith("tests/"))
    assert paths != [MEASURED], "a measurement alone shows it once"


@pytest.mark.parametrize("actor", ACTORS)
def test_nobody_who_can_do_harm_is_left_out(actor: str) -> None:
    assert any(actor in row[0] for row in rows())


def test_the_model_comes_before_the_details() -> None:
    headings = re.findall(r"(?m)^## (.+)$", PAGE)
    assert headings[0] == "The threat model" and "Reporting" in headings


def test_a_row_without_a_test_is_seen() -> None:
    with pytest.raises(AssertionError, match="alone"):
        test_a_line_has_an_outcome_and_is_shown_by_what_there_is(["x", "y", "not defended", f"[t]({MEASURED})"])


def test_a_row_whose_test_is_missing_is_seen() -> None:
    with pytest.raises(FileNotFoundError):
        test_a_line_has_an_outcome_and_is_shown_by_what_there_is(["x", "y", "found", "[t](tests/sim/test_none.py)"])
