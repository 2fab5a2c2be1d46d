"""What it costs in learning when a stage has lost its last holder, by the rung that fills it again.

A rebuilt stage sets the model back at once, and training makes most of that good again. What stays was measured over
whole runs of 800 iterations (docs/explanation/recovery.md, docs/recovery/runs.csv): iterations behind the run without
failures. It grows with the failures, and ever less: 225, 257 and 277 after 24, 51 and 107. That is 297 · n / (n + H)
within one iteration, with H = 7.66, so that the next loss after n others costs 297 · H / ((n + H) · (n + 1 + H)). Of
losses of middle stages alone there is one measurement, 121 after 24.7, which gives their scale. What is left of all
falls to the fifth that hits the first stage. Fitted to those runs one by one (docs/recovery/cost_fit.csv), 90 % of a
bootstrap over the seeds is 10.5 to 19.7 for MIDDLE and 6.7 to 16.0 for HALF. How it goes with the age of a run was not
measured. Caution: over runs much longer than LONG_AGO the sum is no longer larger where more is lost (10,000 steps: 876
with 122 losses, 815 with 245).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from ftnode.protocol.recovery.rungs import REBUILT, choose_rung
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Rung

MIDDLE: Final = 18.3
"""Steps, of the first loss of a middle stage in a run."""
FIRST_STAGE: Final = 98.0
"""Of the first block stage, without swapped routes."""
HALF: Final = 7.66
"""H: so many losses cost half of what any number costs."""
LONG_AGO: Final = 800
"""Steps after which a loss counts no more among those before: the length of the runs that were measured."""
AGE: Final = 0.08
"""For each step that a copy is old: 48 behind after 24.3 failures, with copies that were 25 steps old on average."""
FIRST_MODEL: Final = 0.1
"""Of a rebuilt stage, where the run goes on from a model: a tenth of the rise."""
OMITTED: Final = 10.0
"""Of a middle stage that routes leave out for a while, and that a blend fills again, beyond what its loss costs anyway.
Caution: no difference was seen that is larger than the noise."""
HALTED: Final = 200.0
"""The run stands still until somebody comes back. As much as the most that a loss was seen to take at once."""


def steps_lost(stage: int, rung: Rung | None, settings: Settings, age: float = 0.0, before: int = 0) -> float:
    """Steps of learning that are lost when `rung` fills the stage; None: nothing does. `age`: steps that a copy is old;
    `before`: rebuilt stages of the last LONG_AGO steps."""
    if rung is None:
        return HALTED
    if rung in (Rung.HEAD, Rung.SHADOW):
        return AGE * age
    if rung not in REBUILT | {Rung.FIRST}:
        return 0.0
    first = FIRST_STAGE if stage == 1 and not settings.swap else MIDDLE
    fewer = HALF * (1 + HALF) / ((before + HALF) * (before + 1 + HALF))
    return (FIRST_MODEL if rung is Rung.FIRST else 1.0) * first * fewer


def rebuilt_lately(rebuilt: Iterable[int], step: int) -> int:
    """How many of the stages that were rebuilt at these steps count for one that is lost at `step`."""
    return sum(step - at < LONG_AGO for at in rebuilt)


def risked_steps(settings: Settings, rebuilt: Iterable[int] = (), step: int = 0) -> tuple[float, ...]:
    """Of each stage, the head's first, when its last holder goes and all others stay. `rebuilt`: at which steps stages
    were, of a run that is at `step`."""
    before = rebuilt_lately(rebuilt, step)
    return tuple(_risked(stage, settings, before) for stage in range(settings.stage_count))


def _risked(stage: int, settings: Settings, before: int) -> float:
    every = settings.head_every if stage == HEAD else settings.shadow_every
    copied = {stage: 0} if every else {}
    alive = frozenset(range(settings.stage_count)) - {stage}
    rung, _, _ = choose_rung(stage, alive, 1, settings, copied)
    return steps_lost(stage, rung, settings, every / 2, before)
