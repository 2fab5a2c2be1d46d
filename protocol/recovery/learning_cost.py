"""What it costs in learning when a stage has lost its last holder, by the rung that fills it again.

A rebuilt stage sets the model back at once, and training makes most of that good again. What stays was measured over
whole runs (docs/explanation/recovery.md, docs/recovery/runs.csv): iterations behind the run without failures, for each
failure, at one failure in 33 iterations of a small model. With more failures it is less for each (9.3, 5.0 and 2.6 at
24, 51 and 107), so that this is what a rare loss costs at least.
"""

from __future__ import annotations

from typing import Final

from ftnode.protocol.recovery.rungs import choose_rung
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Rung

MIDDLE: Final = 5.0
"""Steps, of a blend where only middle stages are lost: 121 behind after 24.7 failures."""
FIRST_STAGE: Final = 25.0
"""Of the first block stage without swapped routes: what 225 behind after 24.3 failures leave for the fifth that hits
it."""
AGE: Final = 0.08
"""For each step that a copy is old: 48 behind after 24.3 failures, with copies that were 25 steps old on average."""
FIRST_MODEL: Final = 0.1
"""Of a blend, where the run goes on from a model: a tenth of the rise."""
OMITTED: Final = 10.0
"""Of a middle stage that routes leave out for a while, and that a blend fills again, beyond what its loss costs anyway.
Caution: no difference was seen that is larger than the noise."""
HALTED: Final = 200.0
"""The run stands still until somebody comes back. As much as the most that a loss was seen to take at once."""


def lost_steps(settings: Settings) -> tuple[float, ...]:
    """Of each stage, the head's first, when its last holder goes and all others stay."""
    return tuple(_lost(stage, settings) for stage in range(settings.stage_count))


def _lost(stage: int, settings: Settings) -> float:
    every = settings.head_every if stage == HEAD else settings.shadow_every
    copied = {stage: 0} if every else {}
    alive = frozenset(range(settings.stage_count)) - {stage}
    rung, _, _ = choose_rung(stage, alive, 1, settings, copied)
    if rung is None:
        return HALTED
    if rung in (Rung.HEAD, Rung.SHADOW):
        return AGE * every / 2
    if rung is Rung.FIRST:
        return FIRST_MODEL * MIDDLE
    return FIRST_STAGE if stage == 1 and not settings.swap else MIDDLE
