"""What a real swarm does when parts of it are killed, stopped or start at the same moment."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from ftnode.lab.demo.kills import Planned, strike
from ftnode.lab.demo.report import recover
from ftnode.lab.swarms import swarm
from ftnode.lab.swarms.swarm import descendants, wait_until_gone
from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story
from ftnode.models.config import ModelConfig
from ftnode.node.machine.child_processes import is_running
from ftnode.protocol.manifest.parse import Manifest, parse
from ftnode.protocol.words.types import HEAD
from ftnode.protocol.words.view import View
from tests.swarm.conftest import STAGES, OpenTrial

pytestmark = pytest.mark.timeout(240)

MORE_STEPS = 5
HEAL_SECONDS = 30.0
STOPPED_HEAL_SECONDS = 15.0


def view_of(trial: Trial) -> View:
    view = trial.story.view
    assert view is not None
    return view


def holder(trial: Trial, stage: int) -> str:
    name = trial.story.holder(stage)
    assert name is not None
    return name


def moves_on(trial: Trial, seconds: float = HEAL_SECONDS) -> None:
    trial.story.read()
    trial.wait_for_step(trial.story.committed + MORE_STEPS, seconds)


def kill_in_mid_step(trial: Trial, stage: int) -> None:
    (kill,) = strike(trial.swarm, trial.story, [Planned(stage, trial.story.committed + 2)])
    trial.expected_dead.add(kill.node)
    trial.wait(f"stage {stage} to come back", lambda story: recover(story, kill) is not None, HEAL_SECONDS)
    recovery = recover(trial.story, kill)
    assert recovery is not None
    assert recovery.rung == "blend"
    assert recovery.outage_seconds < HEAL_SECONDS


def child_of(trial: Trial, name: str, word: str) -> int:
    """The process below a node whose command line has `word` in it."""
    found = swarm.child_of(trial.swarm.processes[name].process.pid, word)
    assert found is not None, f"{name} has no {word} process"
    return found


def test_a_middle_stage_is_blended_and_the_step_redone(open_swarm: OpenTrial) -> None:
    """In float64: the audit blends the donors' weights again, from dumps of 8 bytes a number. The demo does so in
    float32 (test_demo.py)."""

    def widen(manifest: Manifest) -> Manifest:
        return replace(manifest, model=replace(manifest.model, precision="float64"))

    trial = open_swarm(volunteers=STAGES + 2, change=widen, numbers=True)
    kill_in_mid_step(trial, 2)
    moves_on(trial)
    model = ModelConfig.of(parse(trial.swarm.manifest.read_text()).model)
    sizes = {8 * model.stage_parameters(STAGES, stage) for stage in range(STAGES + 1)}
    dumps = list((trial.swarm.directory / "logs").rglob("*.weights"))
    assert len(dumps) >= 3 and {path.stat().st_size for path in dumps} <= sizes


def test_two_non_adjacent_stages_are_lost_together(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=8, stages=5)
    victims = [holder(trial, 2), holder(trial, 4)]
    for victim in victims:
        trial.kill(victim)
    trial.wait(
        "both stages to be held by others",
        lambda story: all(story.holder(stage) not in (None, *victims) for stage in (2, 4)),
        HEAL_SECONDS,
    )
    moves_on(trial)
    rungs = {told.record["stage"]: told.record["rung"] for told in trial.story.installed if told.record["step"]}
    assert rungs == {2: "blend", 4: "blend"}


def test_a_killed_directory_costs_neither_stage_nor_weights(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=STAGES + 1)
    victim, view = holder(trial, 2), view_of(trial)
    first = child_of(trial, victim, "ftnode.node.directory.process")
    os.kill(first, signal.SIGKILL)
    assert wait_until_gone([first]) == ()
    moves_on(trial)
    deadline = time.monotonic() + HEAL_SECONDS
    while swarm.child_of(trial.swarm.processes[victim].process.pid, "ftnode.node.directory.process") is None:
        assert time.monotonic() < deadline, "the directory was not started again"
        time.sleep(0.1)
    assert view_of(trial).holders == view.holders


def test_a_node_whose_compute_dies_gives_the_stage_up_at_once_and_is_a_standby(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=STAGES + 2)
    victim = holder(trial, 2)
    killed = time.monotonic()
    os.kill(child_of(trial, victim, "ftnode.node.compute.process"), signal.SIGKILL)
    trial.wait("another holder of stage 2", lambda story: story.holder(2) not in (None, victim), HEAL_SECONDS)
    moves_on(trial)
    said = [told for told in trial.story.notes if told.node == victim and told.time > killed]
    assert any("compute is lost" in told.record["text"] for told in said)
    assert trial.swarm.processes[victim].alive
    # A standby again: when its successor dies, there is nobody else to take the stage.
    trial.kill(holder(trial, 2))
    trial.wait("the first holder to have stage 2 again", lambda story: story.holder(2) == victim, HEAL_SECONDS)
    moves_on(trial)


def test_the_bootstrap_may_die_and_come_back_as_itself(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=STAGES + 1)
    address = trial.swarm.address
    trial.kill("bootstrap")
    moves_on(trial)
    listen = address.rpartition("/p2p/")[0]
    trial.expected_dead.discard("bootstrap")
    trial.swarm.start_bootstrap(listen=listen)
    assert trial.swarm.address == address
    trial.volunteer("newcomer")
    trial.wait("the newcomer to know the view", lambda story: any(told.node == "newcomer" for told, _ in story.views))
    kill_in_mid_step(trial, 2)
    assert holder(trial, 2) == "newcomer"


def test_a_stopped_holder_is_replaced_and_a_standby_when_it_goes_on(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=STAGES + 2)
    victim = holder(trial, 2)
    family = [trial.swarm.processes[victim].process.pid, *descendants(trial.swarm.processes[victim].process.pid)]
    for pid in family:
        os.kill(pid, signal.SIGSTOP)
    stopped, before = time.monotonic(), trial.story.committed
    trial.wait("another holder of stage 2", lambda story: story.holder(2) not in (None, victim), HEAL_SECONDS)
    trial.wait_for_step(before + 2, HEAL_SECONDS)
    assert time.monotonic() - stopped < STOPPED_HEAL_SECONDS
    moves_on(trial)
    number = view_of(trial).number
    for pid in reversed(family):
        os.kill(pid, signal.SIGCONT)

    def knows(story: Story) -> bool:
        return any(told.node == victim and view.number >= number for told, view in story.views)

    trial.wait("the stopped node to learn the view", knows, HEAL_SECONDS)
    moves_on(trial)
    assert trial.story.peers[victim] not in view_of(trial).members()
    assert trial.swarm.processes[victim].alive
    trial.kill(holder(trial, 2))
    trial.wait("it to stand for the stage", lambda story: story.holder(2) == victim, HEAL_SECONDS)
    moves_on(trial)


def start_leader_without_head(trial: Trial, other_text: Path) -> int:
    """v1 founds the run, and leads it, with a block stage; which one. A paced volunteer would take the head, whatever
    its text."""
    trial.volunteer("v1", options=("--data", str(other_text)))
    trial.wait("v1 to found the run", lambda story: story.view is not None)
    (stage,) = view_of(trial).stages_of(view_of(trial).leader)
    assert stage != HEAD
    assert holder(trial, stage) == "v1"
    return stage


def test_the_leader_dies_and_its_stage_is_rebuilt(open_swarm: OpenTrial, other_text: Path) -> None:
    trial = open_swarm(volunteers=0, numbers=True)
    stage = start_leader_without_head(trial, other_text)
    for number in range(2, STAGES + 3):
        trial.volunteer(f"v{number}")
    trial.wait_for_step(5)
    trial.wait("a standby", lambda story: len({told.node for told, _ in story.views}) == STAGES + 2)
    assert trial.story.name(view_of(trial).leader) == "v1"
    trial.kill("v1")
    trial.wait("another holder", lambda story: story.holder(stage) not in (None, "v1"), HEAL_SECONDS)
    moves_on(trial)
    assert view_of(trial).lineage.forks == 0


def test_simultaneous_start_ends_in_one_swarm_with_each_stage_held_once(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=STAGES + 3)
    view = view_of(trial)
    holders = [peer for group in view.holders for peer in group]
    assert [len(group) for group in view.holders] == [1] * (STAGES + 1)
    assert len(set(holders)) == STAGES + 1
    moves_on(trial)
    trial.wait(
        "everybody to know the one lineage",
        lambda story: {told.node for told, seen in story.views if seen.lineage == view.lineage} == set(story.peers),
        HEAL_SECONDS,
    )
    assert len({told.record["lineage"] for told in trial.story.commits}) == 1


def test_of_two_volunteers_the_survivor_founds_a_lineage_and_goes_on(open_swarm: OpenTrial, other_text: Path) -> None:
    trial = open_swarm(volunteers=0, stages=2, numbers=True)
    start_leader_without_head(trial, other_text)
    trial.volunteer("v2", hold=3)
    trial.wait_for_step(5)
    trial.kill("v1")
    trial.wait("a forked lineage", lambda story: story.view is not None and story.view.lineage.forks == 1, HEAL_SECONDS)
    moves_on(trial)
    assert view_of(trial).holders == ((trial.story.peers["v2"],),) * 3


def test_one_volunteer_holds_all(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=1, steps=10, hold=STAGES + 1)
    trial.wait("the run's end", lambda story: story.committed == 10 and 10 in story.evaluated, HEAL_SECONDS)
    assert len(view_of(trial).members()) == 1
    assert trial.swarm.processes["v1"].alive, "holders stay when the run is finished"


@pytest.mark.fresh
def test_no_orphan_is_left_however_a_node_ends(open_swarm: OpenTrial) -> None:
    """Standbys first: with both members gone at once nobody could write down a view without who was killed."""
    trial = open_swarm(volunteers=4, stages=1)
    view = view_of(trial)
    members = [trial.story.name(peer) for peer in view.members()]
    names = sorted(("v1", "v2", "v3", "v4"), key=lambda name: (name in members, name == trial.story.name(view.leader)))
    for name, number in zip(names, (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)):
        process = trial.swarm.processes[name].process
        family = descendants(process.pid)
        assert len(family) >= 3
        trial.expected_dead.add(name)
        process.send_signal(number)
        time.sleep(0.5)
        if number != signal.SIGKILL and process.poll() is None:
            process.send_signal(number)
        process.wait(30)
        assert wait_until_gone(family) == ()
    assert is_running(trial.swarm.processes[names[3]].process.pid)
