"""docs/reference/liars.md has the figures of docs/reference/liars.json, and that file is what the lab writes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.liars import figures as page
from ftnode.lab.liars import hardware
from ftnode.lab.liars.kinds import KINDS

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PAGE, FIGURES = REFERENCE / "liars.md", REFERENCE / "liars.json"


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def test_the_page_has_the_figures(figures: dict[str, Any]) -> None:
    wanted = {
        r"(?m)^\*\*Of \d+ kinds.*$": page.summary(figures),
        r"(?m)^\| kind \| outcome \|.*(?:\n\|.*)*": page.table(figures["kinds"]),
        r"(?m)^\| kind \| worlds \|.*(?:\n\|.*)*": page.virtual_table(figures["virtual"]),
        r"(?m)^\| encoding \|.*(?:\n\|.*)*": page.boundary_table(figures["kinds"]),
        r"(?m)^\| what is compared \|.*(?:\n\|.*)*": hardware.table(figures["hardware"]),
    }
    text = PAGE.read_text(encoding="utf-8")
    for pattern, content in wanted.items():
        assert len(re.findall(pattern, text)) == 1, pattern
        text = re.sub(pattern, lambda _, content=content: content, text)  # type: ignore[misc]
    if os.environ.get("FTNODE_UPDATE"):
        PAGE.write_text(text, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == text, "liars.json says something else: FTNODE_UPDATE=1"


def test_the_file_has_kinds_once_with_what_is_promised_of_them(figures: dict[str, Any]) -> None:
    by_boundary: dict[str, list[str]] = {}
    for each in figures["kinds"]:
        by_boundary.setdefault(page.boundary_of(each), []).append(each["kind"])
    assert [*by_boundary] == [page.PLAIN, *sorted({*by_boundary} - {page.PLAIN})]
    for names in by_boundary.values():
        assert names == [kind.name for kind in KINDS if kind.name in names]
    for each in figures["kinds"]:
        assert tuple(each) == (page.ROW if page.boundary_of(each) == page.PLAIN else (*page.ROW, "boundary"))
        found = each["steps_until_found"]
        assert each["outcome"] in (page.PREVENTED, page.FOUND, page.OPEN)
        assert (found is not None) == (each["outcome"] == page.FOUND)
    assert figures["f1_by_boundary"] == page.f1_by_boundary(figures["kinds"])
    assert figures["f1"] == figures["f1_by_boundary"][page.PLAIN]
    assert figures["cost"] is None or 0 <= figures["cost"] < 1


def test_honest_machines_stay_far_below_what_is_allowed(figures: dict[str, Any]) -> None:
    """With int4 the rounding itself takes half of what a part of a sum may differ by."""
    for each in figures["hardware"]:
        assert each["alike"]
        for what in hardware.COMPARED:
            room = 0.5 if "int4" not in (what, each["boundary"]) else 0.7
            assert each[what] <= room * hardware.limit(what, each["boundary"]), (each, what)
