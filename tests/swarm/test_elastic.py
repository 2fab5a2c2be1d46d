"""Stages with many holders, on real processes: a run that begins with one peer, grows, and shrinks."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace

from ftnode.lab.swarms.swarm import Process
from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.recovery.standing import DONE_AGAIN
from tests.swarm.conftest import kill_replicas, sizes

OpenTrial = Callable[..., Trial]
STAGES = 2
GROW_SECONDS = 60.0


def elastic(replicas: int) -> Callable[[Manifest], Manifest]:
    return lambda manifest: replace(manifest, pipeline=replace(manifest.pipeline, replicas=replicas))


def test_a_run_begins_with_one_peer_and_spreads_out(open_swarm: OpenTrial) -> None:
    """Each newcomer takes a stage over while the others train; then they are replicas; nothing was rebuilt for it."""
    trial = open_swarm(volunteers=1, stages=STAGES, hold=STAGES + 1, change=elastic(2))
    assert len({trial.story.holder(stage) for stage in range(STAGES + 1)}) == 1
    for count in range(2, 2 * STAGES + 3):
        trial.volunteer(f"late{count}", hold=STAGES + 1)

        def is_in(story: Story, count: int = count) -> bool:
            view = story.view
            return view is not None and len(view.members()) == count

        trial.wait(f"{count} holders", is_in, GROW_SECONDS)
        if count == STAGES + 1:
            assert sizes(trial.story) == [1] * (STAGES + 1)
            assert len({trial.story.holder(stage) for stage in range(STAGES + 1)}) == STAGES + 1
    assert sizes(trial.story) == [2] * (STAGES + 1)
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)
    rungs = {told.record["rung"] for told in trial.story.installed}
    assert rungs == {"initial", "replica"}


def test_a_killed_replica_costs_nothing_but_time(open_swarm: OpenTrial) -> None:
    """The audit compares the replicas' weights. What the run ends with is test_exactness.py's, in both precisions."""
    trial = open_swarm(volunteers=2 * (STAGES + 1), stages=STAGES, change=elastic(2), numbers=True)
    trial.wait("full groups", lambda story: sizes(story) == [2] * (STAGES + 1), GROW_SECONDS)
    for stage in range(STAGES + 1):
        kill_replicas(trial, stage, seconds=GROW_SECONDS)
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)
    assert {told.record["rung"] for told in trial.story.installed} == {"initial", "replica"}


def test_the_leader_of_groups_dies_in_mid_step_and_the_step_goes_on(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=2 * (STAGES + 1), stages=STAGES, change=elastic(2))
    trial.wait("full groups", lambda story: sizes(story) == [2] * (STAGES + 1), GROW_SECONDS)
    before = trial.story.view
    assert before is not None
    name = trial.story.name(before.leader)
    (stage,) = before.stages_of(before.leader)
    next_step = trial.story.committed + 2
    trial.wait("its part of a step", lambda story: story.progress(name, stage) > (next_step, 0), GROW_SECONDS)
    killed_at = trial.kill(name)
    trial.wait("a view without it", lambda story: sizes(story)[stage] == 1, GROW_SECONDS)
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)
    after = trial.story.view
    assert after is not None and after.leader != before.leader
    assert after.lineage == before.lineage and after.epochs == before.epochs, "nobody was alone with a stage"
    assert {told.record["rung"] for told in trial.story.installed} == {"initial", "replica"}
    resumed = min(told.time for told in trial.story.commits if told.time > killed_at)
    assert resumed - killed_at < GROW_SECONDS


def test_groups_of_four_lose_members_of_two_stages_at_once(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=8, stages=1, change=elastic(4))
    trial.wait("full groups", lambda story: sizes(story) == [4, 4], GROW_SECONDS)
    for left in (3, 2):
        kill_replicas(trial, 0, 1, seconds=GROW_SECONDS)
        trial.wait("a view without them", lambda story, left=left: sizes(story) == [left, left], GROW_SECONDS)  # type: ignore[misc]
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)
    assert {told.record["rung"] for told in trial.story.installed} == {"initial", "replica"}


def test_a_run_grows_to_six_and_shrinks_to_two_without_losing_a_step(open_swarm: OpenTrial) -> None:
    """Ctrl-C, SIGTERM or `ftnode leave`: others learn what only the leaver holds, and no attempt is given up."""
    trial = open_swarm(volunteers=1, stages=STAGES, hold=STAGES + 1, change=elastic(2))
    for count in range(2, 7):
        trial.volunteer(f"late{count}", hold=STAGES + 1)
        trial.wait(f"{count} holders", lambda story, count=count: has_members(story, count), GROW_SECONDS)  # type: ignore[misc]
    assert sizes(trial.story) == [2] * (STAGES + 1)
    for count, (name, how) in enumerate([("v1", "INT"), ("late2", "TERM"), ("late3", "leave"), ("late4", "leave")]):
        trial.expected_dead.add(name)
        leave(trial.swarm.processes[name], how)
        trial.wait(
            f"{name} to leave",
            lambda story, count=count: has_members(story, 5 - count),  # type: ignore[misc]
            GROW_SECONDS,
        )
        assert trial.swarm.processes[name].process.wait(GROW_SECONDS) == 0
    assert trial.story.view is not None
    assert {trial.story.name(peer) for peer in trial.story.view.members()} == {"late5", "late6"}
    trial.wait_for_step(trial.story.committed + 5, GROW_SECONDS)
    assert {told.record["rung"] for told in trial.story.installed} == {"initial", "replica"}
    told = [str(note.record["text"]) for note in trial.story.notes]
    assert not [text for text in told if DONE_AGAIN in text or "is skipped" in text]


def has_members(story: Story, count: int) -> bool:
    return story.view is not None and len(story.view.members()) == count


def leave(process: Process, how: str) -> None:
    """`how`: a signal, or the command."""
    if how != "leave":
        process.process.send_signal(signal.Signals[f"SIG{how}"])
        return
    command = [sys.executable, "-m", "ftnode.node.cli", "leave", "--home", str(process.home), "--timeout", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    assert done.returncode == 0, done.stderr
    assert "has left after" in done.stdout
