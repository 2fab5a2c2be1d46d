"""Who gave what to a run, for people."""

from __future__ import annotations

from collections.abc import Sequence

from ftnode.node.home.size import size_text
from ftnode.node.watch.status import CreditRow, SwarmStatus
from ftnode.node.watch.status_table import Table, printable, short_peer

COLUMNS = ("peer", "visits", "share", "hours", "brought back", "relayed", "name")
"""The name is last: letters that are read from the right move nothing but themselves there."""
OTHERS = "others"
RELAYS_SHOWN = 4
"""Who relays most is shown, though it computed less than others."""
VISIT = "a visit: one pass of a part of a step's batch through a stage, forward or backward"

NO_MEMBER = (
    "no member of a run answered, and a meeting point counts nobody; ask a volunteer: ftnode credits --peer ADDR"
)


def shares(rows: Sequence[CreditRow]) -> list[float]:
    """Each row's share of all visits, 0 to 1."""
    whole = sum(row.visits for row in rows)
    return [row.visits / whole if whole else 0.0 for row in rows]


def first(rows: Sequence[CreditRow], count: int) -> tuple[CreditRow, ...]:
    """The first `count` peers, the last of them for what they relayed, and all others as one row."""
    named = [row for row in rows if row.peer]
    carriers = sorted((row for row in named[count:] if row.relayed_bytes), key=lambda row: -row.relayed_bytes)
    carriers = carriers[:RELAYS_SHOWN]
    shown = (*named[: count - len(carriers)], *carriers)
    chosen = {row.peer for row in shown}
    rest = [row for row in rows if row.peer not in chosen]
    if not rest:
        return shown
    seconds, rebuilt = sum(row.seconds for row in rest), sum(row.rebuilt for row in rest)
    relayed = sum(row.relayed_bytes for row in rest)
    return (*shown, CreditRow("", sum(row.visits for row in rest), seconds, rebuilt, relayed_bytes=relayed))


def credit_table(status: SwarmStatus) -> Table:
    rows = tuple(
        (
            short_peer(row.peer) if row.peer else OTHERS, f"{row.visits:,}", f"{share:.1%}",
            f"{row.seconds / 3600:,.2f}", str(row.rebuilt) if row.rebuilt else "",
            size_text(row.relayed_bytes) if row.relayed_bytes else "", printable(row.name),
        )
        for row, share in zip(status.credits, shares(status.credits))
    )  # fmt: skip
    return Table(COLUMNS, rows)


def credit_lines(status: SwarmStatus) -> list[str]:
    """The table, and how far it goes."""
    if not status.credits and (status.speaker.role == "bootstrap" or status.told_by):
        return [NO_MEMBER]
    if not status.credits:
        return ["nobody is credited with anything yet: no step has been committed since this node takes part"]
    behind = "" if status.credits_step >= status.step else f"; the run is at step {status.step:,}"
    head = f"{printable(status.name)} ({printable(status.run[:12])}), steps 1 to {status.credits_step:,}{behind}"
    return [head, *credit_table(status).lines(), VISIT]
