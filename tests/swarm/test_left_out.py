"""Real processes: nobody has room for a middle stage, the others train without it, and a newcomer brings it back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story
from ftnode.protocol.manifest.parse import parse
from tests.swarm.conftest import OpenTrial

pytestmark = pytest.mark.timeout(240)

SECONDS = 60.0
MORE_STEPS = 5
ROOM = dict.fromkeys(("v1", "v2", "v3", "v4", "v5"), 1)
"""For the head and four block stages: nobody can hold one more."""


def omitted(story: Story) -> tuple[int, ...]:
    return story.view.omitted if story.view is not None else ()


def lone_middle(trial: Trial) -> tuple[int, str]:
    """A middle stage, and its holder."""
    held = {name: [s for s in range(5) if name in trial.story.holders(s)] for name in ROOM}
    return next((stage, name) for name, (stage,) in held.items() if stage in (2, 3))


def exported_without(trial: Trial, stage: int, out: Path) -> None:
    """It has the layers of the others, and says so."""
    command = [sys.executable, "-m", "ftnode.node.cli", "export", str(trial.swarm.manifest), str(out)]
    command += ["--peer", trial.swarm.address, "--home", str(trial.swarm.directory / "reader")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0 and f"stage {stage} has no holder" in done.stdout, done
    whole = parse(trial.swarm.manifest.read_text()).model.layers
    assert json.loads((out / "config.json").read_text())["num_hidden_layers"] == whole - whole // 4
    told = json.loads((out / "provenance.json").read_text())
    assert told["left_out"] == [stage] and len(told["stages"]) == 4


def test_a_stage_that_nobody_can_hold_is_left_out_and_comes_back(open_swarm: OpenTrial, tmp_path: Path) -> None:
    trial = open_swarm(volunteers=0, stages=4, numbers=True)
    for name, room in ROOM.items():
        trial.volunteer(name, hold=room)
    trial.wait_for_step(3)
    trial.wait("a holder for each stage", lambda story: all(story.holders(stage) for stage in range(5)), SECONDS)
    stage, name = lone_middle(trial)
    trial.kill(name)
    trial.wait("the stage to be left out", lambda story: omitted(story) == (stage,), SECONDS)
    trial.wait_for_step(trial.story.committed + MORE_STEPS, SECONDS)
    assert omitted(trial.story) == (stage,)
    exported_without(trial, stage, tmp_path / "model")
    trial.volunteer("newcomer", hold=1)
    trial.wait("somebody to bring it back", lambda story: story.holder(stage) == "newcomer", SECONDS)
    trial.wait_for_step(trial.story.committed + MORE_STEPS, SECONDS)
    assert omitted(trial.story) == ()
    back = [told.record for told in trial.story.installed if told.node == "newcomer" and told.record["stage"] == stage]
    assert [donor[0] for donor in back[-1]["donors"]] == [stage - 1, stage + 1], "a blend of both neighbours"
