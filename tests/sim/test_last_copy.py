"""Whoever hands over while the run ends may be the last with a stage: nobody takes it over any more, and it stays."""

from __future__ import annotations

import pytest

from ftnode.protocol.words.events import Leave, Stay
from tests.sim.test_every_moment import view_of
from tests.sim.test_moments_of_change import ALONE, world_of


@pytest.mark.parametrize("who", ["member", "leader"])
def test_the_run_ends_while_the_only_holder_of_a_stage_hands_over(who: str) -> None:
    world = world_of(ALONE, 4)
    world.run(world.now + 60.0, lambda: world.ledger.top_commit() == ALONE.steps - 1)
    leads = world.by_id[view_of(world).leader.id]
    last = leads if who == "leader" else next(host for host in world.live() if host is not leads)
    (stage,) = last.participant.mine
    world.deliver(last, Leave("Ctrl-C"))
    world.run(world.now + 60.0, lambda: world.ledger.top_commit() == ALONE.steps)
    world.run(world.now + 10 * ALONE.lease_seconds)
    assert last.alive and last.participant.mine == (stage,) and last.participant.departure.leaving
    assert last.participant.holder.versions[stage].step == ALONE.steps
    world.deliver(last, Leave("Ctrl-C"))
    world.run(world.now + 1.0)
    assert not last.alive, "asked again, it goes"


def test_who_stands_still_with_a_last_copy_in_a_pause_is_not_on_its_way_any_more() -> None:
    world = world_of(ALONE, 4)
    world.run(world.now + 60.0, lambda: world.ledger.top_commit() == ALONE.steps - 1)
    last = world.by_id[view_of(world).leader.id]
    world.deliver(last, Leave("pauses, a game", pauses=True))
    world.run(world.now + 60.0, lambda: world.ledger.top_commit() == ALONE.steps)
    world.deliver(last, Stay())
    world.run(world.now + 1.0)
    assert last.alive and not last.participant.departure.leaving and last.participant.departure.stayed
    world.deliver(last, Stay())
    world.run(world.now + 10 * ALONE.lease_seconds)
    assert last.alive and last.participant.departure.stayed == 1
