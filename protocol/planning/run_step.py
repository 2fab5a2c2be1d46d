"""About how long a step of a run takes where all volunteers have the same line and device, each with one stage: by the
schedule, with what real lines lose. Which volunteer limits it, and with what, is that of the bound
(protocol/lines/step_estimate.py), which knows why."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import Final

from ftnode.protocol.lines.step_estimate import Line, StepEstimate, estimate, pace
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.planning.schedule import Batch, Layout, Machine, step_timing

HEADERS: Final = 1.065
"""Bytes on a line for a byte of a tensor: headers of IP and TCP (0.036), TCP's acknowledgements of what comes (0.018),
and messages. 1.05 to 1.08 were counted on lines."""
FULL: Final = 0.92
"""Of the rate of its line, what a volunteer uses while tensors wait all the time. 0.89 to 0.93 were counted on the
lines that limit a swarm (docs/explanation/thin-lines.md#what-a-full-line-carries). One second in eight a node sends at
0.7 of the rate (sending_pace.py), which makes 0.96 of it."""
HANDLED_SECONDS: Final = 0.005
"""Of two nodes for a tensor, from the end of one task to the next one that can begin, besides the line and the way:
3 to 7 ms where nothing else was on the line."""


def on_the_wire(tensors: BoundaryBytes) -> BoundaryBytes:
    """As large as tensors are for real lines: with their headers, and with the time that a full line is idle."""
    return BoundaryBytes(*(ceil(HEADERS / FULL * size) for size in (tensors.forward, tensors.backward)))


def copies_of(manifest: Manifest) -> tuple[int, ...]:
    """Of each stage, the bytes of it that one keeper gets for a step on the mean, as they are on real lines."""
    settings, lost = manifest.recovery, HEADERS / FULL
    head = manifest.head_state_bytes / manifest.head_every if manifest.head_every else 0
    block = manifest.shadow_bytes / settings.shadow_every if settings.shadow_every else 0
    return (ceil(lost * head), *[ceil(lost * block)] * manifest.pipeline.stages)


def timed(manifest: Manifest, line: Line, device: float | None = None, holders: int = 1) -> StepEstimate:
    """As estimate() of the bound, with the seconds of the schedule."""
    bound = estimate(manifest, line, device, holders)
    machines, groups = dict[str, Machine](), list[tuple[str, ...]]()
    for stage in range(manifest.pipeline.stages + 1):
        names = tuple(f"{stage}.{number}" for number in range(holders))
        groups.append(names)
        machines |= dict.fromkeys(names, Machine({stage: pace(manifest, stage, device)}, line))
    batch = Batch(
        manifest.batch.microbatches,
        manifest.pipeline.window,
        on_the_wire(manifest.boundary_bytes),
        tuple(ceil(HEADERS / FULL * whole(one.traffic.sums, holders)) for one in bound.stages),
        manifest.pipeline.swap,
        copies=copies_of(manifest),
    )
    seconds = step_timing(Layout(tuple(groups), machines), batch).seconds
    stages = tuple(
        replace(one, busy=None if one.compute_seconds is None else min(1.0, one.compute_seconds / seconds))
        for one in bound.stages
    )
    return replace(bound, seconds=seconds, stages=stages)


def whole(sums: int, holders: int) -> float:
    """Bytes of a whole gradient, by those that each of its holders sends for the sum."""
    return sums * holders / (2 * (holders - 1)) if holders > 1 else 0.0
