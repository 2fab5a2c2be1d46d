"""A voter that does not vote when the leader is gone does not hold the others up (rule 16)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.views.following import Following
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.messages import Heartbeat
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.test_duty import LONG, TRAINS_SECONDS, betrays, seen, swarm
from tests.sim.world import World

BOUND_SECONDS: Final = (
    2 * LONG.lease_seconds + LONG.poll_seconds + LONG.takeover_seconds * LONG.stage_count
    + 2 * LONG.lease_seconds + 2 * 2 * LONG.lease_seconds + LONG.minority_wait_seconds + LONG.offer_seconds + 10.0
)  # fmt: skip
"""The leader is found silent, ballots, a voter is quiet, the turn of the third voter at most, an offer, and a step."""


def pretending(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
    """It says nothing in any election, and of the dead leader that it hears it."""
    return [_hearing(effect) for effect in traitor.abstaining(event, decide)]


def _hearing(effect: fx.Effect) -> fx.Effect:
    if isinstance(effect, fx.Send) and isinstance(effect.message, Heartbeat):
        return replace(effect, message=replace(effect.message, quorate=True))
    return effect


def bereaved(seed: int, way: traitor.Way = traitor.abstaining, spare: int = 2) -> tuple[World, Host]:
    """The leader dies, and so few voters vote that there is no quorum."""
    world = swarm(seed, spare=spare)
    world.run(world.now + TRAINS_SECONDS)
    view = seen(world)
    abstains = world.by_id[[peer for peer in view.voters if peer != view.leader][seed % (len(view.voters) - 1)].id]
    betrays(abstains, way)
    world.kill(world.by_id[view.leader.id], "kill", silently=False)
    return world, abstains


def goes_on(world: World, seconds: float = BOUND_SECONDS) -> bool:
    before = world.ledger.top_commit()
    world.run(world.now + seconds, lambda: world.ledger.top_commit() >= before + 3)
    return world.ledger.top_commit() >= before + 3


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_others_go_on_without_a_voter_that_does_not_vote(seed: int) -> None:
    world, abstains = bereaved(seed)
    assert goes_on(world) and abstains.peer not in seen(world).voters


@pytest.mark.parametrize("seed", range(1, 4))
def test_nor_with_one_that_says_for_ever_that_it_hears_the_dead_leader(seed: int) -> None:
    world, abstains = bereaved(seed, pretending)
    assert goes_on(world, BOUND_SECONDS + LONG.look_for_seconds) and abstains.peer not in seen(world).voters


def test_otherwise_they_wait_for_ever() -> None:
    with patched((Following, "_abstaining", lambda self, s, balloting: set())):
        assert not goes_on(bereaved(1)[0])
