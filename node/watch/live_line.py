"""The one line that `ftnode join` keeps at the bottom of a terminal: the run, and what this node does for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, NamedTuple

from ftnode.node.home.duration import duration
from ftnode.node.watch.own_work import OwnWork, counted
from ftnode.node.watch.status import SwarmStatus
from ftnode.node.watch.status_table import printable

BETWEEN: Final = " | "
"""The run, and this node."""


class Part(NamedTuple):
    """Some words of the line. On a narrow terminal those of the highest `rank` are left out first."""

    rank: int
    text: str


def run_parts(status: SwarmStatus) -> list[Part]:
    """How the run is."""
    parts = [Part(0, f"step {status.step:,} of {status.steps:,}")]
    if status.waiting:
        why = printable(status.waiting)
        return [*parts, Part(1, why if status.state == "halted" else f"waits for {why}")]
    if status.loss is not None:
        parts.append(Part(2, f"loss {status.loss:.4f}"))
    if status.state == "finished":
        return [*parts, Part(1, "all steps are done")]
    if status.tokens_per_second is not None:
        parts.append(Part(5, f"{status.tokens_per_second:,.0f} tokens/s"))
    if status.eta_seconds is not None:
        parts.append(Part(1, f"{duration(status.eta_seconds)} to go"))
    return parts


def own_parts(status: SwarmStatus, work: OwnWork, holds: Collection[int], state: str = "") -> list[Part]:
    """What this node does. `holds`: stages that it has now. `state`: that it leaves or pauses, in words."""
    me = next((row for row in status.peers if row.peer == status.speaker.peer), None)
    learns = me.stages if me is not None and me.role == "learner" else ()
    parts = [Part(1, state)] if state else []
    if holds:
        parts.append(Part(3, f"holds {_listed(holds)}"))
    else:
        parts.append(Part(3, f"learns {_listed(learns)}" if learns else "holds no stage yet"))
    if work.visits:
        parts.append(Part(4, counted(work)))
        if work.share is not None:
            parts.append(Part(6, f"{work.share:.0%} of all"))
        parts.append(Part(8, f"in {duration(work.held_seconds)}"))
    if me is not None and me.computed is not None and me.sent is not None:
        parts.append(Part(7, f"device {me.computed:.0%} busy, line {me.sent:.0%}"))
    return parts


def fitted(groups: Sequence[Sequence[Part]], width: int, cells: Callable[[str], int] = len) -> str:
    """As much of it as fits into `width` cells. The first part is always there, cut by the caller if it must be."""
    ranks = sorted({part.rank for group in groups for part in group}, reverse=True)
    for most in ranks:
        shown = ["; ".join(part.text for part in group if part.rank <= most) for group in groups]
        line = BETWEEN.join(filter(None, shown))
        if cells(line) <= width:
            return line
    return line


def _listed(stages: Collection[int]) -> str:
    """`head, stages 1-3, 7`"""
    found: list[list[int]] = []
    for stage in sorted(stages):
        if found and stage == found[-1][-1] + 1 and found[-1][0] > 0:
            found[-1].append(stage)
        else:
            found.append([stage])
    named = [f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in found if run[0]]
    blocks = [f"{'stage' if len(stages) - (0 in stages) == 1 else 'stages'} {', '.join(named)}"] if named else []
    return ", ".join([*(["head"] if 0 in stages else []), *blocks])
