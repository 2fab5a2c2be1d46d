"""A world that finds nothing proves nothing: each of these bugs in the core must be found by its checks."""

from __future__ import annotations

import warnings
from itertools import chain

import pytest

from tests.sim.planted import BUGS
from tests.sim.run import run_seeds
from tests.sim.scenario import run_seed

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_found(name: str) -> None:
    """And what was found is the bug's: the same seed holds without it."""
    plant, faults, shows, seeds = BUGS[name]
    with plant():
        tried = chain(run_seeds([shows], 1, faults), run_seeds(range(1, seeds + 1), 2, faults))
        found = next((outcome for outcome in tried if outcome.violation), None)
    assert found is not None, f"{name} went unnoticed in {seeds} seeds"
    assert not found.violation.startswith("core: TypeError"), "the patch does not fit what it patches"
    if found.seed != shows:
        warnings.warn(f"seed {found.seed} shows {name} now; name it in planted.py", stacklevel=1)
    without = run_seed(found.seed, faults=tuple(faults))
    assert not without.violation, without.report()
