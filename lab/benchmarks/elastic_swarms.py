"""The swarms of `ftnode lab elastic`: one that a newcomer joins and a replica leaves by SIGKILL, and those whose
training losses are compared."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ftnode.lab.audit.audit import audit
from ftnode.lab.benchmarks.elastic_times import (
    STEPS_BEFORE,
    WINDOW_SECONDS,
    find_join,
    loss_curve,
    tell_join,
    tell_kill,
)
from ftnode.lab.demo.kills import Planned, strike
from ftnode.lab.demo.report import Kill, recover
from ftnode.lab.swarms.trial import FOREVER, Trial, open_trial, trial_manifest
from ftnode.lab.traces.story import Story, Told
from ftnode.node.manifests.presets import preset
from ftnode.protocol.manifest.parse import Evaluation, Manifest
from ftnode.protocol.words.errors import UserError

STAGES = 2
REPLICAS = 2
GROUPS = range(STAGES + 1)
COMPUTE = ("torch", "paced")
PACED_SECONDS = (0.04, 0.08)
"""Forward and backward of a stage; the cores are idle then, as they are when each volunteer has its own."""
PACED_LAYERS, PACED_SEQUENCES = 2, 4
"""A layer of the preset `small` in each stage: 38 MB with the optimiser's moments, 1 MB a boundary tensor."""
CURVE_STEPS = 100
FIRST_KILL, KILL_EVERY, LAST_KILL = 10, 15, 90
SETTLE_STEPS = 5
STEPS_AFTER = 3
"""Enough for a new holder to have done something."""
JOIN_SECONDS = 120.0
STEP_SECONDS = 120.0
CURVE_SECONDS = 900.0


def elastic_manifest(compute: str, steps: int = FOREVER) -> Manifest:
    """Two block stages and the head, two holders of each at most; no validation, which would stand between steps."""
    start = preset("tiny" if compute == "torch" else "compute-bound")
    if compute == "paced":
        start = replace(
            start,
            model=replace(start.model, layers=PACED_LAYERS),
            batch=replace(start.batch, sequences=PACED_SEQUENCES),
        )
    manifest = trial_manifest(start, steps=steps, stages=STAGES, replicas=REPLICAS)
    return replace(manifest, evaluation=Evaluation(every=0, microbatches=1))


def join_and_lose(compute: str, directory: Path | None = None) -> dict[str, Any]:
    """One holder a stage; a newcomer joins; when every stage has two, one of them is killed."""
    with open_trial(elastic_manifest(compute), directory) as trial:
        options = ("--compute", "paced", "--paced-seconds", *map(str, PACED_SECONDS)) if compute == "paced" else ()
        for number in GROUPS:
            trial.volunteer(f"volunteer-{number + 1}", options=options)
        trial.wait_for_step(SETTLE_STEPS + STEPS_BEFORE, JOIN_SECONDS + STEP_SECONDS)
        join = _join(trial, "newcomer", options)
        for number in range(sum(REPLICAS - len(trial.story.holders(stage)) for stage in GROUPS)):
            _join(trial, f"replica-{number + 1}", options)
        killed = _lose(trial)
        return {"join": join, "kill": killed, "audit": _verdict(trial)}


def _join(trial: Trial, name: str, options: Sequence[str]) -> dict[str, Any]:
    asked = time.monotonic()
    trial.volunteer(name, options=options)
    trial.wait(f"{name} to join", lambda story: _is_in(story, name), JOIN_SECONDS)
    trial.wait_for_step(trial.story.committed + STEPS_AFTER, STEP_SECONDS)
    return tell_join(find_join(_everything(trial), name, asked), trial.story.commits)


def _is_in(story: Story, name: str) -> bool:
    return story.view is not None and story.peers.get(name) in story.view.members()


def _everything(trial: Trial) -> list[Told]:
    """All records of all traces so far, but events."""
    whole = Story()
    for name, tail in trial.story.tails.items():
        whole.follow(name, tail.path)
    return whole.read()


def _lose(trial: Trial) -> dict[str, Any]:
    """One of two holders of a block stage, not the swarm's leader, in the middle of a step."""
    trial.wait_for_step(trial.story.committed + SETTLE_STEPS, STEP_SECONDS)
    _let_pass(trial, time.monotonic())
    kill = _kill(trial, next(stage for stage in GROUPS if stage and not _led(trial.story, stage)))
    recovery = recover(trial.story, kill)
    assert recovery is not None
    _let_pass(trial, kill.time)
    return tell_kill(kill, recovery, trial.story.commits)


def _led(story: Story, stage: int) -> bool:
    """Whoever would be killed leads the swarm."""
    return story.view is not None and story.name(story.view.leader) == story.holder(stage)


def _let_pass(trial: Trial, since: float) -> None:
    """Until a step is committed after the window that begins at `since`."""
    until = since + WINDOW_SECONDS
    trial.wait(
        "the window", lambda story: max(told.time for told in story.commits) > until, WINDOW_SECONDS + STEP_SECONDS
    )


def _kill(trial: Trial, stage: int) -> Kill:
    """And wait for the next step. Raises UserError (75) when the moment does not come, or the step."""
    struck = strike(trial.swarm, trial.story, [Planned(stage, trial.story.committed + 1)])
    if not struck:
        raise UserError(f"stage {stage} never was in the middle of a step", 75)
    (kill,) = struck
    trial.expected_dead.add(kill.node)
    trial.wait("the next step", lambda story: recover(story, kill) is not None, STEP_SECONDS)
    return kill


def _verdict(trial: Trial) -> str:
    trial.swarm.stop()
    return audit(trial.swarm.directory / "logs").verdict


# -- training losses


def train(disturbed: bool, directory: Path | None = None) -> dict[str, Any]:
    """A whole run of six volunteers: its losses, the steps in which replicas were killed, and those after which
    newcomers were in."""
    with open_trial(elastic_manifest("torch", CURVE_STEPS), directory) as trial:
        for number in range(REPLICAS * len(GROUPS)):
            trial.volunteer(f"volunteer-{number + 1}")
        trial.wait_for_step(1)
        kills = _disturb(trial) if disturbed else []
        trial.wait_for_step(CURVE_STEPS, CURVE_SECONDS)
        commits = trial.story.commits
        begin, end = (min(told.time for told in commits), max(told.time for told in commits))
        return {
            "curve": loss_curve(commits),
            "seconds": end - begin,
            "killed": [kill.step for kill in kills],
            "visits": [kill.accumulated for kill in kills],
            "joined": _joined(trial.story),
            "rungs": sorted({str(told.record["rung"]) for told in trial.story.installed}),
            "audit": _verdict(trial),
        }


def _disturb(trial: Trial) -> list[Kill]:
    """One replica after another, of the stage that was struck longest ago; a newcomer is started for each."""
    kills: list[Kill] = []
    turns = list(GROUPS)
    for step in range(FIRST_KILL, LAST_KILL + 1, KILL_EVERY):
        trial.wait_for_step(step - 1, CURVE_SECONDS)
        trial.wait("two holders of some stage", lambda story: bool(_pairs(story)), JOIN_SECONDS)
        stage = next(stage for stage in turns if stage in _pairs(trial.story))
        if trial.story.committed > LAST_KILL:
            break
        kills.append(_kill(trial, stage))
        turns.remove(stage)
        turns.append(stage)
        trial.volunteer(f"newcomer-{len(kills)}")
    return kills


def _pairs(story: Story) -> list[int]:
    return [stage for stage in GROUPS if len(story.holders(stage)) == REPLICAS]


def _joined(story: Story) -> list[int]:
    """The last step before each newcomer was in."""
    found = []
    for name in (name for name in story.peers if name.startswith("newcomer")):
        moments = [told.time for told, view in story.views if story.peers[name] in view.members()]
        if moments:
            found.append(max(told.record["step"] for told in story.commits if told.time <= min(moments)))
    return sorted(found)
