"""What a node writes beside its run, on a disk that takes nothing: one line, and on; a code where it cannot begin."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from ftnode.node.home import identity
from ftnode.node.home.identity import home_directory, take_identity
from ftnode.node.home.log_format import LogFile
from ftnode.node.links import p2pd_folder
from ftnode.node.machine.child_processes import start_child
from ftnode.node.owner.announcements import Speaking
from ftnode.protocol.words.errors import UserError

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")


LIMITED = (
    "import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    "signal.signal(signal.SIGINT, signal.SIG_IGN); "  # as under nohup
    "sys.dont_write_bytecode = True; "  # half a file of bytecode would be in the way of all who come later
    "resource.setrlimit(resource.RLIMIT_FSIZE, ({0}, {0})); "
    "from ftnode.node.cli.main import main; sys.exit(main(sys.argv[1:]))"
)
"""A program whose files have so many bytes at most, which stands for a full disk."""


def no_space(*_arguments: Any, **_more: Any) -> Any:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def record(text: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text})


@needs_full
def test_a_log_that_cannot_be_written_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    log = LogFile(FULL, 1 << 20, said.append)
    for number in range(3):
        log.emit(record(f"line {number}"))
    assert said == ["cannot write /dev/full: No space left on device; it goes on without those lines"]
    assert capsys.readouterr().err == "", "no traceback for each line"


def test_a_log_that_could_be_written_meanwhile_is_said_again(tmp_path: Path) -> None:
    said: list[str] = []
    log = LogFile(tmp_path / "node.log", 1 << 20, said.append)
    log.emit(record("first"))
    stream, log.stream = log.stream, FullStream()
    log.emit(record("lost"))
    log.emit(record("lost too"))
    log.stream = stream
    log.emit(record("second"))
    log.stream = FullStream()
    log.emit(record("lost again"))
    assert len(said) == 2
    assert (tmp_path / "node.log").read_text() == "first\nsecond\n"


class FullStream(io.StringIO):
    """A file on a full disk."""

    write = no_space


def test_a_full_disk_below_standard_output_costs_lines_and_no_more() -> None:
    terminal = io.StringIO()
    with redirect_stdout(FullStream()):
        Speaking(as_json=False).say("look", "lost")
        assert isinstance(sys.stdout, FullStream), "it is tried again with the next line"
    with redirect_stdout(terminal):
        Speaking(as_json=False).say("look", "shown")
    assert "shown" in terminal.getvalue()


def test_a_child_whose_log_cannot_be_opened_starts_without_one(tmp_path: Path) -> None:
    child = start_child([sys.executable, "-c", "print(1)"], log=tmp_path / "missing" / "x.log")
    assert child.wait(30) == 0


@pytest.mark.parametrize(
    ("where", "name", "begin", "code"),
    [
        (tempfile, "mkdtemp", lambda home: p2pd_folder.private_folder(), "E73-p2pd_folder"),
        (os, "write", take_identity, "E73-identity"),
        (os, "fsync", take_identity, "E73-identity"),
    ],
    ids=["p2pd", "key", "key-sync"],
)
def test_what_a_node_cannot_begin_without_is_an_error_with_a_code(
    where: Any, name: str, begin: Callable[[Path], object], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And leaves nothing behind."""
    home = home_directory(str(tmp_path / "home"))
    monkeypatch.setattr(where, name, no_space)
    with pytest.raises(UserError, match="No space left on device") as raised:
        begin(home)
    assert raised.value.code == code and list(home.iterdir()) == []
    monkeypatch.undo()
    assert identity.take_identity(home).peer_id


def test_tensorboards_files_on_a_full_disk_are_one_line(tmp_path: Path) -> None:
    """Its writer's thread ends, and what it is given would wait for ever: a limit of file sizes stands for the disk."""
    pytest.importorskip("tensorboardX")
    lines: list[dict[str, object]] = [{"format": 1, "kind": "start", "time": 1.0}]
    lines += [{"kind": "commit", "time": 1.0, "step": step, "loss": 2.5} for step in range(1, 2000)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    argv = [sys.executable, "-c", LIMITED.format(16384), "tensorboard", str(tmp_path), str(tmp_path / "out")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 74, done
    assert done.stderr.count("\n") == 1 and "[E74-cli_tensorboard]" in done.stderr


def test_a_home_on_a_full_disk_is_told_of_in_one_line(manifest_file: Path, tmp_path: Path) -> None:
    """The manifest that cannot be kept was told of as well, before the identity that cannot be made."""
    argv = [sys.executable, "-c", LIMITED.format(0), "join", str(manifest_file), "--home", str(tmp_path / "new")]
    peer = "/ip4/127.0.0.1/tcp/9/p2p/12D3KooWA1zbZPC6d35sta3fF8sz7nWseL13tjnKrHpzDjMZeBxk"
    argv += ["--peer", peer, "--log-dir", str(tmp_path), "--compute", "paced"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 73, done
    assert done.stderr.count("\n") == 1 and "cannot write the identity" in done.stderr, done
