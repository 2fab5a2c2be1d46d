"""A voter that does not vote when the leader is gone does not hold the others up (rule 16)."""

from __future__ import annotations

from typing import Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.views.following import ABSTAINS_BALLOTS, Following
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.test_duty import LONG, TRAINS_SECONDS, betrays, seen, swarm
from tests.sim.world import World

BOUND_SECONDS: Final = (
    2 * LONG.lease_seconds + LONG.poll_seconds + 2 * ABSTAINS_BALLOTS * LONG.ballot_seconds
    + LONG.takeover_seconds * LONG.stage_count + 3 * 2 * LONG.lease_seconds + LONG.minority_wait_seconds
    + LONG.offer_seconds + 10.0
)  # fmt: skip
"""The leader is found silent, ballots, the turn of the third voter at most, an offer, and a step."""


def bereaved(seed: int, spare: int = 2) -> tuple[World, Host]:
    """The leader dies, and so few voters vote that there is no quorum."""
    world = swarm(seed, spare=spare)
    world.run(world.now + TRAINS_SECONDS)
    view = seen(world)
    abstains = world.by_id[[peer for peer in view.voters if peer != view.leader][seed % (len(view.voters) - 1)].id]
    betrays(abstains, traitor.abstaining)
    world.kill(world.by_id[view.leader.id], "kill", silently=False)
    return world, abstains


def goes_on(world: World) -> bool:
    before = world.ledger.top_commit()
    world.run(world.now + BOUND_SECONDS, lambda: world.ledger.top_commit() >= before + 3)
    return world.ledger.top_commit() >= before + 3


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_others_go_on_without_a_voter_that_does_not_vote(seed: int) -> None:
    world, abstains = bereaved(seed)
    assert goes_on(world) and abstains.peer not in seen(world).voters


def test_otherwise_they_wait_for_ever() -> None:
    with patched((Following, "_abstaining", lambda self, s, balloting: set())):
        assert not goes_on(bereaved(1)[0])
