"""FlexiTrain's Tables 1 and 2 by the same simulator: 64 data-parallel ranks that share 0.15 failures an hour, a
checkpoint each three hours, and 20 minutes to read one.

With FlexiTrain a rank that fails is out until the next checkpoint, and the others go on with their own batches. With
checkpoints alone everybody goes back to the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from random import Random
from statistics import mean
from typing import Any, Final

from ftnode.lab.planner.arrangements import Arrangement
from ftnode.lab.planner.policies import Answer
from ftnode.lab.planner.setting import HOUR, Change, Setting
from ftnode.lab.planner.simulation import simulated

RANKS: Final = 64
FAILURES_AN_HOUR: Final = 0.15
CHECKPOINT_HOURS: Final = 3.0
READING_HOURS: Final = 1 / 3
MONTH_HOURS: Final = 720.0
STEP_SECONDS: Final = 1.0
PAPER: Final = {
    "table_1": {"flexitrain": 99.85, "checkpoints": 80.18}, "table_2": {"flexitrain": 99.30, "checkpoints": 79.36},
}  # fmt: skip


class Elastic:
    """FlexiTrain: as much work as there are ranks."""

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        return Arrangement("ranks", (), STEP_SECONDS * setting.machines / len(there)) if there else None

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        return Answer(self.begin(setting, there))


class Checkpoints:
    """All that was done since the last checkpoint, or since it was read again, is lost. Then all ranks go on."""

    def __init__(self) -> None:
        self.began = 0.0

    def begin(self, setting: Setting, there: Sequence[str]) -> Arrangement | None:
        return Arrangement("ranks", (), STEP_SECONDS)

    def answer(
        self, setting: Setting, before: Arrangement | None, change: Change, there: Sequence[str], until: float
    ) -> Answer:
        if change.back:
            return Answer(before)
        last = change.at // (CHECKPOINT_HOURS * HOUR) * CHECKPOINT_HOURS * HOUR
        lost = max(0.0, change.at - max(last, self.began))
        # A failure while a checkpoint is read begins that anew.
        pause = change.at + READING_HOURS * HOUR - max(change.at, self.began)
        self.began = change.at + READING_HOURS * HOUR
        return Answer(before, pause, lost)


def failures(hours: float, chance: Random) -> list[Change]:
    """Of ranks that are there. They are back with the next checkpoint."""
    found, away, at = list[Change](), dict[str, float](), 0.0
    while (at := at + chance.expovariate(FAILURES_AN_HOUR) * HOUR) < hours * HOUR:
        name = f"n{chance.randrange(RANKS):03}"
        if away.get(name, 0.0) <= at:
            away[name] = (at // (CHECKPOINT_HOURS * HOUR) + 1) * CHECKPOINT_HOURS * HOUR
            found += [Change(at, (name,), False), Change(away[name], (name,), True)]
    found.sort(key=lambda change: (change.at, change.names))
    return [change for change in found if change.at < hours * HOUR]


def simulation(seeds: int, hours: float = MONTH_HOURS) -> dict[str, float]:
    """Per cent of what there would be without failures, as in Table 1."""
    setting = Setting(machines=RANKS, hours=hours, microbatches=1)
    found: dict[str, list[float]] = {"flexitrain": [], "checkpoints": []}
    for seed in range(seeds):
        events = failures(hours, Random(seed))
        for name, policy in (("flexitrain", Elastic()), ("checkpoints", Checkpoints())):
            found[name].append(100 * simulated(setting, policy, events).microbatches * STEP_SECONDS / (hours * HOUR))
    return {name: mean(shares) for name, shares in found.items()}


def derivation() -> dict[str, float]:
    """The paper's formulas, as in Table 2: what is there at the end of an interval; and what the first failure in it
    costs."""
    expected = FAILURES_AN_HOUR * CHECKPOINT_HOURS
    some = 1 - exp(-expected)
    first = 1 / FAILURES_AN_HOUR - CHECKPOINT_HOURS * exp(-expected) / some
    wasted = some * (first + READING_HOURS) / CHECKPOINT_HOURS
    return {"flexitrain": 100 * (1 - expected / RANKS), "checkpoints": 100 * (1 - wasted)}


def figures(seeds: int) -> dict[str, Any]:
    return {"table_1": simulation(seeds), "table_2": derivation(), "paper": PAPER}
