"""The whole lab as it is called, on its quick contest: files, table, and going on after a stop."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ftnode.lab.codecs import codecs
from ftnode.lab.codecs.codecs import Asked, read_results
from ftnode.lab.codecs.plan import QUICK
from ftnode.lab.codecs.step_seconds import DEVICE_TFLOPS, Measured
from tests.lab.codecs.test_step_seconds import lines_file
from tests.node.cli.cli_runner import Seen, runner


@pytest.fixture
def ftnode(capsys: pytest.CaptureFixture[str]) -> Callable[..., Seen]:
    return runner(capsys)


def without_times(folder: Path) -> list[dict[str, Any]]:
    return [{**found, "processor_seconds_per_step": 0} for found in read_results(folder)]


def test_a_contest_that_is_stopped_and_goes_on(
    tmp_path: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one is stopped whenever its clock, which goes on by a second for each look, has come to 24."""
    whole = ftnode("lab", "codecs", "--quick", "--json", "--out", tmp_path / "whole")
    assert whole.code == 0
    told = json.loads(whole.out)
    assert len(told["rows"]) == 2 * len(QUICK.rows) and told["notes"] == []
    assert json.loads((tmp_path / "whole" / "contest.json").read_text()) == told
    assert (tmp_path / "whole" / "contest.png").read_bytes().startswith(b"\x89PNG")
    assert all(row["steps"] is not None and row["steps"] < QUICK.steps_max for row in told["rows"])
    cuts = 0
    while True:
        clock = count()
        monkeypatch.setattr(codecs, "time", SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
        seen = ftnode("lab", "codecs", "--quick", "--json", "--minutes", 0.4, "--out", tmp_path / "cut")
        notes = json.loads(seen.out)["notes"]
        if not notes and len(read_results(tmp_path / "cut" / "results-quick")) == len(QUICK.rows):
            break
        cuts += 1
    assert cuts >= 2 and not list((tmp_path / "cut" / "unfinished-quick").iterdir())
    results = without_times(tmp_path / "whole" / "results-quick")
    assert without_times(tmp_path / "cut" / "results-quick") == results
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "whole" / "results-quick").iterdir()}
    again = ftnode("lab", "codecs", "--quick", "--out", tmp_path / "whole")
    assert "| int8, subspace 16 | muon | 1 |" in again.out
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_only_one_row_and_no_time(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    seen = ftnode("lab", "codecs", "--quick", "--only", "int4-muon", "--minutes", 0, "--json", "--out", tmp_path)
    assert seen.code == 0 and json.loads(seen.out)["rows"] == []
    assert [path.name for path in (tmp_path / "results-quick").iterdir()] == ["trigram.json"]


def test_a_folder_of_another_text(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    ftnode("lab", "codecs", "--quick", "--minutes", 0, "--out", tmp_path)
    path = tmp_path / "results-quick" / "trigram.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"corpus": "0" * 64}))
    seen = ftnode("lab", "codecs", "--quick", "--minutes", 0, "--out", tmp_path)
    assert seen.code == 65 and "results of another text" in seen.err


def test_a_folder_of_another_target(
    tmp_path: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps to one loss are not compared with those to another one."""
    once = "lab", "codecs", "--quick", "--only", "int4-muon", "--json", "--out", tmp_path
    steps = json.loads(ftnode(*once).out)["trained"][0]["steps"]
    monkeypatch.setattr(codecs, "QUICK", replace(QUICK, target=QUICK.target - 0.2))
    seen = ftnode(*once)
    assert steps and seen.code == 65 and "results of another text or target" in seen.err


def test_what_is_typed(tmp_path: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Asked] = []
    monkeypatch.setattr(codecs, "run", seen.append)
    ftnode("lab", "codecs")
    ftnode("lab", "codecs", "--only", "int4-muon", "--only", "int8-adam", "--seeds", "0,2", "--minutes", "5", "--lines",
           lines_file(tmp_path / "lines.json"), "--device-tflops", "80", "--out", tmp_path)  # fmt: skip
    assert seen == [
        Asked(device_tflops=DEVICE_TFLOPS),
        Asked(
            only=("int4-muon", "int8-adam"), seeds=(0, 2), minutes=5.0, device_tflops=80.0,
            measured=(Measured("200/200Mbit+50ms", 540_672, 1.17, "lines.json"),), out=tmp_path,
        ),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--only", "int2-muon"), 64, "no row is called int2-muon"),
        (("--seeds", "1;2"), 64, "not a list of numbers"),
        (("--lines", "none.json"), 66, "give a lines.json"),
    ],
)
def test_a_contest_that_cannot_be(
    options: tuple[str, ...], code: int, words: str, tmp_path: Path, ftnode: Callable[..., Seen]
) -> None:
    assert ftnode("lab", "codecs", *options, "--out", tmp_path).refused(code, words)
