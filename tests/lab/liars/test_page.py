"""docs/reference/liars.md has the figures of docs/reference/liars.json, that file is what the lab writes, and what it
says reaches the goals."""

from __future__ import annotations

import copy
import json
import os
import re
from collections.abc import Callable, Iterator
from math import inf
from pathlib import Path
from typing import Any, Final

import pytest

from ftnode.lab.liars import figures as page
from ftnode.lab.liars import hardware
from ftnode.lab.liars.ground import ONLY_HOLDER, USUAL, Setting
from ftnode.lab.liars.kinds import KINDS
from tests.lab import goals
from tests.lab.goals import Missed

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"
PAGE, FIGURES = REFERENCE / "liars.md", REFERENCE / "liars.json"


@pytest.fixture(scope="module")
def figures() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    return found


def test_the_page_has_the_figures(figures: dict[str, Any]) -> None:
    wanted = {
        r"(?m)^\*\*Of \d+ kinds.*\n.*$": page.summary(figures),
        r"(?m)^\| kind \| outcome \|.*(?:\n\|.*)*": page.table(figures["kinds"]),
        r"(?m)^\| only holder \|.*(?:\n\|.*)*": page.only_holder_table(figures["by_setting"][ONLY_HOLDER]),
        r"(?m)^\| without shadows \|.*(?:\n\|.*)*": page.unshadowed_table(figures["by_setting"][page.UNSHADOWED]),
        r"(?m)^\| kind \| worlds \|.*(?:\n\|.*)*": page.virtual_table(figures["virtual"]),
        r"(?m)^\| setting \|.*(?:\n\|.*)*": page.setting_table(figures["by_setting"]),
        r"(?m)^\| kind \| without checks \|.*(?:\n\|.*)*": page.unchecked_table(figures),
        r"(?m)^\| nobody lies \|.*(?:\n\|.*)*": page.honest_table(figures["honest"]),
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
    assert [each["kind"] for each in figures["kinds"]] == [kind.name for kind in KINDS if not kind.layout.sole]
    assert [*figures["by_setting"]] == sorted({*figures["by_setting"]} - {USUAL.name})
    assert [*figures["honest"]] == sorted({*figures["honest"]})
    for rows in page.rows_by_setting(figures).values():
        names = [each["kind"] for each in rows]
        assert names == [kind.name for kind in KINDS if kind.name in names]
        for each in rows:
            assert tuple(each) == page.ROW
            found = each["steps_until_found"]
            assert each["outcome"] in (page.PREVENTED, page.FOUND, page.OPEN)
            assert (found is not None) == (each["outcome"] == page.FOUND)
    assert figures["f1_by_setting"] == page.f1_by_setting(figures)
    assert figures["f1"] == page.f1(figures["kinds"])


LOSS_MAX: Final = 1.01
F1_MIN: Final = 0.95
COST_MAX: Final = 0.03
STEPS_MAX: Final = 20
STEPS_SOMETIMES_MAX: Final = 250
"""For a lie in a tenth of the visits."""
PAIRS: Final = Setting(group=2).name
SOMETIMES: Final = ("tenth-of-visits", "tenth-from-step-200")
LOT_ALONE: Final = "numbers have no size there, so that only a check by lot sees it, once in 100 steps"
BY_COPIES: Final = "it lends nothing that tells, so that it takes three copies, of which one is due every ten steps"


KNOWN: Final = {
    **{
        (ONLY_HOLDER, f"only-holder-gradients-{name}", "steps_until_found"): Missed(value, BY_COPIES)
        for name, value in (("turned-adapted", 27), ("noise-adapted", 87))
    },
    ("boundary bfloat16", "activations-noise", "loss_ratio"): Missed(1.0115, "1.0015 and 1.003 in two other swarms"),
    ("subspace 32", "activations-older", "loss_ratio"): Missed(1.0234, "1.000 and 1.0047 in two other swarms"),
    **{
        ("worlds", f"gradients-{name}", what): Missed(value, LOT_ALONE)
        for name in ("times1000", "times1.5", "turned", "noise", "older", "zero")
        for what, value in (("not found", 34), ("steps", 296))
    },
    ("worlds", "tenth-of-visits", "not found"): Missed(10, LOT_ALONE),
    ("worlds", "from-step-200", "not found"): Missed(1, LOT_ALONE),
    ("worlds", "from-step-200", "steps"): Missed(298, LOT_ALONE),
    ("worlds", "two-that-agree", "steps"): Missed(107, LOT_ALONE),
    ("worlds", "two-that-agree, of three", "not found"): Missed(20, "most of a group, and as old: not defended"),
    ("worlds", "two-that-agree, of three", "honest_removed"): Missed(40, "most of a group, and as old: not defended"),
}  # fmt: skip
"""By setting (or `worlds`, the virtual ones), kind, and what was to be reached."""
Goal = tuple[str, str, str]


def steps_max(kind: str) -> int:
    return STEPS_SOMETIMES_MAX if kind in SOMETIMES else STEPS_MAX


def loss_max(kind: str, setting: str) -> float:
    """What is promised where two honest ones hold the stage as well."""
    layout = next(each.layout for each in KINDS if each.name == kind)
    return LOSS_MAX if layout.holders > 2 and setting != PAIRS else inf


def measured_and_goals(figures: dict[str, Any]) -> Iterator[tuple[Goal, float, float]]:
    """(what, the value, the goal), of all values that are to be small."""
    yield ("", "", "cost"), figures["cost"], COST_MAX
    checked = {name: rows for name, rows in page.rows_by_setting(figures).items() if name not in page.UNDEFENDED}
    for setting in (*checked, page.ALL_KINDS):
        yield (setting, "", "1 - f1"), round(1 - figures["f1_by_setting"][setting], 6), round(1 - F1_MIN, 6)
    for setting, rows in checked.items():
        for each in rows:
            yield (setting, each["kind"], "open"), each["outcome"] == page.OPEN, 0
            yield (setting, each["kind"], "honest_removed"), each["honest_removed"], 0
            goals = {"loss_ratio": loss_max(each["kind"], setting), "steps_until_found": steps_max(each["kind"])}
            for what, goal in goals.items():
                if each[what] is not None:
                    yield (setting, each["kind"], what), each[what], goal
    for setting, each in figures["honest"].items():
        for what, goal in (("accused", 0), ("removed", 0), ("loss_ratio", LOSS_MAX)):
            yield (setting, "honest", what), each[what], goal
    for kind, seen in figures["virtual"].items():
        yield ("worlds", kind, "honest_removed"), seen["honest_removed"], 0
        yield ("worlds", kind, "not found"), seen["worlds"] - seen["found"] - seen["harmless"], 0
        if seen["steps_at_most"] is not None:
            yield ("worlds", kind, "steps"), seen["steps_at_most"], steps_max(kind)


def worse(figures: dict[str, Any]) -> dict[Goal, float]:
    return goals.worse(measured_and_goals(figures), KNOWN)


def outlived(figures: dict[str, Any]) -> set[Goal]:
    return goals.outlived(measured_and_goals(figures), KNOWN)


def test_goals_are_reached_but_for_what_is_known(figures: dict[str, Any]) -> None:
    assert worse(figures) == {}, "mend it, or write in KNOWN why it is missed"


def test_an_exception_that_is_none_any_more_goes(figures: dict[str, Any]) -> None:
    assert outlived(figures) == set()


def row_of(figures: dict[str, Any], kind: str, setting: str = USUAL.name) -> dict[str, Any]:
    rows = page.rows_by_setting(figures)[setting]
    found: dict[str, Any] = next(each for each in rows if each["kind"] == kind)  # type: ignore[assignment]
    return found


SPOILT: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "loss": lambda figures: row_of(figures, "gradients-zero").update(loss_ratio=1.0101),
    "loss of another setting": lambda figures: row_of(figures, "gradients-zero", "boundary int8").update(
        loss_ratio=1.0101
    ),
    "f1": lambda figures: figures["f1_by_setting"].update(usual=0.949),
    "f1 of only holders": lambda figures: figures["f1_by_setting"].update({ONLY_HOLDER: 0.923}),
    "f1 of all kinds": lambda figures: figures["f1_by_setting"].update({page.ALL_KINDS: 0.937}),
    "accused without a lie": lambda figures: figures["honest"]["usual"].update(accused=1),
    "f1 of another setting": lambda figures: figures["f1_by_setting"].update({"boundary int4": 0.949}),
    "cost": lambda figures: figures.update(cost=0.0301),
    "an honest one": lambda figures: row_of(figures, "wrong-hashes").update(honest_removed=1),
    "an honest one in worlds": lambda figures: figures["virtual"]["false-accuser"].update(honest_removed=1),
    "steps": lambda figures: row_of(figures, "from-step-200").update(steps_until_found=21),
    "steps of one that lies now and then": lambda figures: row_of(figures, SOMETIMES[1]).update(steps_until_found=251),
    "nobody is found": lambda figures: row_of(figures, "sums-turned").update(outcome=page.OPEN, steps_until_found=None),
    "found in fewer worlds": lambda figures: figures["virtual"]["tenth-of-visits"].update(found=9),
}


@pytest.mark.parametrize("what", SPOILT)
def test_planted_a_worse_measurement_fails(what: str, figures: dict[str, Any]) -> None:
    spoilt = copy.deepcopy(figures)
    SPOILT[what](spoilt)
    assert len(worse(spoilt)) == 1


def test_planted_a_better_one_leaves_an_exception_over(figures: dict[str, Any]) -> None:
    better = copy.deepcopy(figures)
    row_of(better, "only-holder-gradients-noise-adapted", ONLY_HOLDER).update(steps_until_found=20)
    assert outlived(better) == {(ONLY_HOLDER, "only-holder-gradients-noise-adapted", "steps_until_found")}


def test_honest_machines_stay_far_below_what_is_allowed(figures: dict[str, Any]) -> None:
    """With int4 the rounding itself takes half of what a part of a sum may differ by."""
    for each in figures["hardware"]:
        assert each["alike"]
        for what in hardware.COMPARED:
            room = 0.5 if "int4" not in (what, each["boundary"]) else 0.7
            assert each[what] <= room * hardware.limit(what, each["boundary"]), (each, what)
