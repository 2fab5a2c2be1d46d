"""One line per stage out of many holders' rows: how it does, and why it does not.

Pure, so that a watcher can do the same with the rows of a node that sends no summaries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from ftnode.node.watch.status import StageRow, StageSummary

STALL_STEPS = 3.0
"""A step that takes so many times as long as usual stalls."""
STALL_SECONDS_MIN = 2.0
"""Below this it is noise: ages are seen once a second."""
LEFT_OUT_REASON = "nobody holds it, and the others train without it"
LEFT_OUT = "left out"
"""The state of a stage that nobody holds, while routes leave it out."""
STATES = ("rebuilding", "unknown", "waiting", "training", "ready", "finished")
"""The first of these that a holder is in is the stage's."""


@dataclass(frozen=True, slots=True)
class Circumstances:
    """What the reasons depend on besides the rows."""

    waiting: str = ""
    """What the run waits for."""
    finished: bool = False
    step_seconds: float | None = None
    """How long a step usually takes."""
    silence_seconds: float = float("inf")
    """A holder that was not heard for so long is worth a word, if it is one of `heard`."""
    heard: frozenset[str] = frozenset()
    """Who sends heartbeats to the speaker; in large swarms not everybody does to everybody."""
    refused: frozenset[str] = frozenset()
    """Of those heard: nobody listens at their addresses any more."""
    rebuilds: Mapping[int, str] = field(default_factory=dict)
    """Stage → how it is being rebuilt, and why so."""


def summarize(
    rows: Sequence[StageRow],
    age_of: Callable[[int], float | None] = lambda stage: None,
    circumstances: Circumstances | None = None,
) -> tuple[StageSummary, ...]:
    """A summary per stage, in the order of stages. `age_of`: seconds since a stage's step moved."""
    around = circumstances or Circumstances()
    groups: dict[int, list[StageRow]] = {}
    for row in rows:
        groups.setdefault(row.stage, []).append(row)
    queues = {stage: sum(row.queue for row in group) for stage, group in groups.items()}
    fullest = max(queues, key=lambda stage: queues[stage], default=-1)
    crowded = fullest if queues.get(fullest) else None
    found = []
    for stage, group in sorted(groups.items()):
        holders = [row for row in group if row.peer]
        gone = [row for row in holders if _silent(row, around)]
        if around.finished:  # nobody counts them out any more
            holders = [row for row in holders if row not in gone]
        speeds = [row.tokens_per_second for row in holders if row.tokens_per_second]
        age = age_of(stage)
        found.append(
            StageSummary(
                stage, len(holders), group[0].epoch, _state(group, holders, around.waiting),
                max((row.step for row in holders), default=0), sum(speeds) if speeds else None, queues[stage], age,
                LEFT_OUT_REASON if group[0].state == LEFT_OUT and not around.finished
                else reason_of(stage, holders, gone, age, crowded, queues[stage], around),
            )
        )  # fmt: skip
    return tuple(found)


def _state(group: Sequence[StageRow], holders: Sequence[StageRow], waiting: str) -> str:
    return LEFT_OUT if group[0].state == LEFT_OUT else state_of(holders, waiting)


def state_of(holders: Sequence[StageRow], waiting: str = "") -> str:
    """One word for all of them. Holders who would train, if the run did not wait, wait."""
    if not holders:
        return "vacant"
    states = {row.state for row in holders}
    found = next((state for state in STATES if state in states), min(states))
    return "waiting" if waiting and found in ("training", "ready") else found


def _silent(row: StageRow, around: Circumstances) -> bool:
    return row.peer in around.heard and (row.age > around.silence_seconds or row.peer in around.refused)


def reason_of(
    stage: int,
    holders: Sequence[StageRow],
    gone: Sequence[StageRow],
    age: float | None,
    crowded: int | None,
    queue: int,
    around: Circumstances,
) -> str:
    """Why this stage does not get on; empty while it does. `gone`: holders that are silent; `crowded`: the stage where
    most microbatches wait."""
    unheard = f"no word from {gone[0].peer[-6:]} for {gone[0].age:.0f} s" if gone else ""
    if around.finished:
        return unheard if holders else f"can no longer be had{unheard and f': {unheard}'}"
    if not holders:
        return f"waits for {around.waiting}" if around.waiting else "nobody holds it"
    if (how := around.rebuilds.get(stage)) is not None and state_of(holders) == "rebuilding":
        return how
    if unheard:
        return unheard
    if around.waiting:
        return f"waits for {around.waiting}"
    usual = around.step_seconds
    if age is None or usual is None or age <= max(STALL_STEPS * usual, STALL_SECONDS_MIN):
        return ""
    if crowded is None:
        return f"no step for {age:.0f} s, where one takes {usual:.1f} s"
    if crowded == stage:
        return f"{queue} microbatches wait here, where a step takes {usual:.1f} s"
    return f"waits for {'the head' if crowded == 0 else f'stage {crowded}'}"
