"""Runs in which all faults of the virtual world happen and nobody lies, with checks: is anybody honest told to lie?

    python -m tests.sim.honest_runs 2000 3000

The seeds from the first to before the last. It prints what was violated, and how many runs nobody was accused in.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tests.sim import scenario
from tests.sim.planted import patched
from tests.sim.scenario import Scenario

CHECKS: Final = 0.02
DRAWN: Final = scenario.draw_settings


def accused(seeds: Iterable[int], checks: float = CHECKS) -> list[str]:
    """What the invariants found, I10 among them: nobody is told to lie who gave what its visits give."""
    with patched((scenario, "draw_settings", lambda *given: replace(DRAWN(*given), checks=checks))):
        outcomes = [Scenario(seed).run() for seed in seeds]
    return [outcome.report() for outcome in outcomes if outcome.violation]


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:3])
    found = accused(range(first, last))
    print("\n\n".join([*found, f"{last - first - len(found)} of {last - first} runs without a violation"]))
