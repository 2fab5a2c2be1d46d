"""A world that finds nothing proves nothing: each of these bugs in the core must be found by its checks."""

from __future__ import annotations

import pytest

from tests.sim.planted import BUGS
from tests.sim.run import run_seeds

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    plant, faults, seeds = BUGS[name]
    with plant():
        found = next((outcome for outcome in run_seeds(range(1, seeds + 1), 2, faults) if outcome.violation), None)
    assert found is not None, f"{name} went unnoticed in {seeds} seeds"


def test_the_same_seeds_hold_without_the_bugs() -> None:
    """The patches are gone, and what was found was theirs."""
    for faults in {faults for _, faults, _ in BUGS.values()}:
        bad = [outcome.report() for outcome in run_seeds(range(1, 41), 2, faults) if outcome.violation]
        assert bad == []
