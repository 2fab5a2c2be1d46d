"""Unequal volunteers on real processes: the swarm comes near the layout that the estimate calls best, one change after
another, also when somebody fast comes and is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.planning.schedule import Batch, Machine, step_timing
from ftnode.protocol.planning.search import best_layout
from ftnode.protocol.planning.swarm import Swarm

OpenTrial = Callable[..., Trial]
STAGES, MICROBATCHES = 6, 12
DEVICES = {"a": (0.02, 7), "b": (0.01, 7), "c": (0.02, 4), "d": (0.04, 3), "e": (0.015, 3), "f": (0.08, 2)}
"""Seconds forward, of which the backward pass takes twice as many, and stages that it holds at most."""
FAST = (0.004, 7)
NEAR = 1.3
"""A step of the present layout against one of the best."""
SECONDS = 180.0


def unequal(manifest: Manifest) -> Manifest:
    """Three may hold a stage. A stage with two slow holders, and no room for a third, keeps the run slow: nobody takes
    the place of somebody who has nothing else (decision 0042)."""
    batch = replace(manifest.batch, microbatches=MICROBATCHES)
    pipeline = replace(manifest.pipeline, window=MICROBATCHES, live_activations=MICROBATCHES, replicas=3)
    return replace(manifest, batch=batch, pipeline=pipeline)


def over_best(story: Story, devices: Mapping[str, tuple[float, int]]) -> float:
    """By the paces that volunteers tell, and else by those that they were started with."""
    holders = tuple(story.holders(stage) for stage in range(STAGES + 1))
    if not all(holders):
        return float("inf")
    machines = {}
    for name in {name for group in holders for name in group}:
        forward = devices[name][0]
        told = {stage: story.paces.get((name, stage), 3 * forward if stage else 0.0) for stage in range(STAGES + 1)}
        machines[name] = Machine({stage: (one / 3, 2 * one / 3) for stage, one in told.items()})
    swarm = Swarm(
        machines, {name: devices[name][1] for name in machines}, (1,) * (STAGES + 1), Batch(MICROBATCHES, MICROBATCHES)
    )
    best = best_layout(swarm, holders)
    assert best is not None
    return step_timing(swarm.layout(holders), swarm.batch).seconds / best.seconds


def volunteer(trial: Trial, name: str, device: tuple[float, int]) -> None:
    """One more, until it holds something of the run that the first one founded."""
    forward, hold = device
    options = ("--paced-seconds", str(forward), str(2 * forward))
    trial.volunteer(name, hold=hold, options=options)
    trial.wait(f"{name} to hold something", lambda story: {"a", name} <= holding(story), SECONDS)


def holding(story: Story) -> set[str]:
    return {name for stage in range(STAGES + 1) for name in story.holders(stage)}


def test_unequal_volunteers_come_near_the_best_layout_and_a_fast_one_takes_a_range(open_swarm: OpenTrial) -> None:
    trial = open_swarm(volunteers=0, stages=STAGES, change=unequal)
    devices = dict(DEVICES)
    for name, device in DEVICES.items():
        volunteer(trial, name, device)
    trial.wait("a layout near the best", lambda story: over_best(story, devices) < NEAR, SECONDS)
    assert {told.record["rung"] for told in trial.story.installed} <= {"initial", "replica"}

    devices["fast"] = FAST
    volunteer(trial, "fast", FAST)

    def range_of_fast(story: Story) -> list[int]:
        return [stage for stage in range(STAGES + 1) if "fast" in story.holders(stage)]

    trial.wait("it to hold a range", lambda story: len(range_of_fast(story)) > 1, SECONDS)
    assert {told.record["rung"] for told in trial.story.installed} <= {"initial", "replica"}, "nothing stopped for it"

    trial.kill("fast")
    trial.wait("a view without it", lambda story: "fast" not in holding(story) and len(holding(story)) > 1, SECONDS)
    trial.wait_for_step(trial.story.committed + 5, SECONDS)
    trial.wait("a layout near the best", lambda story: over_best(story, devices) < NEAR, SECONDS)
