"""A volunteer whose disk is full: its writers say one line each at most, and the node does what it is told."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ftnode.lab.swarms.swarm import descendants, wait_until_gone
from ftnode.lab.swarms.trial import open_trial, small_manifest
from tests.swarm.conftest import PACED, WAIT_SECONDS, wait

STARTED_SECONDS = 12.0
"""After so long a node has started, or has said why not."""

pytestmark = [
    pytest.mark.timeout(280),
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("mount") is None, reason="only root can mount a small disk"),
]


@contextmanager
def small_disk(folder: Path, size: str = "4m") -> Iterator[None]:
    folder.mkdir(parents=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.decode()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return


def command(verb: str, home: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ftnode.node.cli", verb, "--home", str(home)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)


def test_a_volunteer_on_a_full_disk_trains_pauses_resumes_and_leaves(tmp_path: Path, text: Path) -> None:
    heard = tmp_path / "heard.log"
    home, logs = tmp_path / "homes" / "v2", tmp_path / "logs" / "v2"
    manifest = small_manifest(text, 2)
    with small_disk(home), small_disk(logs), open_trial(manifest, tmp_path, text, options=PACED) as trial:
        trial.volunteer("v1", hold=3)
        trial.wait_for_step(3)
        (home / "output.log").symlink_to(heard)  # what it says is the test's
        process = trial.volunteer("v2", hold=3)

        def told() -> str:
            return heard.read_text(errors="replace")

        trial.wait("both to hold it all", lambda story: story.view is not None and len(story.view.members()) == 2)
        trial.wait_for_step(trial.story.committed + 2)
        fill(home)
        fill(logs)
        for name in ("metrics.jsonl", "trace.jsonl"):
            wait(name, told, lambda said, name=name: f"{logs / name}: No space left" in said)  # type: ignore[misc]
        trial.wait_for_step(trial.story.committed + 5)
        assert trial.story.view is not None and len(trial.story.view.members()) == 2, "it takes part as before"

        paused = command("pause", home)
        assert paused.returncode == 73 and "nodes that run are told all the same" in paused.stderr
        assert "rests after" in paused.stdout and "Traceback" not in paused.stderr
        assert wait_until_gone(descendants(process.process.pid), 2.0) == () and process.alive
        resumed = command("resume", home)
        assert resumed.returncode == 73 and "Traceback" not in resumed.stderr
        wait("its next life", told, lambda said: said.count("  join ") == 2)
        trial.wait("it to be back", lambda story: story.view is not None and len(story.view.members()) == 2)
        trial.wait_for_step(trial.story.committed + 3)
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(WAIT_SECONDS) == 0
        said = told()
        assert "Traceback" not in said and said.count("left the swarm") == 1
        for name, lives in (("node.log", 1), ("metrics.jsonl", 2), ("trace.jsonl", 1), ("trace-2.jsonl", 1)):
            assert said.count(f"{logs / name}: No space left") == lives, said
        assert said.count(f"cannot write to {home / 'running'}") >= 1


@pytest.mark.parametrize(("full", "says"), [("home", "E73-identity"), ("logs", "E73")])
def test_a_start_on_a_full_disk_is_one_line_with_a_code(tmp_path: Path, text: Path, full: str, says: str) -> None:
    """Or no line at all, where nothing of it is needed."""
    place = tmp_path / "disk"
    with small_disk(place, "64k"), open_trial(small_manifest(text, 1), tmp_path, text) as trial:
        fill(place)
        home = place / "home" if full == "home" else tmp_path / "home"
        log = place / "log" if full == "logs" else tmp_path / "log"
        argv = [
            sys.executable, "-m", "ftnode.node.cli", "join", trial.swarm.manifest, "--allow-unsigned", "--peer",
            trial.swarm.address, "--data", text, "--home", home, "--log-dir", log, "--run-on-battery",
        ]  # fmt: skip
        process = subprocess.Popen([*map(str, argv)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            process.wait(STARTED_SECONDS)
        except subprocess.TimeoutExpired:  # a disk that makes empty files is no reason to end
            assert full == "logs"
            process.terminate()
        out, err = process.communicate(timeout=60)
        assert "Traceback" not in out + err
        if process.returncode:
            assert process.returncode == 73 and says in err and err.count("\n") == 1, err
