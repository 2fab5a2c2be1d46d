"""Whoever hands over while the run ends may be the last with a stage: nobody takes it over any more, and it stays."""

from __future__ import annotations

from ftnode.protocol.events import Leave
from tests.sim.targets import holders
from tests.sim.test_every_moment import view_of
from tests.sim.test_moments_of_change import ALONE, world_of


def test_the_run_ends_while_the_only_holder_of_a_stage_hands_over() -> None:
    world = world_of(ALONE, 4)
    world.run(world.now + 60.0, lambda: world.ledger.top_commit() == ALONE.steps - 1)
    (last,) = holders(world, view_of(world))[1]
    world.deliver(last, Leave("Ctrl-C"))
    world.run(world.now + 60.0, lambda: world.ledger.top_commit() == ALONE.steps)
    world.run(world.now + 10 * ALONE.lease_seconds)
    assert last.alive and last.participant.mine == (1,) and last.participant.leaving
    assert last.participant.holder.versions[1].step == ALONE.steps
    world.deliver(last, Leave("Ctrl-C"))
    world.run(world.now + 1.0)
    assert not last.alive, "asked again, it goes"
