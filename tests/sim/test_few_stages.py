"""Runs of one to three block stages, where who keeps a stage's shadow holds a stage beside it, or the head."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from tests.sim.honest_runs import accused, few_stages
from tests.sim.liars import grown, view_of
from tests.sim.test_duty import LONG

SETTINGS: Final = replace(LONG, microbatches=4, window=4)


def after_its_last_stage_is_lost(stages: int, shadow_every: int) -> tuple[bool, list[str]]:
    """Somebody stands by. Whether the run goes on, and of what the stage is made."""
    world = grown(1, replace(SETTINGS, stages=stages, shadow_every=shadow_every), stages + 1, spare=1)
    world.run(world.now + 20.0)
    world.notes.clear()
    (gone,) = view_of(world).holders[stages]
    world.kill(world.by_id[gone.id], "kill", silently=False)
    before = world.ledger.top_commit()
    world.run(world.now + 60.0, lambda: world.ledger.top_commit() >= before + 10)
    made = [note.partition(", from ")[2] for note in world.notes if f"rebuilt: stage {stages} " in note]
    return world.ledger.top_commit() >= before + 10, made


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_lost_stage_goes_on_from_its_copy(stages: int) -> None:
    assert after_its_last_stage_is_lost(stages, 4) == (True, ["a kept copy"])


def test_without_one_it_is_made_of_the_stage_beside_and_where_there_is_none_the_run_waits() -> None:
    assert after_its_last_stage_is_lost(2, 0) == (True, ["a neighbour's weights"])
    assert after_its_last_stage_is_lost(1, 0) == (False, [])


@pytest.mark.parametrize("seed", range(2000, 2010))
def test_whatever_goes_wrong_nobody_honest_is_accused(seed: int) -> None:
    """All faults of the virtual world; half of all visits are done again."""
    assert accused([seed], few_stages) == []
