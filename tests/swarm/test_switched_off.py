"""A whole swarm of real processes that is killed and started again goes on from its disks."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.lab.swarms.swarm import descendants, wait_until_gone
from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story
from ftnode.node.owner.join_options import running_nodes
from ftnode.node.snapshots.store import SnapshotStore
from ftnode.protocol.manifest.parse import Manifest, parse
from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.types import Rung
from tests.swarm.conftest import OpenTrial

pytestmark = pytest.mark.timeout(280)
EVERY = 10


def with_snapshots(manifest: Manifest) -> Manifest:
    return replace(manifest, recovery=replace(manifest.recovery, snapshot_every=EVERY, rollback_max=10 * EVERY))


def kept_steps(trial: Trial, run: str, name: str) -> dict[int, set[int]]:
    """Stage → steps of its snapshots in this node's home."""
    found: dict[int, set[int]] = {}
    for kept in SnapshotStore(trial.swarm.processes[name].home, run).kept():
        found.setdefault(kept.stage, set()).add(kept.version.step)
    return found


def switch_off(trial: Trial, *names: str) -> None:
    """All of them at the same time."""
    for name in names:
        trial.expected_dead.add(name)
        trial.swarm.processes[name].process.send_signal(signal.SIGKILL)
    for name in names:
        trial.swarm.processes[name].process.wait()


def common(trial: Trial, run: str) -> set[int]:
    """Steps that are kept of every stage."""
    stages: dict[int, set[int]] = {}
    for name in ("v1", "v2"):
        for stage, steps in kept_steps(trial, run, name).items():
            stages.setdefault(stage, set()).update(steps)
    return set.intersection(*stages.values()) if len(stages) == 4 else set()


def test_two_nodes_that_were_killed_go_on_from_the_newest_common_step(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=2, hold=2, change=with_snapshots, numbers=True)
    run = parse(trial.swarm.manifest.read_text()).run_id
    trial.wait("two snapshots of all stages", lambda story: len(common(trial, run)) >= 2, 60.0)

    def is_between_snapshots(story: Story) -> bool:
        steps_since = story.committed - max(common(trial, run))
        return 4 <= steps_since < EVERY

    trial.wait("the middle between two snapshots", is_between_snapshots, 60.0)
    switch_off(trial, "v1", "v2")
    newest = max(common(trial, run))
    trial.story.read()
    first = {told.record["step"]: told.record["loss"] for told in trial.story.commits}
    seen = len(trial.story.installed), len(trial.story.commits)
    for name in ("v1", "v2"):  # the same identity and disk, and logs of its own
        home = trial.swarm.processes[name].home
        home.rename(home.with_name(f"{name}-again"))
        trial.volunteer(f"{name}-again", hold=2)
    trial.wait("steps after the restart", lambda story: len(story.commits) >= seen[1] + 6, 120.0)
    installed = [told.record for told in trial.story.installed[seen[0] :]]
    assert {record["stage"]: record["rung"] for record in installed} == dict.fromkeys(range(4), Rung.SNAPSHOT.value)
    assert {record["step"] for record in installed} == {newest}
    again = {told.record["step"]: told.record["loss"] for told in trial.story.commits[seen[1] :]}
    assert min(again) == newest + 1
    both = again.keys() & first.keys()
    assert both, "some steps are made twice"
    for step in both:
        assert again[step] == pytest.approx(first[step], rel=1e-6), f"step {step} is the step that it was"
    view = trial.story.view
    assert view is not None and view.lineage.from_disks and min(view.epochs) > 0


def test_who_leaves_last_saves_first_and_its_next_life_goes_on_from_there(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=1, stages=2, hold=3, change=with_snapshots)
    manifest = parse(trial.swarm.manifest.read_text())
    run = manifest.run_id
    process = trial.swarm.processes["v1"]
    trial.wait_for_step(EVERY + 3)
    trial.expected_dead.add("v1")
    assert "has left" in command("leave", process.home)
    assert "saves the head, stage 1 and stage 2 first" in process.output.read_text()
    trial.story.read()
    (step,) = {max(steps) for steps in kept_steps(trial, run, "v1").values()}
    assert trial.story.committed - 1 <= step <= trial.story.committed and step > EVERY
    commits = len(trial.story.commits)
    home = process.home
    (note,) = (home / "credits").iterdir()
    noted = json.loads(note.read_text())
    home = home.rename(home.with_name("v1-again"))
    trial.volunteer("v1-again", hold=3, options=("--name", "Ada Lovelace"))
    trial.wait("steps after the restart", lambda story: len(story.commits) >= commits + 3, 120.0)
    assert trial.story.commits[commits].record["step"] == step + 1

    (own,) = noted["credits"]
    told = json.loads(command("credits", home, "--json"))
    (row,) = told["credits"]
    of_step = 4 * manifest.batch.microbatches
    assert noted["step"] == trial.story.commits[commits - 1].record["step"] and own[1] == noted["step"] * of_step
    assert row["peer"] == own[0] and row["name"] == "Ada Lovelace" and row["seconds"] > own[2] > 0
    assert row["visits"] == own[1] + (told["credits_step"] - step) * of_step > own[1]
    shown = command("credits", home).splitlines()
    assert shown[1].split() == ["peer", "visits", "share", "hours", "brought", "back", "relayed", "name"]
    assert shown[2].startswith(own[0][-6:]) and shown[2].endswith("  Ada Lovelace") and "100.0%" in shown[2]


def computes(pid: int) -> tuple[int, ...]:
    """The compute processes below a node."""
    found = descendants(pid)
    return tuple(each for each in found if b"ftnode.node.compute.process" in Path(f"/proc/{each}/cmdline").read_bytes())


def command(verb: str, home: Path, *options: str) -> str:
    argv = [sys.executable, "-m", "ftnode.node.cli", verb, "--home", str(home), *options]
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=120).stdout


def test_who_is_alone_saves_frees_its_compute_and_goes_on_from_the_disk(open_swarm: OpenTrial) -> None:
    """Whoever joins meanwhile waits for it instead of beginning anew."""
    trial = open_swarm(volunteers=1, stages=2, hold=3, change=with_snapshots)
    process = trial.swarm.processes["v1"]
    trial.wait_for_step(3)
    computing = computes(process.process.pid)
    assert len(computing) == 1
    command("pause", process.home)
    paused = running_nodes(process.home)[0].paused
    assert "is on this disk, as it was after step" in paused
    step = int(paused.partition("after step ")[2].partition(";")[0])
    assert step > 0 and wait_until_gone(computing, 2.0) == () and process.alive
    trial.story.read()
    commits = len(trial.story.commits)
    trial.volunteer("v2", hold=3)
    with pytest.raises(UserError, match="waited"):
        trial.wait("somebody to begin anew", lambda story: len(story.commits) > commits, 15.0)
    assert "goes on, and joins again" in command("resume", process.home)
    trial.story.follow("v1-2", process.log / "trace-2.jsonl")
    trial.wait("steps after the pause", lambda story: len(story.commits) >= commits + 3, 120.0)
    assert trial.story.commits[commits].record["step"] == step + 1
    lived = [told.record for told in trial.story.installed if told.record["rung"] == Rung.SNAPSHOT.value]
    assert {record["stage"] for record in lived} == {0, 1, 2} and {record["step"] for record in lived} == {step}
