"""Runs in which all faults of the virtual world happen and nobody lies, with checks: is anybody honest told to lie?

    python -m tests.sim.honest_runs 2000 3000
    python -m tests.sim.honest_runs 2000 3000 few

The seeds from the first to before the last. It prints what was violated, and how many runs nobody was accused in. With
`few` they have one to three block stages and shadows, so that who keeps one holds a stage beside.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random
from typing import Final

from ftnode.protocol.words.settings import Settings
from tests.sim import scenario
from tests.sim.planted import patched
from tests.sim.scenario import Scenario

CHECKS: Final = 0.02
MANY_CHECKS: Final = 0.5
DRAWN: Final = scenario.draw_settings


def usual(chance: Random, replicas: int = 1) -> Settings:
    return replace(DRAWN(chance, replicas), checks=CHECKS)


def few_stages(chance: Random, replicas: int = 1) -> Settings:
    """Few hold a stage with others, so that its only holder is tried."""
    drawn = DRAWN(chance, min(replicas, 2))
    stages, every = chance.randint(1, 3), chance.choice([1, 2, 3])
    return replace(drawn, stages=stages, swap=False, shadow_every=every, checks=MANY_CHECKS)


def accused(seeds: Iterable[int], drawn: Callable[..., Settings] = usual) -> list[str]:
    """What the invariants found, I10 among them: nobody is told to lie who gave what its visits give."""
    with patched((scenario, "draw_settings", drawn)):
        outcomes = [Scenario(seed).run() for seed in seeds]
    return [outcome.report() for outcome in outcomes if outcome.violation]


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:3])
    found = accused(range(first, last), few_stages if "few" in sys.argv[3:] else usual)
    print("\n\n".join([*found, f"{last - first - len(found)} of {last - first} runs without a violation"]))
