"""Paths that lead nowhere, and a user without a home: one line each."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.node.home.paths import typed_path, whole_path
from tests.node.cli.cli_runner import Seen

Run = Callable[..., Seen]


def test_paths_as_in_a_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert typed_path("~/x") == whole_path("x") == tmp_path / "x" and typed_path("x") == Path("x")


@pytest.mark.parametrize(
    "arguments",
    [
        ("pause", "--home", "~nosuch/x"),
        ("join", "m.toml", "--home", "~nosuch/x"),
        ("snapshots", "list", "--home=~nosuch"),
        ("data", "build", "~nosuch/text", "--out", "x"),
        ("data", "build", "text", "--out", "~nosuch/x"),
    ],
)
def test_a_home_directory_that_nobody_knows(ftnode: Run, arguments: tuple[str, ...]) -> None:
    assert ftnode(*arguments).refused(64, "~nosuch", "no such home directory", "[E64-typed_paths]")


def test_a_path_that_begins_in_a_folder_that_is_gone(
    ftnode: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert ftnode("pause", "--home", "rel").refused(
        66, "rel begins in a folder", "write the whole path [E66-typed_paths]"
    )
    assert ftnode("snapshots", "show", ".", "--home", tmp_path).refused(66, "write the whole path")


@pytest.mark.parametrize("arguments", [("snapshots", "list"), ("pause",), ("status",), ("join", "m.toml")])
def test_a_user_without_a_home(ftnode: Run, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]) -> None:
    """Of a container, who is in no passwd."""

    def nobody(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    for name in [name for name in os.environ if name == "HOME" or name.startswith(("XDG_", "FTNODE_"))]:
        monkeypatch.delenv(name)
    assert ftnode(*arguments).refused(78, "set HOME, or choose a folder with --home [E78-typed_paths]")


def test_a_name_that_is_too_long_for_a_folder(ftnode: Run, tmp_path: Path) -> None:
    for verb in ("show", "verify"):
        assert ftnode("snapshots", verb, "a" * 5000, "--home", tmp_path).refused(64, "neither STEP/STAGE")
