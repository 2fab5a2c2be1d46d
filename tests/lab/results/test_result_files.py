"""What a lab writes down: whole files, as soon as they are known, where a person may write."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.results.result_files import FIGURES, file_for, folder_for, measured
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
