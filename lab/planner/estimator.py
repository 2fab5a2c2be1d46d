"""The schedule's estimate of a step against real swarms with a paced compute: unequal paces, lines and groups, and
after failures.

Who holds what is the swarm's own decision. When everybody holds something and paces are known, some steps are measured.
Then the schedule is asked about the very layout that the swarm was in, by what its leader goes by: the pace that each
volunteer tells of its device. Lines are those that volunteers were started with. Volunteers with lines live in network
namespaces (lab/lines/switch.py).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, inf
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

from ftnode.lab.lines.network import open_network
from ftnode.lab.lines.switch import Homes
from ftnode.lab.lines.tensors import read_events
from ftnode.lab.swarms.swarm import Place, Swarm
from ftnode.lab.swarms.trial import FOREVER, Trial, trial_manifest
from ftnode.lab.traces.story import Story, first_commits
from ftnode.node.cli.manifest import manifest_text
from ftnode.node.manifests.presets import preset
from ftnode.protocol.lines.stage_work import traffic
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.parse import Evaluation, Manifest
from ftnode.protocol.planning.run_step import FULL, HANDLED_SECONDS, HEADERS, copies_of, on_the_wire, whole
from ftnode.protocol.planning.schedule import NO_TENSORS, Batch, Layout, Machine, step_timing
from ftnode.protocol.planning.swarm import in_words

MEETING_POINT: Final = "bootstrap"
MEETING_POINT_RATE: Final = 1e9 / 8
SETTLE_STEPS: Final = 4
"""Not measured: lines and devices are not known before."""
STEPS: Final = 7
DELAY_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Home:
    """One volunteer. `pace`: seconds forward and backward of a block stage; `hold`: stages at most; `rates`: Mbit/s up
    and down, (0, 0) for a home without a line of its own."""

    pace: tuple[float, float]
    hold: int = 1
    rates: tuple[float, float] = (0.0, 0.0)

    @property
    def line(self) -> Line:
        up, down = (rate * 1e6 / 8 for rate in self.rates)
        return Line(up or inf, down or inf, (DELAY_SECONDS if up else 0.0) + HANDLED_SECONDS)


@dataclass(frozen=True, slots=True)
class Case:
    """Volunteers in the order in which they come; the first one founds the run and has room for all of it. `kills`:
    stages whose last holders are killed, one after the other; what is left is measured again. `sequences`: what makes
    tensors larger."""

    homes: tuple[Home, ...]
    stages: int = 3
    microbatches: int = 16
    replicas: int = 1
    kills: tuple[int, ...] = ()
    sequences: int = 1

    @property
    def lines(self) -> bool:
        return any(home.rates[0] for home in self.homes)


FAST, MEDIUM, SLOW = (0.02, 0.04), (0.03, 0.06), (0.05, 0.1)
CASES: Final = {
    "equal paces": Case((Home(MEDIUM),) * 4),
    "unequal paces": Case((Home(FAST), Home(SLOW), Home(FAST), Home(MEDIUM))),
    "two holders of each, then one dies": Case((Home(MEDIUM),) * 6, 2, replicas=2, kills=(2,)),
    "four holders of a slow stage, then two die": Case(
        (Home(FAST), Home(FAST), Home(SLOW), Home(SLOW), Home(SLOW), Home(SLOW)), 2, 24, 4, (2, 2)
    ),
    "four holders of the only stage": Case((Home(FAST), *(Home(MEDIUM),) * 2, *(Home(SLOW),) * 2), 1, 40, 4),
    "ranges": Case((Home(FAST), Home(MEDIUM, 3), Home(SLOW)), 6),
    "unequal groups": Case((Home(FAST), Home(MEDIUM), Home(FAST), Home(SLOW), Home(SLOW)), 2, 20, 3),
    "equal lines": Case((Home(FAST, 1, (20, 100)),) * 4, sequences=8),
    "unequal lines": Case(
        (Home(FAST, 1, (40, 100)), Home(FAST, 1, (20, 50)), Home(MEDIUM, 1, (10, 40)), Home(FAST, 1, (40, 80))),
        sequences=8,
    ),
    "a slow line and a slow device": Case(
        (Home(FAST, 1, (40, 100)), Home(SLOW, 1, (40, 100)), Home(FAST, 1, (8, 40))), 2, sequences=8
    ),
    "two holders on unequal lines": Case(
        (Home(FAST, 1, (40, 100)), Home(FAST, 1, (20, 100)), Home(FAST, 1, (10, 100)), Home(FAST, 1, (40, 100))),
        2, replicas=2, sequences=8,
    ),
}  # fmt: skip


def figures(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`found`: what measure() gave of each case."""
    layouts = [one for each in found for one in each["layouts"]]
    errors = [abs(one["error"]) for one in layouts]
    return {
        "mean_error": mean(errors),
        "worst_error": max(errors),
        "layouts": len(layouts),
        "measured": layouts,
    }


def text(found: Mapping[str, Any]) -> list[str]:
    """The table of docs/explanation/planner.md, as Markdown."""
    rows = [
        f"| {one['name']} | {one['holders']} | {one['measured_seconds']:.2f} s | {one['estimated_seconds']:.2f} s "
        f"| {one['error']:+.1%} |"
        for one in found["measured"]
    ]
    return [
        "| layout | who holds what | measured | estimated | error |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"{found['mean_error']:.1%} on the mean of {found['layouts']}, {found['worst_error']:.1%} at worst.",
    ]


def measure(name: str, case: Case) -> dict[str, Any]:
    """One swarm. Raises UserError (69) where there are no network namespaces and the case has lines."""
    manifest = manifest_for(case)
    with _trial(case, manifest) as trial:
        for number, home in enumerate(case.homes):
            _add(trial, number, home, case)
        found = [_measured(name, case, manifest, trial)]
        for stage in case.kills:
            _lose(trial, trial.story.holders(stage)[-1])
        if case.kills:
            found.append(_measured(f"{name}: afterwards", case, manifest, trial))
    return {"layouts": found}


def manifest_for(case: Case) -> Manifest:
    """The whole step in flight, and nothing between two steps."""
    start = trial_manifest(preset("tiny"), steps=FOREVER, stages=case.stages, replicas=case.replicas)
    batch = replace(start.batch, microbatches=case.microbatches, sequences=case.sequences)
    pipeline = replace(start.pipeline, window=case.microbatches, live_activations=case.microbatches)
    return replace(start, batch=batch, pipeline=pipeline, evaluation=Evaluation(every=0, microbatches=1))


def estimated(
    case: Case, manifest: Manifest, holders: Sequence[Sequence[str]], leader: str,
    paces: Mapping[tuple[str, int], float],
) -> float:  # fmt: skip
    """Seconds of a step by the schedule. `paces`: (name, stage) → seconds of a microbatch there, where they are known;
    else they are what a volunteer was started with, and the head takes no time."""
    machines = {_name(number): _machine(_name(number), home, case, paces) for number, home in enumerate(case.homes)}
    groups = tuple(map(tuple, holders))
    sums = tuple(
        ceil(HEADERS / FULL * whole(traffic(manifest, stage, len(group)).sums, len(group)))
        for stage, group in enumerate(groups)
    )
    tensors = on_the_wire(manifest.boundary_bytes) if case.lines else NO_TENSORS
    batch = Batch(case.microbatches, manifest.pipeline.window, tensors)
    if case.lines:
        batch = replace(batch, sums=sums, copies=copies_of(manifest))
    named = {name: machines[name] for group in groups for name in group}
    return step_timing(Layout(groups, named | {leader: machines[leader]}, leader), batch).seconds


def _machine(name: str, home: Home, case: Case, paces: Mapping[tuple[str, int], float]) -> Machine:
    """Of what is measured forward and backward together, a paced forward pass has its share."""
    forward = home.pace[0] / sum(home.pace)
    seconds = {stage: paces.get((name, stage), sum(home.pace) if stage else 0.0) for stage in range(case.stages + 1)}
    return Machine({stage: (forward * one, (1 - forward) * one) for stage, one in seconds.items()}, home.line)


def _measured(name: str, case: Case, manifest: Manifest, trial: Trial) -> dict[str, Any]:
    """Steps of the layout as it is, once nothing changes any more."""
    while True:
        view = trial.story.view
        first = trial.story.committed + SETTLE_STEPS
        trial.wait_for_step(first + STEPS)
        if trial.story.view == view and view is not None:
            break
    times = {told.record["step"]: told.time for told in first_commits(trial.story.commits)}
    steps = [later - earlier for earlier, later in pairwise(times[step] for step in range(first, first + STEPS + 1))]
    holders = [trial.story.holders(stage) for stage in range(case.stages + 1)]
    leader, paces = trial.story.names[view.leader], _told(trial)
    seconds, by_schedule = median(steps), estimated(case, manifest, holders, leader, paces)
    return {
        "name": name,
        "holders": in_words(tuple(holders)),
        "leader": leader,
        "paces": {f"{one} {stage}": pace for (one, stage), pace in sorted(paces.items())},
        "measured_seconds": seconds,
        "fastest_seconds": min(steps),
        "slowest_seconds": max(steps),
        "estimated_seconds": by_schedule,
        "error": by_schedule / seconds - 1,
    }


def _told(trial: Trial) -> dict[tuple[str, int], float]:
    """What volunteers have told each other last of their devices: (name, stage) → seconds of a microbatch."""
    for told in read_events({name: trial.swarm.processes[name].trace for name in _holding(trial.story)}):
        trial.story.take(told)
    return trial.story.paces


@contextmanager
def _trial(case: Case, manifest: Manifest) -> Iterator[Trial]:
    """A meeting point, and a home for each where the case has lines."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ftnode-lab-")))
        path = folder / "manifest.toml"
        path.write_text(manifest_text(manifest), encoding="utf-8")
        places: Mapping[str, Place] = {}
        if case.lines:
            names = [*(_name(number) for number in range(len(case.homes))), MEETING_POINT]
            rates = tuple((home.line.up, home.line.down) for home in case.homes)
            homes = Homes((*rates, (MEETING_POINT_RATE, MEETING_POINT_RATE)), DELAY_SECONDS, str(folder / "counts"))
            places = stack.enter_context(open_network(names, homes))
        swarm = stack.enter_context(Swarm(folder, path, places=places))
        swarm.start_bootstrap(MEETING_POINT)
        yield Trial(swarm, Story())


def _add(trial: Trial, number: int, home: Home, case: Case) -> None:
    """One volunteer more, until it holds something."""
    trial.volunteer(_name(number), hold=home.hold if number else case.stages + 1, options=_paced(home.pace))
    if not number:
        trial.wait_for_step(1)
    trial.wait(f"{_name(number)} to hold something", lambda story: len(_holding(story)) == number + 1)


def _lose(trial: Trial, victim: str) -> None:
    trial.kill(victim)
    trial.wait(f"a view without {victim}", lambda story: victim not in _holding(story))


def _name(number: int) -> str:
    return f"v{number}"


def _paced(pace: tuple[float, float]) -> tuple[str, ...]:
    return ("--compute", "paced", "--paced-seconds", *map(str, pace))


def _holding(story: Story) -> set[str]:
    """Who holds something."""
    view = story.view
    return set() if view is None else {story.names.get(peer, "") for group in view.holders for peer in group}
