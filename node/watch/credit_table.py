"""Who gave what to a run, for people."""

from __future__ import annotations

from collections.abc import Sequence

from ftnode.node.watch.status import CreditRow, SwarmStatus
from ftnode.node.watch.status_table import Table, printable, short_peer

COLUMNS = ("peer", "visits", "share", "hours", "brought back", "name")
"""The name is last: letters that are read from the right move nothing but themselves there."""
OTHERS = "others"
VISIT = "a visit: one pass of a part of a step's batch through a stage, forward or backward"


def shares(rows: Sequence[CreditRow]) -> list[float]:
    """Each row's share of all visits, 0 to 1."""
    whole = sum(row.visits for row in rows)
    return [row.visits / whole if whole else 0.0 for row in rows]


def first(rows: Sequence[CreditRow], count: int) -> tuple[CreditRow, ...]:
    """The first `count` peers, and all others as one row."""
    named = [row for row in rows if row.peer]
    rest = [*named[count:], *(row for row in rows if not row.peer)]
    if not rest:
        return tuple(named)
    seconds, rebuilt = sum(row.seconds for row in rest), sum(row.rebuilt for row in rest)
    return (*named[:count], CreditRow("", sum(row.visits for row in rest), seconds, rebuilt))


def credit_table(status: SwarmStatus) -> Table:
    rows = tuple(
        (
            short_peer(row.peer) if row.peer else OTHERS, f"{row.visits:,}", f"{share:.1%}",
            f"{row.seconds / 3600:,.2f}", str(row.rebuilt) if row.rebuilt else "", printable(row.name),
        )
        for row, share in zip(status.credits, shares(status.credits))
    )  # fmt: skip
    return Table(COLUMNS, rows)


def credit_lines(status: SwarmStatus) -> list[str]:
    """The table, and how far it goes."""
    if not status.credits:
        return ["nobody is credited with anything yet: no step has been committed since this node takes part"]
    behind = "" if status.credits_step >= status.step else f"; the run is at step {status.step:,}"
    head = f"{printable(status.name)} ({printable(status.run[:12])}), steps 1 to {status.credits_step:,}{behind}"
    return [head, *credit_table(status).lines(), VISIT]
