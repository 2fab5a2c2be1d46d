"""`ftnode lab scaling`: what more holders of the slowest stage are worth, and what it costs when some of them die.

A swarm whose compute only sleeps, so that replicas really work at once on few cores. One slow peer founds the run, and
fast ones take its stages over, but for the head, which takes a paced peer no time, and one more. That is the slow
stage. All who come then are slow. Where they go is the swarm's decision, and is reported.

Steps are held against Odyssey's formulas (its section 3): with holders 1F1B's, where every stage but one takes its own
time, (N_m / N_dp - 1)(T_f + T_b) + the sum of all stages' T_f + T_b; with F of N_dp dead N_m / N_dp grows by
F / (N_dp - F) of itself.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from ftnode.lab.audit.audit import audit
from ftnode.lab.results.result_files import measured, write_atomically
from ftnode.lab.swarms.trial import FOREVER, Trial, open_trial, trial_manifest
from ftnode.lab.traces.story import Story, Told, first_commits
from ftnode.node.manifests.presets import preset
from ftnode.protocol.manifest.parse import Evaluation, Manifest
from ftnode.protocol.words.errors import UserError

STAGES = 3
HOLDERS = (1, 2, 4)
MICROBATCHES = 24
"""Divided by 1, 2, 3 and 4, so that no rounding stands between a step and its formula."""
WINDOW = 24
SLOW_SECONDS = (0.04, 0.08)
FAST_SECONDS = (0.005, 0.01)
"""Forward and backward; four slow holders together (0.03 s) are still slower than one fast one."""
STEADY_STEPS = 8
SETTLE_STEPS = 3
"""After a change: the new view's voters settle, and paces are told with the next heartbeats."""
JOIN_SECONDS = 90.0
STEP_SECONDS = 120.0
AIM_SECONDS = 30.0
POLL_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Lost:
    """Replicas that were sent SIGKILL in the middle of a step."""

    step: int
    nodes: tuple[str, ...]
    moment: float
    """Of the first signal, by the clock of the traces."""
    into_seconds: float
    """From the commit before until then."""
    visits: int
    """What they had accumulated of the step, which is done again."""


def run(json_output: bool = False, runs: int = 3, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures. Takes about four minutes a run.

    Raises UserError (73) when `out` is no new or empty folder.
    """
    found = measured(measure, runs, out)
    figures = summarise(found)
    text = json.dumps(figures, indent=2)
    if out is not None:
        write_atomically(out / "scaling.json", text)
    print(text if json_output else table(figures))
    return figures


# -- what is calculated


def ideal_seconds(holders: int, failed: int = 0) -> float:
    """A step's time by Odyssey's formula when `failed` of the slow stage's `holders` are dead. Raises ValueError when
    nobody is left."""
    if failed >= holders:
        raise ValueError(f"{failed} of {holders} are dead: nobody is left to reroute to")
    slow, fast, share = sum(SLOW_SECONDS), sum(FAST_SECONDS), MICROBATCHES / holders
    return slow + (STAGES - 1) * fast + (share - 1 + share * failed / (holders - failed)) * slow


def step_seconds(commits: Sequence[Told], first: int, last: int) -> list[float]:
    """How long the steps `first` to `last` took, each from the commit before it to its own."""
    times = {told.record["step"]: told.time for told in first_commits(list(commits))}
    chosen = [times[step] for step in range(first - 1, last + 1) if step in times]
    return [later - earlier for earlier, later in pairwise(chosen)]


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the runs, held against one holder and against the formulas."""
    steady = {held: median(one["steady"][str(held)] for one in runs) for held in HOLDERS}
    scaling = [
        {
            "holders": held,
            "step_seconds": seconds,
            "microbatches_per_second": MICROBATCHES / seconds,
            "speed_up": steady[HOLDERS[0]] / seconds,
            "ideal_seconds": ideal_seconds(held),
            "ratio": seconds / ideal_seconds(held),
        }
        for held, seconds in steady.items()
    ]
    return {
        "scaling": scaling,
        "kills": [_of_kills(failed, [one["kills"][number] for one in runs])
                  for number, failed in enumerate(entry["killed"] for entry in runs[0]["kills"])],
        "audit": sorted({one["audit"] for one in runs}),
        "runs": list(runs),
    }  # fmt: skip


def _of_kills(failed: int, kills: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    middle = {name: median(kill[name] for kill in kills) for name in kills[0] if name != "killed"}
    ideal = ideal_seconds(HOLDERS[-1], failed)
    return {
        "killed": failed,
        **middle,
        "odyssey_seconds": ideal,
        "interrupted_ratio": middle["interrupted_seconds"] / ideal,
        "interrupted_worst_seconds": max(kill["interrupted_seconds"] for kill in kills),
        "afterwards_ratio": middle["afterwards_seconds"] / ideal,
    }


def table(figures: Mapping[str, Any]) -> str:
    lines = [
        f"{STAGES} stages, {MICROBATCHES} microbatches, {WINDOW} on their way; the slow stage takes "
        f"{sum(SLOW_SECONDS):.3f} s for one, the others {sum(FAST_SECONDS):.3f} s",
        _row("holders", ("step", "speed-up", "formula", "ratio")),
    ]
    for one in figures["scaling"]:
        times = _seconds(one["step_seconds"]), f"{one['speed_up']:.2f}", _seconds(one["ideal_seconds"])
        lines.append(_row(str(one["holders"]), (*times, f"{one['ratio']:.2f}")))
    lines.append(_row("killed", ("before", "that step", "worst", "agreed", "after", "Odyssey", "ratios")))
    for one in figures["kills"]:
        names = ("undisturbed", "interrupted", "interrupted_worst", "agreed", "afterwards", "odyssey")
        ratios = f"{one['interrupted_ratio']:.2f}, {one['afterwards_ratio']:.2f}"
        cells = tuple(_seconds(one[f"{name}_seconds"]) for name in names)
        lines.append(_row(f"{one['killed']} of {HOLDERS[-1]}", (*cells, ratios)))
    lines.append(
        "agreed: from the SIGKILL to the view without them; ratios: of that step and of those after, to Odyssey"
    )
    for number, one in enumerate(figures["runs"], 1):
        went = ", ".join(f"{count} to stage {stage}" for stage, count in sorted(one["newcomers"].items()))
        lines.append(f"run {number}: newcomers went {went}; audit: {one['audit']}")
    return "\n".join(lines)


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<10}" + "".join(f"{cell:>12}" for cell in cells)


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f} s"


# -- what is done


def measure(directory: Path | None = None) -> dict[str, Any]:
    """One swarm: it grows to the most holders, loses one, is filled up, and loses two at once."""
    if directory is not None:
        directory.mkdir(parents=True, exist_ok=True)
    with open_trial(_manifest(), directory) as trial:
        slow = _found(trial)
        steady: dict[str, float] = {}
        came: list[str] = []
        for held in HOLDERS:
            came += _grow(trial, slow, held)
            steady[str(held)] = _steady(trial)
        kills = [_lose(trial, slow, 1)]
        came += _grow(trial, slow, HOLDERS[-1])
        kills.append(_lose(trial, slow, 2))
        went = Counter(str(stage) for name in came for stage in _joined(trial.story, name))
        trial.swarm.stop()
        said = audit(trial.swarm.directory / "logs").verdict
    return {"steady": steady, "kills": kills, "newcomers": dict(went), "audit": said}


def _manifest() -> Manifest:
    """Small tensors and no validation: what is measured is who works when."""
    start = trial_manifest(preset("tiny"), steps=FOREVER, stages=STAGES, replicas=HOLDERS[-1])
    return replace(
        start,
        batch=replace(start.batch, microbatches=MICROBATCHES, sequences=1),
        pipeline=replace(start.pipeline, window=WINDOW, live_activations=WINDOW),
        evaluation=Evaluation(every=0, microbatches=1),
    )


def _paced(seconds: tuple[float, float]) -> tuple[str, ...]:
    return ("--compute", "paced", "--paced-seconds", *map(str, seconds))


def _found(trial: Trial) -> int:
    """Every block stage at a peer of its own. Returns that of the founder, who is slow. Raises UserError (75) when they
    go elsewhere."""
    trial.volunteer("founder", hold=STAGES + 1, options=_paced(SLOW_SECONDS))
    trial.wait_for_step(1)
    for number in range(STAGES - 1):
        name = f"peer-{number + 1}"
        trial.volunteer(name, options=_paced(FAST_SECONDS))
        trial.wait(f"{name} to join", lambda story, name=name: bool(_joined(story, name)), JOIN_SECONDS)  # type: ignore[misc]
    left = [stage for stage in _joined(trial.story, "founder") if stage]
    if len(left) != 1 or trial.story.holders(left[0]) != ("founder",):
        raise UserError(f"the founder was to keep one block stage; it holds {left}", 75)
    return left[0]


def _joined(story: Story, name: str) -> list[int]:
    """The stages that a node holds, or held when it died."""
    for _, view in sorted(story.views, key=lambda told: told[0].time, reverse=True):
        if name in story.peers and story.peers[name] in view.members():
            return list(view.stages_of(story.peers[name]))
    return []


def _grow(trial: Trial, slow: int, held: int) -> list[str]:
    """Slow newcomers, one after another, until the slow stage has `held` holders; their names."""
    came: list[str] = []
    while len(trial.story.holders(slow)) < held:
        name = f"replica-{sum(other.startswith('replica') for other in trial.swarm.processes) + 1}"
        trial.volunteer(name, options=_paced(SLOW_SECONDS))
        trial.wait(f"{name} to join", lambda story, name=name: bool(_joined(story, name)), JOIN_SECONDS)  # type: ignore[misc]
        came.append(name)
        if len(came) > 2 * held:
            raise UserError(f"{len(came)} newcomers did not make {held} holders of stage {slow}", 75)
    return came


def _steady(trial: Trial) -> float:
    """Median time of a step in which nothing happens."""
    first = trial.story.committed + SETTLE_STEPS + 1
    trial.wait_for_step(first + STEADY_STEPS - 1, STEP_SECONDS)
    return median(step_seconds(trial.story.commits, first, first + STEADY_STEPS - 1))


def _lose(trial: Trial, slow: int, count: int) -> dict[str, Any]:
    """Kill `count` of the slow stage's holders in the middle of a step."""
    undisturbed = _steady(trial)
    lost = _strike(trial, slow, count)
    trial.wait_for_step(lost.step, STEP_SECONDS)
    return {
        "killed": count,
        "undisturbed_seconds": undisturbed,
        "interrupted_seconds": step_seconds(trial.story.commits, lost.step, lost.step)[0],
        "afterwards_seconds": _steady(trial),
        "into_seconds": lost.into_seconds,
        "agreed_seconds": _agreed(trial.story, lost) - lost.moment,
        "visits": lost.visits,
    }


def _agreed(story: Story, lost: Lost) -> float:
    """When the first view without all of them was adopted; the attempt goes on in that one."""
    dead = {story.peers[node] for node in lost.nodes}
    return min(told.time for told, view in story.views if told.time > lost.moment and not dead & set(view.members()))


def _strike(trial: Trial, slow: int, count: int) -> Lost:
    """SIGKILL for the last `count` of the group when each has accumulated some of the next step, but not half of its
    part. Raises UserError (75) when that moment does not come."""
    story, victims = trial.story, trial.story.holders(slow)[-count:]
    deadline, after = time.monotonic() + AIM_SECONDS, story.committed + 1
    half = MICROBATCHES // HOLDERS[-1] // 2
    while time.monotonic() < deadline:
        story.read()
        seen = [story.progress(node, slow) for node in victims]
        if len({step for step, _ in seen}) == 1 and seen[0][0] > after and all(1 <= n <= half for _, n in seen):
            moment = min(trial.kill(node) for node in victims)
            story.read()
            before = next(told.time for told in story.commits if told.record["step"] == seen[0][0] - 1)
            done_in_vain = sum(story.progress(node, slow)[1] for node in victims)
            return Lost(seen[0][0], victims, moment, moment - before, done_in_vain)
        time.sleep(POLL_SECONDS)
    raise UserError(f"the holders of stage {slow} never were in the middle of a step together", 75)
