"""The whole lab on a model of milliseconds: files, tables, pictures, and going on after a stop."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftnode.lab.recovery import failures, pictures, recovery
from ftnode.lab.recovery import plan as plan_module
from ftnode.lab.recovery.at_once import Plan
from ftnode.lab.recovery.plan import ALTERNATIVES, MAIN, SWAPPED, Mode, Runs
from ftnode.lab.recovery.recovery import RecoveryConfig
from ftnode.lab.recovery.tables import at_once
from ftnode.lab.recovery.whole_model import SIZES
from ftnode.protocol.words.errors import UserError
from tests.lab.recovery.recovery_micro import MICRO


@pytest.fixture(scope="module")
def micro() -> Iterator[None]:
    plan = Plan((4,), ((2,), (2, 3)), ("random", "uniform"), (0, 2), shadows=True)
    policies = (*MAIN[2:], SWAPPED, *ALTERNATIVES[:1])
    made = Mode("micro", (0,), 40, 5, (("micro", plan),), (Runs("16%", ("16%",), policies),))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "micro", MICRO)
        patch.setattr(recovery, "mode", lambda *_: made)
        yield


@pytest.fixture(scope="module")
def whole(micro: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The folder of a lab that went on after it had no time at all, and what it told then."""
    out, printed = tmp_path_factory.mktemp("whole"), StringIO()
    assert recovery.run(RecoveryConfig(out=out, minutes=0.0)) == 0
    assert "Not complete" in (out / "recovery.md").read_text()
    with redirect_stdout(printed):
        assert recovery.run(RecoveryConfig(out=out, json=True)) == 0
    return out, json.loads(printed.getvalue().splitlines()[-1])


def test_it_leaves_tables_pictures_and_goes_on(whole: tuple[Path, dict[str, Any]]) -> None:
    out, told = whole
    assert told["complete"] and len(told["runs"]) == 6
    lost = {row["policy"]: row["failures"] for row in told["runs"]}
    assert lost["no failure"] == 0 and lost["CheckFree"] >= 20
    assert {len(told[table]) for table in ("runs", "alternatives", "costs", "texts")} == {6}
    with (out / "at_once.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
    for picture in ("at_once.png", "alternatives.png", "swap.png"):
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    before = {path: path.stat().st_mtime_ns for path in (out / "results").iterdir()}
    assert len(before) == 7
    gone = next(iter(sorted(before)))
    again = gone.read_text()
    gone.unlink()
    recovery.run(RecoveryConfig(out=out))
    assert json.loads(gone.read_text())["rows"] == json.loads(again)["rows"]
    assert all(path.stat().st_mtime_ns == at for path, at in before.items() if path != gone)


def test_results_of_another_plan_are_not_mixed_in(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """As of a quick call with the size of a longer one, or of another Python's library."""
    out = Path(shutil.copytree(whole[0], tmp_path / "out"))
    path = next((out / "results").glob("at-once-*.json"))
    kept = json.loads(path.read_text())
    for other in ({"after": [0, 20]}, {"corpus": "0" * 64}):
        path.write_text(json.dumps(kept | other))
        with pytest.raises(UserError, match="results of another text or model; choose another --out") as caught:
            recovery.run(RecoveryConfig(out=out))
        assert caught.value.exit_code == 65
    path.write_text(json.dumps({name: value for name, value in kept.items() if name != "corpus"}))
    assert recovery.run(RecoveryConfig(out=out)) == 0, "files of before do not say of which text they are"


def at_once_file(seed: int, *excess: float) -> dict[str, Any]:
    row = {"age": 4, "lost": [2], "way": "random", "excess": list(excess)}
    after = [0, 20, 40, 80][: len(excess)]
    return {"size": "micro", "parameters": 7, "seed": seed, "swap": False, "after": after, "rows": [row]}


def test_a_loss_that_two_files_tell_of_counts_once_for_its_seed() -> None:
    """A short file of seeds 0, 1 and 2, and a long one of seed 0: 3 seeds in the first columns, 1 in the last."""
    short = [at_once_file(seed, 0.1 * seed, 0.2 * seed) for seed in range(3)]
    table = at_once([*short, at_once_file(0, 0.0, 0.0, 0.5)])
    assert [row[:6] for row in table.rows] == [("micro", 7, "normal", 4, "2", "random")]
    assert table.rows[0][6:] == ("3 (after 40: 1)", 0.1, 0.2, 0.5, "0.000 to 0.200")
    assert at_once(short).rows[0][6] == "3"


def test_a_lab_that_is_stopped_again_and_again_finds_the_same(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock takes a second of a call's hundred and fifty. No pictures: they would take the most."""
    monkeypatch.setattr(pictures, "draw_all", lambda results, out: [])
    calls = 0
    while True:
        calls += 1
        clock = count()
        monkeypatch.setattr(recovery, "time", SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
        recovery.run(RecoveryConfig(out=tmp_path, minutes=2.5))
        told = (tmp_path / "recovery.md").read_text()
        if "Not complete" not in told:
            break
        assert "was cut off at" in told
    assert calls > 1 and not list((tmp_path / "unfinished").iterdir())
    for name in ("at_once.csv", "runs.csv", "texts.csv"):
        assert (tmp_path / name).read_text() == (whole[0] / name).read_text()
    for path in (tmp_path / "results").iterdir():
        assert json.loads(path.read_text())["wall_seconds"] >= 0


def test_a_model_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no model is called"):
        recovery.run(RecoveryConfig(model="huge", out=tmp_path))


@pytest.mark.parametrize("name", plan_module.MODES)
def test_every_mode_can_be_planned_for_every_size(name: str) -> None:
    for size in (None, *SIZES):
        plan = plan_module.mode(name, size, (5,))
        assert plan.seeds == (5,) and plan.at_once and plan.runs
        for runs in plan.runs:
            scale = failures.scale_for(runs.scale_rates, SIZES[plan.size].stages, plan.iterations, runs.losing)
            made = SIZES[plan.size]
            failures.draw(runs.rate, 5, made.stages, plan.iterations, scale, made.warmup_steps + 1, runs.losing)
            names = [policy.name for policy in runs.policies]
            assert len(set(names)) == len(names)
