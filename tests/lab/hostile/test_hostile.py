"""An attack end to end, against real processes: one that the swarm holds against."""

from __future__ import annotations

import pytest
import trio

from ftnode.lab.hostile import attacks, field
from ftnode.lab.hostile.outcome import finding

NEWCOMERS = 2
SECONDS = 3.0
SETTLE_SECONDS = 1.0
SHARE_MIN = 0.6
"""Of the rate before: other swarms may run beside this one, and a few seconds have few steps."""


@pytest.mark.swarm
def test_newcomers_that_accept_everything_and_do_nothing_cost_the_others_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attacks, "EMPTY_NEWCOMERS", NEWCOMERS)
    monkeypatch.setattr(field, "SETTLE_SECONDS", SETTLE_SECONDS)
    with field.open_field(SECONDS, field.Ground(replicas=attacks.NEWCOMERS_REPLICAS)) as swarm:
        found = trio.run(attacks.empty_newcomers, swarm)
        notes = [told.record["text"] for told in swarm.trial.story.notes]
    assert finding(found) == ""
    assert found.before > 0 and min(found.during, found.after) >= SHARE_MIN * found.before
    assert any(" learns stage" in text or " learns the head" in text for text in notes), "nobody took them in"
