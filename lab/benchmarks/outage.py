"""`ftnode lab outage`: seconds from the SIGKILL of a sole holder to the next committed step, part by part.

One swarm of the demo's size loses middle stages one after another, each in the middle of a step and each with a fresh
standby waiting, as often as asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

from ftnode.lab.audit.audit import audit
from ftnode.lab.demo.kills import Planned, strike
from ftnode.lab.demo.report import Recovery, recover
from ftnode.lab.swarms.trial import FOREVER, Trial, open_trial, trial_manifest
from ftnode.lab.traces.story import Story
from ftnode.node.manifests.presets import preset
from ftnode.protocol.words.errors import UserError

STAGES = 4
MIDDLE = (2, 3)
SETTLE_STEPS = 6
"""Between a recovery and the next loss: the newcomer settles, the new standby is found."""
HEAL_SECONDS = 60.0
PARTS = ("detect_seconds", "elect_seconds", "fetch_seconds", "blend_seconds", "first_step_seconds", "outage_seconds")
BUDGET_SECONDS = 5.0


def run(json_output: bool = False, runs: int = 10, directory: Path | None = None) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures. Takes about a minute and ten seconds per loss."""
    found, audited = measure(runs, directory)
    figures = {
        "runs": [recovery.as_json() for recovery in found],
        "median": {part: median(getattr(recovery, part) for recovery in found) for part in PARTS},
        "worst": {part: max(getattr(recovery, part) for recovery in found) for part in PARTS},
        "audit": audited,
    }
    print(json.dumps(figures, indent=2) if json_output else table(figures))
    return figures


def measure(runs: int, directory: Path | None) -> tuple[list[Recovery], str]:
    """The recoveries, and what the audit says of the whole run."""
    with open_trial(trial_manifest(preset("tiny"), steps=FOREVER, stages=STAGES), directory) as trial:
        for number in range(STAGES + 1):
            trial.volunteer(f"volunteer-{number + 1}")
        trial.wait_for_step(2)
        found = [_lose(trial, MIDDLE[number % len(MIDDLE)], f"standby-{number + 1}") for number in range(runs)]
        trial.swarm.stop()
        return found, audit(trial.swarm.directory / "logs").verdict


def _lose(trial: Trial, stage: int, standby: str) -> Recovery:
    """Raises UserError when the stage is not back in time."""
    trial.volunteer(standby)
    trial.wait(f"{standby} to know the view", lambda story: any(told.node == standby for told, _ in story.views))
    trial.wait_for_step(trial.story.committed + SETTLE_STEPS)
    struck = strike(trial.swarm, trial.story, [Planned(stage, trial.story.committed + 2)])
    if not struck:
        raise UserError(f"stage {stage} never was in the middle of a step", 75)
    kill = struck[0]
    trial.expected_dead.add(kill.node)

    def is_back(story: Story) -> bool:
        return recover(story, kill) is not None

    trial.wait(f"stage {stage} to come back", is_back, HEAL_SECONDS)
    recovery = recover(trial.story, kill)
    assert recovery is not None
    return recovery


def table(figures: dict[str, Any]) -> str:
    names = [part.removesuffix("_seconds").replace("_", " ") for part in PARTS]
    lines = [f"{'':<10}" + "".join(f"{name:>12}" for name in names)]
    for number, entry in enumerate(figures["runs"], 1):
        lines.append(f"{number:<10}" + "".join(f"{entry[part]:>12.3f}" for part in PARTS))
    for name in ("median", "worst"):
        cells = [f"{figures[name][part]:>12.3f}" for part in PARTS]
        lines.append(f"{name:<10}{''.join(cells)}")
    return "\n".join([*lines, f"seconds; the budget for the outage is {BUDGET_SECONDS}; audit: {figures['audit']}"])
