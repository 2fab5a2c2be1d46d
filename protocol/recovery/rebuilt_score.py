"""Whether a rebuilt stage is far worse than such a stage usually is, by the validation before and after (rule 29).

Weights that were made of others' cannot be compared with anything, and not all that donors lend can be tried (rule 48).
The validation after the first step with them tells what the model is worth now. Where it has risen by far more than a
rung costs at once, something else than learning is lost. Then the stage is made once more, of others than before, and
the next validation decides between the two.

    validation of the step → Scores.judge → AGAIN, BACK or nothing → a Begin of the same step, with another plan
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from ftnode.protocol.recovery.rungs import REBUILT, Available, Choice, filled_from
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Rung

MIDDLE_RISE_MAX: Final = 2.0
"""Nats. Twice of what the worst blend was seen to cost at once, 0.95 (docs/explanation/recovery.md)."""
FIRST_RISE_MAX: Final = 5.5
"""Where the first block stage is a copy of another one, which was seen to cost 2.7."""
REMEMBERED: Final = 16


class Remedy(Enum):
    """`AGAIN`: of others than before. `BACK`: that was worse, so of the first ones."""

    AGAIN = "again"
    BACK = "back"


def rise_max(rebuilt: Mapping[int, Rung], settings: Settings) -> float:
    """Nats by which a validation may rise when these stages were rebuilt together."""
    return sum(FIRST_RISE_MAX if stage == 1 and not settings.swap else MIDDLE_RISE_MAX for stage in rebuilt)


def others(stage: int, available: Available, settings: Settings) -> Choice:
    """How to make the stage of others than it was made of. Rung None: there are no others."""
    _, lenders, _ = filled_from(stage, available, settings)
    rung, again, reason = filled_from(stage, available.without(lenders), settings)
    return (rung, again, reason) if rung in REBUILT else (None, (), "no other stages could lend their weights")


@dataclass(slots=True)
class Scores:
    """Of the recoveries that a leader has seen."""

    _of: dict[int, dict[Attempt, float]] = field(default_factory=dict)
    """Step in which stages were rebuilt → its validations, by the attempts at the next one in which they were made."""

    def judge(self, step: int, attempt: Attempt, before: float | None, score: float, rise: float) -> Remedy | None:
        """A validation of the first step with rebuilt stages. Of each recovery there are two remedies at most."""
        told = self._of.setdefault(step, {})
        if before is None or attempt in told:
            return None
        told[attempt] = score
        scores = [*told.values()]
        while len(self._of) > REMEMBERED:
            del self._of[min(self._of)]
        if len(scores) == 1 and score - before > rise:
            return Remedy.AGAIN
        if len(scores) == 2 and scores[0] - before > rise and scores[1] > scores[0]:
            return Remedy.BACK
        return None
