"""A status for people: a table on a terminal, lines elsewhere. Text from peers is shown without control characters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ftnode.node.status import RecoveryRow, StageRow, SwarmStatus

if TYPE_CHECKING:
    from rich.console import RenderableType

STAGE_COLUMNS = ("stage", "peer", "state", "epoch", "step", "microbatches", "queue", "heard")
RECOVERIES_SHOWN = 5
TEXT_SHOWN = 120
PEER_SHOWN = 6


def printable(text: str) -> str:
    """One line without control characters, so that a stranger cannot write escape codes to our terminal."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text)
    return shown if len(shown) <= TEXT_SHOWN else f"{shown[: TEXT_SHOWN - 1]}…"


def short_peer(peer: str) -> str:
    return printable(peer[-PEER_SHOWN:]) or "-"


def render(status: SwarmStatus) -> RenderableType:
    """For rich's console or its live display."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = [Text(line) for line in heading_lines(status)]
    if status.stages:
        table = Table(*STAGE_COLUMNS, box=None, pad_edge=False)
        for row in status.stages:
            table.add_row(*map(Text, stage_cells(row)), style="bold red" if not row.peer else None)
        parts.append(table)
    parts += [Text(line) for line in closing_lines(status)]
    return Group(*parts)


def plain_lines(status: SwarmStatus) -> list[str]:
    """The same as text, for logs and pipes."""
    rows = [STAGE_COLUMNS, *(stage_cells(row) for row in status.stages)] if status.stages else []
    widths = [max(len(row[column]) for row in rows) for column in range(len(STAGE_COLUMNS))] if rows else []
    table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    return [*heading_lines(status), *table, *closing_lines(status)]


def heading_lines(status: SwarmStatus) -> list[str]:
    who = f"{printable(status.speaker.role)} {short_peer(status.speaker.peer)}"
    if not status.run:
        return [f"{who} takes part in no run", *_member_lines(status)]
    progress = f"step {status.step} of {status.steps}"
    loss = _figures([("loss", status.loss, ".4f"), ("validation", status.validation, ".4f")])
    speed = _figures([("tokens/s", status.tokens_per_second, ",.0f")])
    return [
        f"{printable(status.name)} ({printable(status.run[:12])}) as {who} sees it",
        ", ".join(text for text in (progress, loss, speed, printable(status.state)) if text),
        f"view {status.view} of lineage {printable(status.lineage[:8]) or '-'}, led by {short_peer(status.leader)}",
    ]


def stage_cells(row: StageRow) -> tuple[str, ...]:
    name = "head" if row.stage == 0 else str(row.stage)
    if not row.peer:
        return (name, "vacant", printable(row.state), str(row.epoch), "", "", "", "")
    counts = (str(row.epoch), str(row.step), str(row.accumulated), str(row.queue))
    return (name, short_peer(row.peer), printable(row.state), *counts, f"{row.age:.1f} s")


def closing_lines(status: SwarmStatus) -> list[str]:
    lines = []
    if status.standbys:
        lines.append(f"standing by: {', '.join(short_peer(peer) for peer in status.standbys[:16])}")
    if status.copies:
        fetched = sum(copy.bytes_fetched for copy in status.copies)
        stages = dict.fromkeys("the head" if copy.stage == 0 else f"stage {copy.stage}" for copy in status.copies)
        lines.append(f"copies of {', '.join(stages)} are kept; {fetched / 1e6:.1f} MB fetched for them so far")
    if status.skipped_steps:
        lines.append(f"{status.skipped_steps} steps were skipped")
    if status.waiting:
        lines.append(f"waiting for {printable(status.waiting)}")
    return lines + [_recovery_line(recovery) for recovery in status.recoveries[-RECOVERIES_SHOWN:]]


def _recovery_line(row: RecoveryRow) -> str:
    took = "not yet healed" if row.seconds is None else f"healed in {row.seconds:.1f} s"
    who = f"{short_peer(row.lost)} -> {short_peer(row.newcomer)}"
    fetched = f", {row.bytes_fetched / 1e6:.1f} MB" if row.bytes_fetched else ""
    why = f"{printable(row.rung)}, {took}{fetched} ({printable(row.reason)})"
    losses = _figures([("validation before", row.validation_before, ".3f"), ("after", row.validation_after, ".3f")])
    stage = "the head" if row.stage == 0 else f"stage {row.stage}"
    return f"{stage} lost at step {row.step}: {who} by {why}{'; ' + losses if losses else ''}"


def _member_lines(status: SwarmStatus) -> Iterable[str]:
    runs: dict[tuple[str, str], int] = {}
    for member in status.members:
        runs[member.run, member.name] = runs.get((member.run, member.name), 0) + 1
    return [f"it knows {count} of {printable(name)} ({printable(run[:12])})" for (run, name), count in runs.items()]


def _figures(figures: Iterable[tuple[str, float | None, str]]) -> str:
    return ", ".join(f"{name} {value:{shape}}" for name, value, shape in figures if value is not None)
