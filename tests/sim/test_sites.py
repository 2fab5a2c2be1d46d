"""A whole site goes at once: its peers are lost together, and the others come through."""

from __future__ import annotations

import pytest

from tests.sim.run import run_seeds

FAULTS = ("site", "site", "kill", "pause", "election")


@pytest.mark.timeout(600)
def test_the_world_comes_through_the_loss_of_a_site() -> None:
    outcomes = list(run_seeds(range(1, 41), 2, FAULTS))
    bad = [outcome for outcome in outcomes if outcome.violation]
    assert not bad, bad[0].report()
    struck = [outcome for outcome in outcomes if outcome.faults["site"]]
    assert len(struck) > 20
    rungs = {rung for outcome in struck for fault, rung in outcome.met if fault == "site"}
    assert len(rungs) > 2, f"stages that a site took came back by {rungs}"
