"""What checks cost: tokens a second, and bytes.

Steps in which somebody checks somebody and steps without alternate in the same run, so that what else the machine does
meanwhile meets both. The run has the usual share of checks. So what it says is what a run pays, for checks by lot and
for those of somebody who was doubted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from ftnode.lab.liars.ground import USUAL, Ground
from ftnode.lab.liars.swarm import START_SECONDS, STEP_SECONDS_MAX
from ftnode.lab.swarms.trial import Trial, open_trial
from ftnode.lab.traces.story import first_commits
from ftnode.protocol.lines.stage_work import traffic

STEPS: Final = 1000
SETTLED_STEPS: Final = 80
"""Then nobody is checked more often for being new. They are not counted."""
PACED: Final = ("--compute", "paced", "--paced-seconds", "0.02", "0.04")
TRIMMED: Final = 0.1
"""Of the shortest and of the longest steps of each kind; so many are left out."""


@dataclass(frozen=True, slots=True)
class Step:
    """`checks`: how many peers did something again in it; `shown`: tensors that were sent once more for it."""

    seconds: float
    checks: int
    shown: int


def measure(ground: Ground, steps: int = STEPS) -> dict[str, Any]:
    """One swarm whose compute sleeps."""
    layout = ground.layout
    with open_trial(ground.manifest(), options=PACED) as trial:
        names = [f"v{number}" for number in range(1, layout.volunteers + 1)]
        for name in names:
            trial.volunteer(name, hold=layout.hold)
        trial.wait("full groups", lambda story: {*story.holders(0), *story.holders(1)} >= {*names}, START_SECONDS)
        begins = trial.story.committed + SETTLED_STEPS
        trial.wait_for_step(begins + steps, START_SECONDS + STEP_SECONDS_MAX * steps)
        return figures(steps_of(trial, begins), ground)


def figures(found: Sequence[Step], ground: Ground) -> dict[str, Any]:
    """`tokens`: the share of tokens a second that checks cost; `bytes`: of what travels in a step; `longer`: by how
    much a step with a check is."""
    without = _trimmed([step.seconds for step in found if not step.checks])
    with_one = _trimmed([step.seconds for step in found if step.checks])
    extra = fmean(with_one) / fmean(without) - 1
    checked = sum(step.checks > 0 for step in found)
    manifest, holders = ground.manifest(), ground.layout.holders
    sent = sum(holders * traffic(manifest, stage, holders).total for stage in (0, 1))
    shown = sum(step.shown for step in found) / len(found) * manifest.boundary_bytes.both / 2
    return {
        "tokens": round(1 - 1 / (1 + checked / len(found) * extra), 4),
        "bytes": round(shown / sent, 4),
        "longer": round(extra, 3),
        "steps": len(found),
        "checked": checked,
    }


def steps_of(trial: Trial, begins: int) -> list[Step]:
    """Those after `begins`, by all traces."""
    did, shown = dict[int, set[str]](), Counter[int]()
    for name in trial.swarm.processes:
        for path in sorted((trial.swarm.directory / "logs" / name).glob("trace*.jsonl")):
            _read(name, path, did, shown)
    commits = first_commits(trial.story.commits)
    return [
        Step(later.time - earlier.time, len(did.get(step, ())), shown[step])
        for earlier, later in pairwise(commits)
        if (step := later.record["step"]) > begins and earlier.record["step"] == step - 1
    ]


def _read(name: str, path: Path, did: dict[int, set[str]], shown: Counter[int]) -> None:
    """`did`: who did visits again in a step; `shown`: tensors that came and were for somebody else on their path."""
    me: list[Any] = []
    for line in path.read_text().splitlines():
        if me and '"Recount"' not in line and '"Boundary"' not in line:
            continue
        try:
            record = json.loads(line)
        except ValueError:  # the last line of a trace that is being written
            continue
        me = me or record["peer"]
        event = record.get("e", [""])
        if event[0] == "Done" and event[1][0] == "Recount":
            did.setdefault(event[1][2], set()).add(name)
        elif event[0] == "Received" and event[2][0] == "Boundary":
            _, _, _, step, _, _, visit, _, to, *_ = event[2]  # a signature may follow
            shown[step] += to[visit] != me


def _trimmed(seconds: Sequence[float]) -> list[float]:
    ranked = sorted(seconds)
    left_out = int(TRIMMED * len(ranked))
    return ranked[left_out : len(ranked) - left_out]


def text(found: dict[str, Any]) -> str:
    """For people."""
    return (
        f"checks = {USUAL.checks} cost {found['tokens']:.1%} of tokens/s and {found['bytes']:.1%} of bytes: a step "
        f"with a check takes {found['longer']:.0%} longer, and {found['checked']} of {found['steps']} steps had one"
    )
