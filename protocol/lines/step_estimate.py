"""About how long a step takes where all volunteers have the same line and device, and how much of it they compute.

Each volunteer holds one stage. The estimate is the bound of line_bound.py, and a group's sum after it. Where fewer
microbatches are on their way than the path has room for, a step takes at least what they take to go round so often.
Copies of stages, headers of protocols and what a line loses to other traffic come on top.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil
from typing import Final

from ftnode.protocol.lines.line_bound import Bound, Work, bounds, hop_seconds, hops_of
from ftnode.protocol.lines.stage_work import Traffic, operations, traffic
from ftnode.protocol.manifest.parse import Manifest

WINDOW: Final = "window"
"""Too few microbatches are on their way."""
HOME_DOWN_PER_UP: Final = 5
HOME_DELAY_SECONDS: Final = 0.03
"""Homes have 20 Mbit/s up, 100 down, and 30 ms to another home (docs/explanation/thin-lines.md)."""


@dataclass(frozen=True, slots=True)
class Line:
    """`up`, `down`: bytes a second; `delay_seconds`: to another volunteer, one way."""

    up: float
    down: float
    delay_seconds: float

    @classmethod
    def of_home(cls, up: float, down: float | None = None) -> Line:
        """Where only `up` is known."""
        return cls(up, down or HOME_DOWN_PER_UP * up, HOME_DELAY_SECONDS)


@dataclass(frozen=True, slots=True)
class StageEstimate:
    """Of one volunteer that holds this stage, for one step. `compute_seconds`, `busy`: of its device, the latter as a
    share of the step; None where no device is known."""

    stage: int
    traffic: Traffic
    compute_seconds: float | None
    busy: float | None


@dataclass(frozen=True, slots=True)
class StepEstimate:
    """`limiting`: the stage whose volunteer the others wait for; `way`: what it is busy with, one of
    line_bound.WAYS, or WINDOW."""

    seconds: float
    limiting: int
    way: str
    stages: tuple[StageEstimate, ...]


def estimate(manifest: Manifest, line: Line, device: float | None = None, holders: int = 1) -> StepEstimate:
    """Of a step with `holders` volunteers for each stage. `device`: floating-point operations a second that it reaches;
    None leaves the arithmetic out."""
    stages = range(manifest.pipeline.stages + 1)
    paces = tuple(pace(manifest, stage, device) for stage in stages)
    share = ceil(manifest.batch.microbatches / holders)
    work = Work(share, manifest.boundary_bytes, (line.up, line.down), line.delay_seconds, paces)
    sent = [traffic(manifest, stage, holders) for stage in stages]
    names = tuple(map(str, stages))
    limiting = max(
        (_with_sum(one, sent[int(one.limiting)], line) for one in bounds(names, work)), key=lambda one: one.seconds
    )
    seconds, way, turns = limiting.seconds, limiting.way, _turns_seconds(manifest, names, work)
    if turns > seconds:
        seconds, way = turns, WINDOW
    return StepEstimate(
        seconds, int(limiting.limiting), way,
        tuple(_stage(stage, sent[stage], paces[stage], share, device, seconds) for stage in stages),
    )  # fmt: skip


def pace(manifest: Manifest, stage: int, device: float | None) -> tuple[float, float]:
    """Seconds for one microbatch, forward and backward. `device`: as in estimate()."""
    if device is None:
        return 0.0, 0.0
    forward, backward = operations(manifest, stage)
    return forward / device, backward / device


def _with_sum(one: Bound, sent: Traffic, line: Line) -> Bound:
    """A sum is made when the last microbatch is back."""
    return replace(one, fill=one.fill + sent.sums / min(line.up, line.down)) if sent.sums else one


def _turns_seconds(manifest: Manifest, names: tuple[str, ...], work: Work) -> float:
    """Of all microbatches of a step, as many at once as the window lets, each on idle lines."""
    microbatches = manifest.batch.microbatches
    alone = sum(hop_seconds(hop, work) for hop in hops_of(names, work))
    return microbatches / min(manifest.pipeline.window, microbatches) * alone


def _stage(
    stage: int, sent: Traffic, pace: tuple[float, float], share: int, device: float | None, seconds: float
) -> StageEstimate:
    if device is None:
        return StageEstimate(stage, sent, None, None)
    compute = share * sum(pace)
    return StageEstimate(stage, sent, compute, min(1.0, compute / seconds))
