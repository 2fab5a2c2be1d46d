"""A machine that is taken away at a certain time, on real processes: what passes through its line is what counts."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from ftnode.lab.swarms.trial import Trial
from ftnode.protocol.manifest.parse import Manifest
from tests.swarm.conftest import OpenTrial, wait

pytestmark = pytest.mark.timeout(240)

STAGES = 4
UP = "4Mbit"
WITHIN_SECONDS = 18
ENDED_SECONDS = WITHIN_SECONDS + 4.0
"""The command that asks starts and ends, too, on a machine that has other things to do."""


def wide(manifest: Manifest) -> Manifest:
    """A block stage has 4 MB of state, ten seconds of the line; a step's tensors and sums have little."""
    model = replace(manifest.model, hidden=1664)
    batch = replace(manifest.batch, microbatches=2, sequences=1)
    return replace(manifest, model=model, batch=batch, pipeline=replace(manifest.pipeline, sums="int4"))


def unequal(open_swarm: OpenTrial) -> Trial:
    """The first holds the head, a middle stage and the last one, behind a thin line. Its neighbours keep the head's
    copy, and the third has room for everything."""
    trial = open_swarm(volunteers=0, stages=STAGES, change=wide)
    slow = ("--paced-seconds", "0.15", "0.3")
    trial.volunteer("thin", hold=3, options=(*slow, "--up", UP))
    trial.wait("somebody to found the run", lambda story: story.view is not None)
    trial.volunteer("v1", hold=1, options=slow)
    trial.wait("the second", lambda story: story.view is not None and len(story.view.members()) == 2)
    trial.volunteer("v2", hold=STAGES + 1, options=slow)
    trial.wait_for_step(3)
    return trial


def leave(trial: Trial, name: str, *options: str) -> dict[str, Any]:
    home = trial.swarm.processes[name].home
    argv = [sys.executable, "-m", "ftnode.node.cli", "leave", "--home", str(home), "--json", *options]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_last_stage_is_handed_over_and_a_middle_one_is_rebuilt(open_swarm: OpenTrial) -> None:
    """There is time for one block stage, and perhaps for the small head, of which others keep a copy."""
    trial = unequal(open_swarm)
    view, peer = trial.story.view, trial.story.peers["thin"]
    assert view is not None and view.stages_of(peer) == (0, 2, 4)
    trial.expected_dead.add("thin")
    found = leave(trial, "thin", "--within", f"{WITHIN_SECONDS}s")
    ((_, seconds),) = found["left"].items()
    assert WITHIN_SECONDS / 2 < seconds < ENDED_SECONDS
    (fate,) = found["stages"].values()
    assert 4 in fate["handed_over"] and 2 in fate["left_out"]
    text = trial.swarm.processes["thin"].output.read_text(errors="replace")
    assert "not handed over" in text and f"within {WITHIN_SECONDS} s" in text
    trial.wait_for_step(trial.story.committed + 3)
    heir = trial.swarm.processes["v2"].output
    wait("the rebuild", lambda: heir.read_text(errors="replace"), lambda text: "stage 2 starts from a blend" in text)
    said = heir.read_text(errors="replace")
    assert "stage 4 starts from another holder's weights" in said
    assert "stage 4 starts from a neighbour's weights" not in said
