"""Fixtures of the command line's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.node.owner import service_homes
from tests.node.cli.cli_runner import Seen, runner


@pytest.fixture(autouse=True)
def own_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys that a command makes without --home are not those of whoever runs the tests, nor are the nodes that it finds
    on this machine those of other tests, nor what they left in logs."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    monkeypatch.setattr(service_homes, "homes_of_processes", lambda: ())


@pytest.fixture
def ftnode(capsys: pytest.CaptureFixture[str]) -> Callable[..., Seen]:
    """`ftnode("run", "show", path)` → exit code, stdout, stderr."""
    return runner(capsys)


@pytest.fixture
def text_file(tmp_path: Path) -> Path:
    """A small corpus."""
    path = tmp_path / "text.txt"
    path.write_text("To be, or not to be, that is the question.\n" * 400)
    return path


@pytest.fixture
def manifest_file(tmp_path: Path, text_file: Path, ftnode: Callable[..., Seen]) -> Path:
    """A valid manifest of two block stages."""
    path = tmp_path / "pair.toml"
    assert ftnode("run", "init", path, "--data", text_file, "--stages", 2, "--snapshot-every", 0).code == 0
    return path
