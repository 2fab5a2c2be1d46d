"""docs/explanation/thin-lines.md has the table of contest.json, and that file is what its results come to."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.codecs.codecs import read_results
from ftnode.lab.codecs.pictures import draw
from ftnode.lab.codecs.plan import FULL
from ftnode.lab.codecs.step_seconds import Measured
from ftnode.lab.codecs.table import figures, page_table

EXPLANATION = Path(__file__).parents[3] / "docs" / "explanation"
PAGE, FIGURES, RESULTS = EXPLANATION / "thin-lines.md", EXPLANATION / "contest.json", EXPLANATION / "contest"
TABLE = re.compile(r"(?m)^\| boundary \| optimiser \|.*(?:\n\|.*)*")


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """As the file has it; with FTNODE_UPDATE, as its results come to."""
    found: dict[str, Any] = json.loads(FIGURES.read_text(encoding="utf-8"))
    if os.environ.get("FTNODE_UPDATE"):
        found = recounted(found)
        FIGURES.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        draw(found, read_results(RESULTS), EXPLANATION / "contest.png")
    return found


def recounted(found: dict[str, Any]) -> dict[str, Any]:
    """From the runs that lie beside it, for the same device and the same measurements of lines."""
    trigram = json.loads((RESULTS / "trigram.json").read_text(encoding="utf-8"))
    measured = [Measured(**each) for each in found["measured"]]
    return figures(FULL, read_results(RESULTS), trigram, found["device_tflops"], measured)


def test_the_file_is_what_its_results_come_to(told: dict[str, Any]) -> None:
    assert told == json.loads(json.dumps(recounted(told))), "the results say something else: FTNODE_UPDATE=1"


def test_the_page_has_the_table(told: dict[str, Any]) -> None:
    page, wanted = PAGE.read_text(encoding="utf-8"), page_table(told)
    if os.environ.get("FTNODE_UPDATE"):
        PAGE.write_text(TABLE.sub(lambda _: wanted, page), encoding="utf-8")
    else:
        assert TABLE.findall(page) == [wanted], "contest.json says something else: FTNODE_UPDATE=1"


def test_the_target_is_below_the_trigram_table(told: dict[str, Any]) -> None:
    assert told["target_loss"] < told["trigram_loss"]
    page = PAGE.read_text(encoding="utf-8")
    assert f"{told['trigram_loss']:.3f}" in page and f"{told['target_loss']:g} nats" in page


def test_results_are_of_the_model_that_the_plan_has(told: dict[str, Any]) -> None:
    """A change of the plan makes them results of something else."""
    by_name = {row.name: row for row in FULL.rows}
    results = read_results(RESULTS)
    assert len({(each["row"], each["seed"]) for each in results}) == len(results)
    for each in results:
        size = FULL.contestant(by_name[each["row"]], told["trigram"]["vocabulary"])
        blocks = size.config.layers * size.config.block_parameters
        assert (each["hidden"], each["parameters"]) == (size.config.hidden, blocks)
        assert each["target"] == FULL.target and each["rate"] == size.learning_rate
