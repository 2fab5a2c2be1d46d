"""`ftnode lab planner`: text, JSON, files, and what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ftnode.lab.commands.planner import planner
from ftnode.lab.planner import planner as lab
from ftnode.lab.planner.odyssey import POLICIES, figures, text
from ftnode.lab.planner.planner import Asked
from ftnode.lab.planner.setting import Setting
from ftnode.lab.planner.settings import SETTINGS, SMALL, compared
from ftnode.lab.results.result_files import Kept


def test_it_writes_what_it_prints(tmp_path: Path) -> None:
    asked = ["--seeds", "1", "--hours", "0.3", "--only", "odyssey", "--out", str(tmp_path / "out")]
    printed = CliRunner().invoke(planner, [*asked, "--json"], standalone_mode=False)
    found = json.loads(printed.output)
    assert json.loads((tmp_path / "out/planner.json").read_text()) == found
    rates = {name: one["microbatches_a_second"] for name, one in found["policies"].items()}
    assert found["odyssey"]["over_recycle"] == rates["planner"] / rates["recycle"]
    assert found["odyssey"]["over_oobleck"] == rates["planner"] / rates["oobleck"]
    assert found["odyssey"]["of_oracle"] == rates["planner"] / rates["oracle"]
    assert found["assumed"]["away_hours"] == 1.0 and found["assumed"]["seeds"] == 1
    assert (tmp_path / "out/planner-course.png").stat().st_size > 10_000


def test_it_prints_a_row_for_each_policy() -> None:
    asked = ["--seeds", "1", "--hours", "0.3", "--away", "0", "--only", "odyssey"]
    lines = CliRunner().invoke(planner, asked, standalone_mode=False).output.splitlines()
    assert "none comes back" in lines[0] and len(lines) == 2 + 6 + 1
    assert lines[6].startswith("this project's planner") and lines[8].startswith("moved:")


def test_other_parts_are_added_and_nothing_is_simulated_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, int]] = []

    def of_seed(setting: Setting, seed: int) -> dict[str, float]:
        if seed == 1 and len(made) == 1:
            raise KeyboardInterrupt
        made.append((str(setting.machines), seed))
        return dict.fromkeys(("recycle", "oobleck", "bamboo", "ladder"), 1.0) | {"planner": 2.0 + seed}

    monkeypatch.setattr(lab, "setting_seed", of_seed)
    asked = Asked(2, 1.0, 0.1, 1.0, ("settings",), tmp_path, False, ("8 machines",))
    with pytest.raises(KeyboardInterrupt):
        lab.run(asked)
    made.append(("stopped", 0))
    assert lab.run(asked) == 0
    assert made == [("8", 0), ("stopped", 0), ("8", 1)]
    lab.run(Asked(1, 1.0, 0.1, 1.0, ("flexitrain",), tmp_path, True))
    found = json.loads((tmp_path / "planner.json").read_text())
    assert [row["ratio"] for row in found["settings"]] == [2.5] and "flexitrain" in found
    assert (tmp_path / "planner-settings.png").exists()


def test_other_settings_are_kept_apart(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    assert kept("part", 1, lambda: {"a": 1}) == {"a": 1} == kept("part", 1, lambda: {"a": 2})
    assert kept("part", 2, lambda: {"a": 3}) == {"a": 3}


def test_a_rival_that_does_nothing_has_no_ratio() -> None:
    some, none = ({"microbatches": w, "paused": 0.0, "lost": 0.0, "stops": 0, "rates": [0.0]} for w in (12.0, 0.0))
    seed = {"policies": dict.fromkeys(POLICIES, some) | {"recycle": none}, "machines": [[0.0, 32]]}
    found = figures(Setting(), [seed])
    assert found["odyssey"]["over_recycle"] is None and found["odyssey"]["over_oobleck"] == 1.0
    row = next(line for line in text(Setting(), 1, found) if line.startswith("reroute"))
    assert row.rstrip().endswith("-")


def test_the_planner_is_compared_with_the_rival_that_does_most() -> None:
    seeds = [{"recycle": 3.0, "oobleck": a, "bamboo": 1.0, "ladder": 0.0, "planner": 4.0} for a in (2.0, 6.0)]
    found = compared("x", SMALL, seeds)
    assert (found["worst_against"], found["ratio"], found["ratios"]) == ("oobleck", 1.0, [2.0, 4 / 6])


def test_twenty_settings_differ() -> None:
    assert len(SETTINGS) == len({*SETTINGS.values()}) == 20
