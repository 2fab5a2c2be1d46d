"""`ftnode lab planner`: a table, JSON and a file."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from ftnode.lab.commands.planner import planner
from ftnode.lab.planner.planner import figures, text
from ftnode.lab.planner.policies import POLICIES
from ftnode.lab.planner.setting import Setting
from ftnode.lab.planner.simulation import Outcome


def test_it_writes_what_it_prints(tmp_path: Path) -> None:
    asked = ["--seeds", "1", "--hours", "1", "--out", str(tmp_path / "out")]
    printed = CliRunner().invoke(planner, [*asked, "--json"], standalone_mode=False)
    found = json.loads(printed.output)
    assert json.loads((tmp_path / "out/planner.json").read_text()) == found
    rates = {name: one["microbatches_a_second"] for name, one in found["policies"].items()}
    assert found["odyssey"]["over_recycle"] == rates["planner"] / rates["recycle"]
    assert found["odyssey"]["over_oobleck"] == rates["planner"] / rates["oobleck"]
    assert found["odyssey"]["of_oracle"] == rates["planner"] / rates["oracle"]
    assert found["assumed"]["away_hours"] == 1.0 and found["assumed"]["seeds"] == 1


def test_it_prints_a_row_for_each_policy() -> None:
    printed = CliRunner().invoke(planner, ["--seeds", "1", "--hours", "0.5", "--away", "0"], standalone_mode=False)
    lines = printed.output.splitlines()
    assert "none comes back" in lines[0] and len(lines) == 2 + 6
    assert lines[-2].startswith("this project's planner")


def test_a_rival_that_does_nothing_has_no_ratio() -> None:
    some, none = (Outcome(work, 0.0, 0.0, 0, ()) for work in (12.0, 0.0))
    found = figures(Setting(), [dict.fromkeys(POLICIES, some) | {"recycle": none}])
    assert found["odyssey"]["over_recycle"] is None and found["odyssey"]["over_oobleck"] == 1.0
    row = next(line for line in text(Setting(), 1, found) if line.startswith("reroute"))
    assert row.rstrip().endswith("-")
