"""`ftnode lab pause`: what a pause costs the swarm, and how soon the owner of the machine has it back.

A swarm in which every stage has two holders; one that does not lead is paused and resumed, as often as asked. Times
are read off the traces and off the process table: from the command to the end of the hand-over, from there until
every child of the node is gone, the longest step meanwhile, and from the resume to the first microbatch counted.
"""

from __future__ import annotations

import json
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ftnode.lab.audit.audit import audit
from ftnode.lab.swarms.memory import pss_bytes
from ftnode.lab.swarms.swarm import Process, descendants
from ftnode.lab.swarms.trial import FOREVER, Trial, open_trial, trial_manifest
from ftnode.lab.traces.story import Story, first_commits
from ftnode.node.machine.child_processes import is_running
from ftnode.node.manifests.presets import preset
from ftnode.node.owner.control_socket import ask, socket_path
from ftnode.node.owner.join_options import running_nodes
from ftnode.node.owner.pause_notes import ALL, write_word
from ftnode.node.owner.pause_rules import Word
from ftnode.protocol.words.errors import UserError

STAGES = 1
REPLICAS = 2
SETTLE_STEPS = 8
"""Between two changes of members."""
AFTER_STEPS = 5
"""Steps after the pause that count as meanwhile."""
FREE_BUDGET_SECONDS = 2.0
STALL_BUDGET_STEPS = 1.0
WAIT_SECONDS = 120.0
POLL_SECONDS = 0.005
PARTS = ("hand_over_seconds", "free_seconds", "stall_steps", "resume_seconds", "resting_megabytes", "freed_megabytes")


def run(json_output: bool = False, runs: int = 5, directory: Path | None = None) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures; `passed` says whether the budgets held. About a minute
    and twenty seconds a pause."""
    found, audited = measure(runs, directory)
    figures: dict[str, Any] = {
        "runs": found,
        "median": {part: median(each[part] for each in found) for part in PARTS},
        "worst": {part: max(each[part] for each in found) for part in PARTS},
        "audit": audited,
    }
    worst = figures["worst"]
    in_time = worst["free_seconds"] <= FREE_BUDGET_SECONDS and worst["stall_steps"] <= STALL_BUDGET_STEPS
    figures["passed"] = in_time and audited == "passed"
    print(json.dumps(figures, indent=2) if json_output else table(figures))
    return figures


def measure(runs: int, directory: Path | None) -> tuple[list[dict[str, float]], str]:
    """The pauses, and what the audit says of the whole run."""
    manifest = trial_manifest(preset("tiny"), steps=FOREVER, stages=STAGES, replicas=REPLICAS)
    with open_trial(manifest, directory) as trial:
        for number in range((STAGES + 1) * REPLICAS):
            trial.volunteer(f"volunteer-{number + 1}")
        lives = dict.fromkeys(trial.swarm.processes.keys() - {"bootstrap"}, 1)
        found = []
        for _ in range(runs):
            trial.wait("two holders of each stage", _is_full)
            trial.wait_for_step(trial.story.committed + SETTLE_STEPS)
            name = _follower(trial)
            found.append(_pause(trial, trial.swarm.processes[name], lives[name]))
            lives[name] += 1
        trial.swarm.stop()
        return found, audit(trial.swarm.directory / "logs").verdict


def _is_full(story: Story) -> bool:
    return story.view is not None and all(len(group) == REPLICAS for group in story.view.holders)


def _follower(trial: Trial) -> str:
    """A member that does not lead, by the name of its process."""
    view = trial.story.view
    assert view is not None
    peer = max(peer for peer in view.members() if peer != view.leader)
    return trial.story.name(peer).partition("/")[0]


def _pause(trial: Trial, process: Process, life: int) -> dict[str, float]:
    """One pause and its end. `life`: the node's present one, from 1."""
    family = descendants(process.process.pid)
    held = sum(pss_bytes(child) for child in (process.process.pid, *family))
    asked = time.monotonic()
    _say(process, True)
    while any(is_running(child) for child in family):
        if time.monotonic() - asked > WAIT_SECONDS:
            raise UserError(f"{process.name} does not rest after {WAIT_SECONDS:g} s; {process.tail()}", 75)
        time.sleep(POLL_SECONDS)
    free = time.monotonic()
    ended = _end(process.log / _trace_name(life))
    trial.wait_for_step(trial.story.committed + AFTER_STEPS, WAIT_SECONDS)
    stall = _stall_steps(trial.story, asked)
    resting = pss_bytes(process.process.pid)
    name = f"{process.name}/{life + 1}"
    trial.story.follow(name, process.log / _trace_name(life + 1))
    resumed = time.monotonic()
    _say(process, False)
    first: list[float] = []

    def contributes(story: Story) -> bool:
        """The story has read what is new: the time is the record's own."""
        first.extend(_first_counted(process.log / _trace_name(life + 1)) if name in _counting(story) else [])
        return bool(first)

    trial.wait(f"{name} to count a microbatch", contributes, WAIT_SECONDS)
    return {
        "hand_over_seconds": ended - asked,
        "free_seconds": free - ended,
        "stall_steps": stall,
        "resume_seconds": first[0] - resumed,
        "resting_megabytes": resting / 1e6,
        "freed_megabytes": (held - resting) / 1e6,
    }


def _say(process: Process, paused: bool) -> None:
    """As `ftnode pause` and `ftnode resume` do, without the start of a Python."""
    write_word(process.home, ALL, Word(paused, None, time.time()))
    (running,) = running_nodes(process.home)
    ask(socket_path(process.home, running.peer), "pause" if paused else "resume")


def _trace_name(life: int) -> str:
    return "trace.jsonl" if life == 1 else f"trace-{life}.jsonl"


def _end(path: Path) -> float:
    """When a life was over, by its trace."""
    return float(json.loads(path.read_bytes().splitlines()[-1])["t"])


def _counting(story: Story) -> set[str]:
    return {node for node, _ in story.accumulated}


def _first_counted(path: Path) -> list[float]:
    """When a life counted its first microbatch; empty before."""
    lines = (line for line in path.read_bytes().splitlines(keepends=True) if b'"k":"accumulated"' in line[:80])
    first = next((line for line in lines if line.endswith(b"\n")), None)
    return [] if first is None else [float(json.loads(first)["t"])]


def _stall_steps(story: Story, asked: float) -> float:
    """How much longer than usual the longest step was since the pause was asked for, in steps as they were before."""
    times = [told.time for told in first_commits(story.commits)]
    steps = [(later, later - earlier) for earlier, later in pairwise(times)]
    before = [seconds for moment, seconds in steps if moment <= asked][-SETTLE_STEPS:]
    return max(seconds for moment, seconds in steps if moment > asked) / median(before) - 1.0


def table(figures: dict[str, Any]) -> str:
    names = ("hand-over s", "free s", "stall steps", "resume s", "resting MB", "freed MB")
    lines = [f"{'':<8}" + "".join(f"{name:>13}" for name in names)]
    rows = [(str(number), each) for number, each in enumerate(figures["runs"], 1)]
    rows += [(name, figures[name]) for name in ("median", "worst")]
    lines += [f"{name:<8}" + "".join(f"{row[part]:>13.3f}" for part in PARTS) for name, row in rows]
    budget = f"at most {FREE_BUDGET_SECONDS:g} s until free, and a stall of {STALL_BUDGET_STEPS:g} step"
    return "\n".join([*lines, f"budget: {budget}; audit: {figures['audit']}"])
