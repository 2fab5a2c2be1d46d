"""A real node that keeps its stages: while it trains, when it is asked, with a failing disk, and when it is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.lab.swarms.swarm import Process
from ftnode.lab.swarms.trial import Trial, open_trial, small_manifest
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.protocol.manifest.parse import Manifest, parse
from tests.swarm.conftest import PACED

pytestmark = pytest.mark.timeout(180)

STAGES, EVERY = 2, 5


def keeping(manifest: Manifest) -> Manifest:
    return replace(manifest, recovery=replace(manifest.recovery, snapshot_every=EVERY))


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "ftnode.node.cli", "snapshots", *map(str, arguments)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)


def newest(process: Process, run: str) -> dict[int, int]:
    """The newest step that is kept of each stage."""
    found: dict[int, int] = {}
    for kept in SnapshotStore(process.home, run).kept():
        found.setdefault(kept.stage, kept.version.step)
    return found


@pytest.fixture
def trial(tmp_path: Path, text: Path) -> Iterator[Trial]:
    """Somebody alone; killed at the end, so that no audit of the whole run can pass."""
    with open_trial(keeping(small_manifest(text, STAGES)), tmp_path, text, options=PACED) as opened:
        opened.volunteer("v1", hold=STAGES + 1)
        yield opened


def test_a_node_keeps_its_stages_and_loses_none_when_it_is_killed(trial: Trial) -> None:
    process = trial.swarm.processes["v1"]
    run = parse(trial.swarm.manifest.read_text()).run_id
    trial.wait("snapshots of all stages", lambda _: len(newest(process, run)) == STAGES + 1)
    assert all(step % EVERY == 0 for step in newest(process, run).values())

    place = process.home / "once"
    asked = json.loads(command("save", place, "--home", process.home, "--json").stdout)
    assert {each["stage"] for each in asked["saved"]} == set(range(STAGES + 1)) and asked["troubles"] == []
    assert command("verify", *(each["folder"] for each in asked["saved"]), "--home", process.home).returncode == 0
    again = command("save", place, "--home", process.home)
    assert again.returncode == 73 and "is there already" in again.stderr

    # A disk that fails: nothing can be made in the folder of snapshots, which is away.
    folder, away = process.home / "snapshots", process.home / "away"
    folder.rename(away)
    folder.write_text("in the way")
    trial.wait("it to say so", lambda _: "cannot keep stage" in process.output.read_text())
    trial.wait_for_step(trial.story.committed + EVERY)
    folder.unlink()
    away.rename(folder)
    reached = trial.story.committed
    trial.wait("snapshots again", lambda _: min(newest(process, run).values()) > reached)

    trial.expected_dead.add("v1")
    process.process.kill()
    process.process.wait(30)
    kept = newest(process, run)
    assert set(kept) == set(range(STAGES + 1))
    checked = command("verify", "--home", process.home)
    assert checked.returncode == 0, checked.stderr
    assert len(json.loads(command("list", "--home", process.home, "--json").stdout)["snapshots"]) >= STAGES + 1
