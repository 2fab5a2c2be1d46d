"""The whole lab on a model of milliseconds: files, tables, pictures, and going on after a stop."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from ftnode.lab import recovery, recovery_plan
from ftnode.lab.at_once import Plan
from ftnode.lab.recovery import RecoveryConfig
from ftnode.lab.recovery_plan import ALTERNATIVES, MAIN, SWAPPED, Mode, Runs
from ftnode.lab.whole_model import SIZES
from ftnode.protocol.errors import UserError
from tests.lab.recovery_micro import MICRO


@pytest.fixture
def micro(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan((4,), ((2,), (2, 3)), ("random", "uniform"), (0, 2), shadows=True)
    policies = (*MAIN[2:], SWAPPED, *ALTERNATIVES[:1])
    made = Mode("micro", (0,), 40, 5, (("micro", plan),), (Runs("16%", ("16%",), policies),))
    monkeypatch.setitem(SIZES, "micro", MICRO)
    monkeypatch.setattr(recovery, "mode", lambda *_: made)


def test_it_leaves_tables_pictures_and_goes_on(micro: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recovery.run(RecoveryConfig(out=tmp_path, minutes=0.0)) == 0
    assert "Not complete" in (tmp_path / "recovery.md").read_text()
    assert recovery.run(RecoveryConfig(out=tmp_path, json=True)) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["complete"] and len(told["runs"]) == 6
    lost = {row["policy"]: row["failures"] for row in told["runs"]}
    assert lost["no failure"] == 0 and lost["CheckFree"] >= 20
    assert {len(told[table]) for table in ("runs", "alternatives", "costs", "texts")} == {6}
    with (tmp_path / "at_once.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
    for picture in ("at_once.png", "alternatives.png", "swap.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "results").iterdir()}
    assert len(before) == 7
    gone = next(iter(sorted(before)))
    again = gone.read_text()
    gone.unlink()
    recovery.run(RecoveryConfig(out=tmp_path))
    assert json.loads(gone.read_text())["rows"] == json.loads(again)["rows"]
    assert all(path.stat().st_mtime_ns == at for path, at in before.items() if path != gone)


def test_a_model_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model is called"):
        recovery.run(RecoveryConfig(model="huge", out=tmp_path))


@pytest.mark.parametrize("name", recovery_plan.MODES)
def test_every_mode_can_be_planned_for_every_size(name: str) -> None:
    for size in (None, *SIZES):
        plan = recovery_plan.mode(name, size, (5,))
        assert plan.seeds == (5,) and plan.at_once and plan.runs
        for runs in plan.runs:
            names = [policy.name for policy in runs.policies]
            assert len(set(names)) == len(names)
