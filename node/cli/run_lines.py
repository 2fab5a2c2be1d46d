"""What a step of a run takes over the lines of volunteers, for `ftnode run show`: figures and a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import click

from ftnode.node.home.duration import figure
from ftnode.node.manifests.line_choice import DEVICE
from ftnode.node.owner.limits import line_text, parse_line
from ftnode.node.watch.status_table import Table
from ftnode.protocol.lines.step_estimate import (
    HOME_DELAY_SECONDS,
    HOME_DOWN_PER_UP,
    Line,
    StepEstimate,
)
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.planning.run_step import timed
from ftnode.protocol.words.types import HEAD

SHOWN_MBIT: Final = (10, 20, 50, 200)
"""Up."""
MBIT: Final = 1e6 / 8


@dataclass(frozen=True, slots=True)
class Assumed:
    """`device`: floating-point operations a second that every volunteer's reaches; `holders`: of each stage."""

    device: float | None = None
    holders: int = 1


def line_option(_context: click.Context, _option: click.Parameter, value: str | None) -> Line | None:
    """--line as it is meant."""
    if value is None:
        return None
    try:
        up, down = parse_line(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return Line.of_home(up, down)


def figures(manifest: Manifest, assumed: Assumed) -> dict[str, Any]:
    """For JSON: what is assumed, the bytes of each stage, and a step at each of the rates."""
    found = [_at(manifest, rate, assumed) for rate in SHOWN_MBIT]
    return {
        "assumed": {
            "holders": assumed.holders, "down_per_up": HOME_DOWN_PER_UP, "delay_seconds": HOME_DELAY_SECONDS,
            "device_tflops": None if assumed.device is None else assumed.device / 1e12,
        },
        "stages": [
            {
                "stage": stage.stage, "up_bytes": stage.traffic.total, "down_bytes": stage.traffic.total,
                "of_these_sums": stage.traffic.sums, "compute_seconds": stage.compute_seconds,
            }
            for stage in found[0].stages
        ],
        "steps": [
            {
                "up_mbit": rate, "seconds": one.seconds, "limiting_stage": one.limiting, "limited_by": one.way,
                "busy": [stage.busy for stage in one.stages],
            }
            for rate, one in zip(SHOWN_MBIT, found)
        ],
    }  # fmt: skip


def lines_text(manifest: Manifest, assumed: Assumed) -> list[str]:
    """A heading that says what is assumed, and the table."""
    found = [_at(manifest, rate, assumed) for rate in SHOWN_MBIT]
    columns = ("stage", "up a step", "down a step", *(f"{rate} Mbit/s" for rate in SHOWN_MBIT))
    rows = [("a step", "", "", *(figure(one.seconds) for one in found))]
    rows += [(name, *_shown(stage, found)) for name, stage in _alike(found)]
    return [_heading(assumed), *Table(columns, tuple(rows)).lines(), _closing(manifest, assumed)]


def chosen_text(manifest: Manifest, line: Line, name: str) -> str:
    """For who has named a line: what a step takes there, and where to read why."""
    seconds = timed(manifest, line, DEVICE).seconds
    return (
        f"over {line_text(line.up, line.down)} and {line.delay_seconds * 1e3:.0f} ms, with devices that reach "
        f"{DEVICE / 1e12:g} TFLOP/s, a step takes about {figure(seconds)}; {name} says what was chosen, and why"
    )


@lru_cache(maxsize=8)
def _at(manifest: Manifest, mbit: float, assumed: Assumed) -> StepEstimate:
    return timed(manifest, Line.of_home(mbit * MBIT), assumed.device, assumed.holders)


def _alike(found: Sequence[StepEstimate]) -> list[tuple[str, int]]:
    """Stages whose figures are shown alike, by their names, each with the first of them."""
    groups: list[list[int]] = []
    for stage in range(len(found[0].stages)):
        if stage > 1 and _shown(groups[-1][0], found) == _shown(stage, found):
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return [(_name(group), group[0]) for group in groups]


def _name(group: Sequence[int]) -> str:
    if group[0] == HEAD:
        return "head"
    return str(group[0]) if len(group) == 1 else f"{group[0]} to {group[-1]}"


def _shown(stage: int, found: Sequence[StepEstimate]) -> tuple[str, ...]:
    size = f"{found[0].stages[stage].traffic.total / 1e6:,.2f} MB"
    return size, size, *(share_text(one.stages[stage].busy) for one in found)


def share_text(busy: float | None) -> str:
    """Of its time that a device computes."""
    if busy is None:
        return "-"
    if busy < 0.001:
        return "< 0.1 %"
    return f"{busy * 100:.0f} %" if busy >= 0.1 else f"{busy * 100:.1f} %"


def _heading(assumed: Assumed) -> str:
    holders = "one volunteer" if assumed.holders == 1 else f"{assumed.holders} volunteers"
    return (
        f"over lines, with {holders} for each stage, {HOME_DOWN_PER_UP} times as much down as up, and "
        f"{HOME_DELAY_SECONDS * 1e3:.0f} ms to each other:"
    )


def _closing(manifest: Manifest, assumed: Assumed) -> str:
    at = _at(manifest, SHOWN_MBIT[1], assumed)
    limits = f"at {SHOWN_MBIT[1]} Mbit/s {_limit(at)}"
    if assumed.device is None:
        return f"{limits}; --device-tflops N says how much of its time a device computes"
    return f"{limits}; %: how much of its time a device computes that reaches {assumed.device / 1e12:g} TFLOP/s"


def _limit(found: StepEstimate) -> str:
    """What a step waits for, in words."""
    stage = "the head" if found.limiting == HEAD else f"stage {found.limiting}"
    return {
        "up": f"the line up of {stage} limits",
        "down": f"the line down of {stage} limits",
        "compute": f"the device of {stage} limits",
        "window": "pipeline.window limits: too few microbatches are on their way",
    }[found.way]
