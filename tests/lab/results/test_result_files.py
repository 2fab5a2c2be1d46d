"""What a lab writes down: whole files, as soon as they are known, where a person may write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.results.result_files import FIGURES, MADE_BY, VERSION, Kept, file_for, folder_for, measured
from ftnode.protocol.words.errors import UserError


def test_what_was_measured_is_there_when_a_later_run_fails(tmp_path: Path) -> None:
    def measure(folder: Path | None) -> dict[str, Any]:
        assert folder is not None
        if folder.name == "run-3":
            raise UserError("the machine is too busy", 75)
        return {"seconds": 0.5, "said": "ω"}

    with pytest.raises(UserError, match="too busy"):
        measured(measure, 3, tmp_path / "out")
    files = sorted((tmp_path / "out").rglob(FIGURES))
    assert [file.parent.name for file in files] == ["run-1", "run-2"]
    assert json.loads(files[0].read_text()) == {"seconds": 0.5, "said": "ω"}


@pytest.mark.parametrize(
    ("made_by", "says"),
    [("0.0.1", "of ftnode 0.0.1, which"), (None, "of an ftnode that did not say its version, which"), (VERSION, "")],
)
def test_results_of_another_version_are_used_and_told_once(
    made_by: str | None, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def forget(path: Path) -> None:
        found = json.loads(path.read_text())
        assert found.pop(MADE_BY) == VERSION and found == {"loss": 1.5}
        path.write_text(json.dumps(found if made_by is None else found | {MADE_BY: made_by}))

    made = Kept(tmp_path)
    for part in ("a", "b"):
        assert made(part, 1, lambda: {"loss": 1.5}) == {"loss": 1.5}
    assert capsys.readouterr().err == ""
    for path in (tmp_path / "kept").iterdir():
        forget(path)
    for part in ("a", "b", "a"):
        assert made(part, 1, lambda: {"loss": 2.5}) == {"loss": 1.5}, "some took days"
    err = capsys.readouterr().err
    assert err.count("\n") == bool(says) and says in err and (f"this is {VERSION}: " in err) == bool(says)


def test_without_a_folder_nothing_is_written() -> None:
    assert measured(lambda folder: {"folder": folder}, 2, None) == [{"folder": None}] * 2


def test_a_file_where_there_is_a_folder(tmp_path: Path) -> None:
    assert file_for(tmp_path / "new" / "figures.json", "--out").parent.is_dir()
    with pytest.raises(UserError, match=r"cannot write to .*: Is a directory; choose another --out") as caught:
        file_for(tmp_path, "--out")
    assert caught.value.exit_code == 73


def test_a_folder_that_may_only_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told at once, and not when there is something to write. Root may write everywhere."""
    monkeypatch.setattr(os, "access", lambda path, mode: mode == os.R_OK)
    with pytest.raises(UserError, match="Permission denied; choose another --out"):
        folder_for(tmp_path, "--out", empty=False)
