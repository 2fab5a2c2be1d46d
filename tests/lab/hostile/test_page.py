"""docs/reference/hostile.md has the figures of docs/reference/hostile.json, and that file is what the lab writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.hostile import hostile
from ftnode.lab.hostile.attacks import ATTACKS
from ftnode.lab.hostile.outcome import Measured, outcome_of

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PAGE, FIGURES = REFERENCE / "hostile.md", REFERENCE / "hostile.json"
TABLE = re.compile(r"(?m)^\| attack \|.*(?:\n\|.*)*")


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def test_the_page_names_the_attacks_that_are_not_measured(figures: dict[str, Any]) -> None:
    page = PAGE.read_text(encoding="utf-8").partition("## What is not measured")[2]
    missing = {attack.name for attack in ATTACKS} - {each["name"] for each in figures["attacks"]}
    assert {name for name in re.findall(r"`([\w-]+)`", page) if "-" in name} == missing


def test_the_page_has_the_figures(figures: dict[str, Any]) -> None:
    page, wanted = PAGE.read_text(encoding="utf-8"), hostile.page_table(figures)
    if os.environ.get("FTNODE_UPDATE"):
        PAGE.write_text(TABLE.sub(lambda _: wanted, page), encoding="utf-8")
    else:
        assert TABLE.findall(page) == [wanted], "hostile.json says something else: FTNODE_UPDATE=1"


def test_the_file_has_attacks_once_with_three_rates_and_their_outcome(figures: dict[str, Any]) -> None:
    names = [each["name"] for each in figures["attacks"]]
    assert names == [attack.name for attack in ATTACKS if attack.name in names] and len(names) >= 8
    for each in figures["attacks"]:
        assert list(each) == ["name", *hostile.RATES, "outcome"]
        rates = [each[rate] for rate in hostile.RATES]
        assert all(type(rate) is float and rate >= 0 for rate in rates)
        best = outcome_of(Measured(*rates))
        order = ["held", "degraded", "broken"]
        assert order.index(each["outcome"]) >= order.index(best), "worse than its rates, never better"
    assert figures["findings"].keys() <= {each["name"] for each in figures["attacks"]}
