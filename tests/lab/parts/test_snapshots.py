"""The bench of snapshots: what it counts as a missed budget, and that a process measures what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.parts.snapshots import judge, save_and_load
from ftnode.protocol.words.errors import UserError

GOOD = {"blocking": 1.0, "background": 4.0, "load": 2.0, "extra": 100, "bytes": 100, "equal": True}
RIVALS = {
    "dcp": {"blocking": 1.1, "background": 5.0, "load": 2.5},
    "orbax": {"blocking": 0.5, "background": 4.5, "load": 2.1},
}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({}, []),
        ({"equal": False}, ["1 GB: what was loaded is not what was saved"]),
        ({"extra": 110}, ["1 GB: 1.10 copies of the state are more than 1.05"]),
        ({"blocking": 1.2}, ["1 GB: training waits 1.20 s, with torch's 1.10 s"]),
        ({"background": 4.6}, ["1 GB: background takes 4.60 s, the better rival 4.50 s"]),
        ({"load": 2.2}, ["1 GB: load takes 2.20 s, the better rival 2.10 s"]),
    ],
)
def test_budgets(changed: dict[str, Any], says: list[str]) -> None:
    assert judge({"ours": {**GOOD, **changed}, **RIVALS}, 1.0) == says
    small = judge({"ours": {**GOOD, **changed}, **RIVALS}, 0.1)
    assert small == [line.replace("1 GB", "0.1 GB") for line in says if "not what was saved" in line]


def test_a_process_saves_and_loads_what_it_says(tmp_path: Path) -> None:
    found = save_and_load("ours", 0.04, tmp_path / "files", None)
    assert found["equal"] and found["bytes"] == 37_957_632
    assert found["bytes"] <= found["extra"] <= 1.2 * found["bytes"]
    assert min(found["blocking"], found["background"], found["load"]) > 0
    assert not (tmp_path / "files").exists()


def test_a_way_that_fails_is_said(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("in the way")
    with pytest.raises(UserError, match=r"ours at 0\.01 GB ended with exit code 1: FileExistsError"):
        save_and_load("ours", 0.01, tmp_path / "files", None)
