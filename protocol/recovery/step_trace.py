"""How a stage's only holder trained it in a step, seen from samples of its state (rule 54).

Visits that are done again on a copy tell what the holder passed on, and what a part of the step's microbatches give to
the gradient. Before the step and after it the holder lends a few numbers of its state, the same ones: its weights, and
the moments of its optimiser. From these follows which gradient went into the step (models/retrace.py). One step says
little, as gradients of microbatches differ. So what speaks against a holder is added up over steps.

    copy of the base → Sample of the base → visits of that step → its Begin → Sample of the next → Retrace
"""

from __future__ import annotations

from math import sqrt
from typing import Final

from ftnode.protocol.words.effects import Retrace, Sample
from ftnode.protocol.words.messages import Begin, Donor
from ftnode.protocol.words.types import Attempt, Version

SHARE_EXPECTED: Final = 0.4
"""Of the cosine that some of the visits have with all of them where any two are at right angles to each other. Honest
holders have 0.75 and more on the average, and 0 is no training at all. So this is about half-way."""
GROWTH_TIMES: Final = 3.0
"""What falls short of that counts so many times: the share of an honest holder has a deviation of 0.15."""
GROWTH_MAX: Final = 1.5
"""By so much one step speaks against a holder at most."""
EVIDENCE_MAX: Final = 4.0
"""By Lundberg's bound on what was measured of small models an honest holder's evidence comes to that in fewer than one
of 100,000 trials (decision 0071). Noise takes four or five trials, a turned sign three."""
WORSE_THAN_ANY: Final = 2.0
"""No cosine is so far from 1: the update does not follow from the gradient at all, and that is enough by itself."""


COURSE_EXPECTED: Final = 2.0
"""Standard deviations: chance has more in one of forty copies. Honest holders of small models have 7 and more on the
average, and still 4 where the rate is far too high (decision 0076)."""
COURSE_STEPS_MAX: Final = 30
"""Between two copies. The way of honest weights has less and less to do with one step."""


def grown_by_course(evidence: float, deviations: float) -> float:
    """As grown(), of how the weights went from one copy to the next: as Course says. What is taken off is bounded, too:
    one that adapts is not seen each time."""
    return max(0.0, evidence + max(-GROWTH_MAX, min(GROWTH_MAX, COURSE_EXPECTED - deviations)))


def grown(evidence: float, away: float, done_again: int, microbatches: int) -> float:
    """What speaks against a holder after another step of which `done_again` visits were done again (a cumulative sum:
    E. S. Page 1954, "Continuous Inspection Schemes"). `away`: as Retrace says."""
    share = (1.0 - away) / sqrt(min(1.0, done_again / microbatches))
    return max(0.0, evidence + min(GROWTH_MAX, GROWTH_TIMES * (SHARE_EXPECTED - share)))


def enough(evidence: float, away: float = 0.0) -> bool:
    """To say that the holder trains another way than its microbatches go."""
    return evidence > EVIDENCE_MAX or away > WORSE_THAN_ANY


def spoken(away: float) -> str:
    if away > WORSE_THAN_ANY:
        return "its weights and moments do not follow from those before the step"
    return f"the gradient in its moments has a cosine of {1.0 - away:.2g} with that of visits done again"


class StepTrace:
    """Of one copy."""

    def __init__(self, donor: Donor, before: Version, attempt: Attempt, key: int) -> None:
        """`attempt`: in which the step on that base is computed."""
        self.key = key
        self._donor, self._before, self._attempt = donor, before, attempt
        self._after: Version | None = None
        self._whole = set[Version]()
        self._over = False

    @property
    def goes_on(self) -> bool:
        """There is more to come of it."""
        return not self._over

    def end(self) -> None:
        self._over = True

    def begin(self) -> Sample:
        return Sample(self._donor, self._before, self.key)

    def on_begin(self, begin: Begin) -> Sample | None:
        """What the step has become is asked for in the next one. Another attempt has taken its place: that was none of
        whose tensors were shown."""
        if begin.base == self._before:
            self._over = self._over or begin.attempt != self._attempt
            return None
        if self._over or self._after is not None:
            return None
        if (begin.base.step, begin.base.attempt) != (self._before.step + 1, self._attempt):
            self._over = True
            return None
        self._after = begin.base
        return Sample(self._donor, begin.base, self.key)

    def on_sample(self, task: Sample, fault: str) -> None:
        if task.key == self.key and task.version in (self._before, self._after):
            self._whole.add(task.version)
            self._over = self._over or bool(fault)

    def due(self) -> Retrace | None:
        """Both samples are here."""
        if self._over or self._after is None or len(self._whole) < 2:
            return None
        return Retrace(self._donor.stage, self._before, self._after, self.key)
