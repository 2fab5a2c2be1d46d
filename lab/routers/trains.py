"""Does a run train behind each pair of routers? Of `ftnode lab routers`: two members that have never met, one behind
either router, and one meeting point. Both dial each other, so that a pair is tried once, in no order.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Final

from ftnode.lab.routers.runs import Home, open_run
from ftnode.lab.swarms.trial import small_manifest
from ftnode.protocol.words.errors import UserError

PACE: Final = (0.01, 0.02)
STEPS: Final = 3
TRAIN_SECONDS: Final = 90.0


@dataclass(frozen=True, slots=True)
class Trained:
    """A pair. `seconds`: from the start of both to the commit of step STEPS; `why` there is none."""

    one: str
    other: str
    trains: bool
    seconds: float
    why: str


def measure(folder: Path, kinds: Sequence[str], delay_seconds: float) -> list[Trained]:
    return [
        of_pair(folder / f"{one}-{other}", one, other, delay_seconds)
        for one, other in combinations_with_replacement(kinds, 2)
    ]


def of_pair(folder: Path, one: str, other: str, delay_seconds: float) -> Trained:
    homes = {"one": Home(one), "other": Home(other)}
    with open_run(folder, small_manifest(None, 1), homes, delay_seconds, PACE) as (trial, _):
        began = time.monotonic()
        for name in homes:
            trial.volunteer(name)
        try:
            trial.wait_for_step(STEPS, TRAIN_SECONDS)
        except UserError as error:
            return Trained(one, other, False, time.monotonic() - began, str(error))
        return Trained(one, other, True, time.monotonic() - began, "")
