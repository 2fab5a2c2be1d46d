"""`ftnode logs`: the newest log, wherever it lies, and what comes to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ftnode.node.home.log_folders import LOG_NAME
from ftnode.node.owner import service_homes
from ftnode.node.owner.join_options import Running, note_running
from tests.node.cli.cli_runner import Seen


def written(folder: Path, text: str, at: int) -> Path:
    folder.mkdir(parents=True)
    path = folder / LOG_NAME
    path.write_text(text)
    os.utime(path, (at, at))
    return path


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home of a service, on a machine whose user has no node of their own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "own-data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own-state"))
    place = tmp_path / "service"
    monkeypatch.setattr(service_homes, "SERVICE_HOMES", (place,))
    return place


def test_the_newest_is_shown_from_its_end(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    written(tmp_path / "logs" / "tiny-1" / "20260101-000000-1", "old\n", 1000)
    path = written(tmp_path / "logs" / "other-2" / "20260102-000000-2", "a\nb\n\x1b[2Jc\n", 2000)
    seen = ftnode("logs", "--home", tmp_path, "--lines", 2)
    assert (seen.code, seen.out, seen.err) == (0, "b\n?[2Jc\n", f"ftnode: {path}\n")
    assert ftnode("logs", "--home", tmp_path, "--lines", 0).out == ""
    assert ftnode("logs", "--home", tmp_path).out == "a\nb\n?[2Jc\n"


def test_many_lines(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    text = "".join(f"{number} {'x' * 90}\n" for number in range(5000))
    written(tmp_path / "logs" / "tiny-1" / "20260101-000000-1", text, 1000)
    seen = ftnode("logs", "--home", tmp_path, "--lines", 3000)
    assert seen.out == "".join(text.splitlines(keepends=True)[-3000:])


def test_a_node_that_runs_says_where_it_writes(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    home = tmp_path / "home"
    written(home / "logs" / "tiny-1" / "20260101-000000-1", "earlier\n", 3000)
    chosen = written(tmp_path / "chosen", "now\n", 2000)
    home.chmod(0o700)
    note_running(home, Running(os.getpid(), "peer", "run", (), log=str(chosen.parent)))
    assert ftnode("logs", "--home", home).out == "now\n"


def test_none(tmp_path: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("logs", "--home", tmp_path).refused(66, "no node has written a log here", "--home")


def test_that_of_a_service_is_found(services: Path, ftnode: Callable[..., Seen]) -> None:
    assert ftnode("logs").refused(66, "no node has written a log here")
    written(services / "logs" / "tiny-1" / "20260101-000000-1", "the service\n", 1000)
    assert ftnode("logs").out == "the service\n"
    address = f"/ip4/127.0.0.1/tcp/1/p2p/{'12D3KooWAxSo3u5oUXETjWEX4qhVppSzG8cDVf58mmKzu1zGr3gP'}"
    note_running(services, Running(os.getpid(), "peer", "run", (address,)))
    assert ftnode("status", "--timeout", 1).refused(69, address), "its node is asked"


def test_a_service_of_somebody_else_is_named(
    services: Path, ftnode: Callable[..., Seen], monkeypatch: pytest.MonkeyPatch
) -> None:
    services.mkdir()
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != services)
    assert ftnode("logs").refused(77, str(services), "sudo ftnode logs")
    assert ftnode("status").refused(77, str(services), "sudo ftnode status")


def test_it_follows_into_the_next_file(tmp_path: Path) -> None:
    path = written(tmp_path / "logs" / "tiny-1" / "20260101-000000-1", "first\n", 1000)
    command = [sys.executable, "-m", "ftnode.node.cli", "logs", "--follow", "--home", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "first\n"
            with path.open("a") as file:
                file.write("second\n")
            assert process.stdout.readline() == "second\n"
            for line in ("third\n", "fourth\n"):
                path.rename(path.with_name("node.log.1"))
                path.write_text(line)
                assert process.stdout.readline() == line
            opened = [os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
            kept = [name for name in opened if "node.log" in name]
            assert kept == [str(path)], "those that were put aside take no room on the disk any more"
        finally:
            process.terminate()
