"""`ftnode lab lines`: what a step takes where volunteers have the lines that people have, and what those lines could.

Real volunteers with a paced compute, each in a home of its own (switch.py). Everybody holds one stage, so that a
microbatch passes every line. Bytes are counted on the lines themselves, tensors by the traces.

`--replica` adds one volunteer with a line of its own. It joins after the first step and shares a stage, and the figures
say how many microbatches of a step either holder of that stage gets.

A line's share is what it carried between the first and the last tensor of a step that its volunteer sent, or got, of
what it could have carried. The bound of a step (protocol/lines/line_bound.py) counts the bytes of tensors only, so that
it owes nothing to how they are sent.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from ftnode.lab.lines.network import Counts, open_network, read_counts
from ftnode.lab.lines.switch import Homes
from ftnode.lab.lines.tensors import Travel, came_twice, read_events, travels, word_seconds
from ftnode.lab.results.result_files import folder_for, write_atomically
from ftnode.lab.swarms.swarm import Swarm
from ftnode.lab.swarms.trial import FOREVER, Trial, trial_manifest
from ftnode.lab.traces.story import Story, Told, first_commits
from ftnode.node.cli.manifest import manifest_text
from ftnode.node.manifests.presets import preset
from ftnode.node.owner.limits import rate_text
from ftnode.protocol.lines.line_bound import Bound, Work, bound
from ftnode.protocol.manifest.parse import Evaluation, Manifest

MEETING_POINT: Final = "bootstrap"
MEETING_POINT_RATE: Final = 1e9 / 8
FIRST_STEP_SECONDS: Final = 600.0
STEPS_MIN: Final = 3
"""Measured at least, however long they take."""
LEARNING_STEPS: Final = 4
"""Not measured, after somebody has joined a stage: until then its line and device are not known."""
NETWORK_NAME: Final = "network namespaces"
REPLICA: Final = "replica"


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person asked for. `rates`: bytes a second up and down. `sequences`, `microbatches`: None for the
    preset's. `replica`: rates of one volunteer more, which shares a stage; None: there is none."""

    volunteers: int
    rates: tuple[float, float]
    delay_seconds: float
    pace: tuple[float, float]
    seconds: float
    preset: str
    sequences: int | None
    microbatches: int | None
    replica: tuple[float, float] | None = None

    @property
    def homes(self) -> dict[str, tuple[float, float]]:
        """Every volunteer with its rates."""
        homes = {f"peer-{number + 1}": self.rates for number in range(self.volunteers)}
        return homes if self.replica is None else {**homes, REPLICA: self.replica}


@dataclass(frozen=True, slots=True)
class Volunteer:
    """Per step, of the one that holds `stages`. `shares`: of its line between its first and last tensor."""

    name: str
    stages: tuple[int, ...]
    bytes_up: float
    bytes_down: float
    share_up: float
    share_down: float
    microbatches: float
    """Forward tensors that it sent."""


def run(asked: Asked, json_output: bool = False, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures. Raises UserError (69) where there can be no homes."""
    with tempfile.TemporaryDirectory(prefix="ftnode-lab-") as temporary:
        figures = measure(asked, folder_for(out, "--out") if out is not None else Path(temporary))
    text = json.dumps(figures, indent=2)
    if out is not None:
        write_atomically(out / "lines.json", text)
    print(text if json_output else table(figures))
    return figures


# -- what is done


def measure(asked: Asked, folder: Path) -> dict[str, Any]:
    """A swarm at home, from its founding to enough whole steps."""
    homes, counts = asked.homes, folder / "counts.jsonl"
    rates = (*homes.values(), (MEETING_POINT_RATE, MEETING_POINT_RATE))
    manifest = manifest_for(asked)
    path = folder / "manifest.toml"
    path.write_text(manifest_text(manifest), encoding="utf-8")
    paced = ("--compute", "paced", "--paced-seconds", *map(str, asked.pace))
    with (
        open_network((*homes, MEETING_POINT), Homes(rates, asked.delay_seconds, str(counts))) as places,
        Swarm(folder, path, options=paced, places=places) as swarm,
    ):
        swarm.start_bootstrap(MEETING_POINT)
        trial = Trial(swarm, Story())
        for name in homes:
            if name == REPLICA:
                trial.wait_for_step(1, FIRST_STEP_SECONDS)
            trial.volunteer(name)
        before = wait(trial, asked)
        story, traces = trial.story, {name: swarm.processes[name].trace for name in homes}
        return figures_of(asked, manifest, story, read_events(traces), read_counts(counts), before)


def manifest_for(asked: Asked) -> Manifest:
    """One stage for each volunteer, the whole step in flight, and nothing between two steps."""
    replicas = 1 if asked.replica is None else 2
    start = trial_manifest(preset(asked.preset), steps=FOREVER, stages=asked.volunteers - 1, replicas=replicas)
    batch = replace(
        start.batch,
        microbatches=asked.microbatches or start.batch.microbatches,
        sequences=asked.sequences or start.batch.sequences,
    )
    pipeline = replace(start.pipeline, window=batch.microbatches, live_activations=batch.microbatches)
    return replace(start, batch=batch, pipeline=pipeline, evaluation=Evaluation(every=0, microbatches=1))


def wait(trial: Trial, asked: Asked) -> int:
    """Until so many seconds have been measured, and STEPS_MIN steps. Returns the step before them: the first, or the
    last that was for learning. Raises UserError (75)."""
    trial.wait_for_step(1, FIRST_STEP_SECONDS)
    before = 1
    if asked.replica is not None:
        trial.wait("the replica", lambda story: shared_stage(story, asked) is not None, FIRST_STEP_SECONDS)
        before = trial.story.committed + LEARNING_STEPS
        trial.wait_for_step(before, LEARNING_STEPS * FIRST_STEP_SECONDS)
    first = next(commit.time for commit in first_commits(trial.story.commits) if commit.record["step"] >= before)
    trial.wait(
        f"{STEPS_MIN} steps more",
        lambda story: story.committed >= before + STEPS_MIN and time.monotonic() > first + asked.seconds,
        FIRST_STEP_SECONDS + asked.seconds,
    )
    return before


def shared_stage(story: Story, asked: Asked) -> int | None:
    """The stage that the replica holds, with somebody else."""
    return next((stage for stage in range(asked.volunteers) if REPLICA in story.holders(stage)), None)


# -- what is calculated


def figures_of(
    asked: Asked, manifest: Manifest, story: Story, events: Sequence[Told], counts: Counts, before: int = 1
) -> dict[str, Any]:
    """All that is told of a swarm whose traces and lines are these. `before`: the last step that is not measured.

    The bound is that of the swarm without a replica, whom nobody needs for it.
    """
    commits, moved, words = first_commits(story.commits), travels(events), word_seconds(events)
    groups = [story.holders(stage) for stage in range(asked.volunteers)]
    holders = tuple(next(name for name in group if name != REPLICA) for group in groups)
    times = [
        (later.record["step"], earlier.time, later.time)
        for earlier, later in pairwise(commits)
        if earlier.record["step"] >= before
    ]
    seconds = median(end - begin for _, begin, end in times)
    work = work_of(asked, manifest)
    least: Bound = bound(holders, work)
    volunteers = [
        volunteer(name, home, groups, moved, counts, times, rates)
        for home, (name, rates) in enumerate(asked.homes.items())
    ]
    limiting = next(one for one in volunteers if one.name == least.limiting)
    return {
        "asked": asdict(asked),
        "network": NETWORK_NAME,
        "tensor_bytes": asdict(work.tensors),
        "microbatches": work.microbatches,
        "steps": len(times),
        "step_seconds": seconds,
        "bound_seconds": least.seconds,
        "bound": asdict(least),
        "ratio": seconds / least.seconds,
        "tensors": len(words),
        "twice": came_twice(events),
        "word_seconds": quantiles(words, n=10)[-1],
        "limiting": limiting.name,
        "limiting_share": max(limiting.share_up, limiting.share_down),
        "volunteers": [asdict(one) for one in volunteers],
    }


def work_of(asked: Asked, manifest: Manifest) -> Work:
    """Of everybody with one stage. A paced head takes no time."""
    paces = ((0.0, 0.0), *[asked.pace] * (asked.volunteers - 1))
    return Work(manifest.batch.microbatches, manifest.boundary_bytes, asked.rates, asked.delay_seconds, paces)


def volunteer(
    name: str, home: int, groups: Sequence[Sequence[str]], moved: Sequence[Travel], counts: Counts,
    times: Sequence[tuple[int, float, float]], rates: tuple[float, float],
) -> Volunteer:  # fmt: skip
    """What one line carried in these steps: (number, begin, end). `groups`: the holders of each stage."""
    carried = counts.between(home, times[0][1], times[-1][2])
    measured = {step for step, _, _ in times}
    shares = []
    for way in (0, 1):
        spans = _spans([travel for travel in moved if (travel.sender, travel.receiver)[way] == name], measured)
        used = sum(counts.between(home, begin, end)[way] for begin, end in spans)
        shares.append(used / max(1.0, rates[way] * sum(end - begin for begin, end in spans)))
    stages = tuple(stage for stage, group in enumerate(groups) if name in group)
    sent = sum(travel.sender == name and travel.forward and travel.step in measured for travel in moved)
    per_step = 1 / len(times)
    return Volunteer(name, stages, carried[0] * per_step, carried[1] * per_step, shares[0], shares[1], sent * per_step)


def _spans(moved: Sequence[Travel], steps: set[int]) -> list[tuple[float, float]]:
    """From the first to the last tensor of each step."""
    of_step = [[travel for travel in moved if travel.step == step] for step in sorted(steps)]
    return [(min(one.made for one in all), max(one.got for one in all)) for all in of_step if all]


def table(figures: Mapping[str, Any]) -> str:
    asked = figures["asked"]
    up, down = (rate_text(rate) for rate in asked["rates"])
    more = ""
    if asked.get("replica"):
        more = ", and a replica on {} up and {} down".format(*map(rate_text, asked["replica"]))
    tensor = figures["tensor_bytes"]
    lines = [
        f"{asked['volunteers']} volunteers on lines of {up} up and {down} down, {asked['delay_seconds'] * 1e3:g} ms "
        f"from one to another ({figures['network']}){more}; {figures['microbatches']} microbatches, tensors of "
        f"{tensor['forward'] / 1e6:.2f} MB, and {tensor['backward'] / 1e6:.2f} MB back",
        f"{'volunteer':<12}{'stages':<8}{'up a step':>12}{'down':>12}{'line used up':>14}{'down':>8}"
        f"{'microbatches':>14}",
    ]
    lines += [
        f"{one['name']:<12}{','.join(map(str, one['stages'])):<8}{one['bytes_up'] / 1e6:>9.2f} MB"
        f"{one['bytes_down'] / 1e6:>9.2f} MB{one['share_up']:>14.2f}{one['share_down']:>8.2f}"
        f"{one['microbatches']:>14.1f}"
        for one in figures["volunteers"]
    ]
    least = figures["bound"]
    lines.append(
        f"a step takes {figures['step_seconds']:.2f} s (median of {figures['steps']}); the lines allow "
        f"{figures['bound_seconds']:.2f} s: {least['busy']:.2f} s for what {least['limiting']} has to do and "
        f"{least['fill']:.2f} s to fill the pipeline; ratio {figures['ratio']:.2f}"
    )
    lines.append(
        f"of {figures['tensors']} tensors {figures['twice']} came twice; word of nine in ten was back within "
        f"{figures['word_seconds']:.2f} s of their arrival"
    )
    return "\n".join(lines)
