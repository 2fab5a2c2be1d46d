"""Members that others vouched for: those of one volunteer are a crowd, and answer for each other (rules 44, 45)."""

from __future__ import annotations

from typing import Final

import pytest

from ftnode.protocol.step.probation import STEPS, Probation
from ftnode.protocol.words.events import Vouched
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.test_at_odds import lost
from tests.sim.test_checks import turned
from tests.sim.test_crowds import ANY_GROUP, ANY_VOTER, GROWING, Watch
from tests.sim.test_duty import seen, swarm
from tests.sim.test_probation import CHECKS, LONG_SECONDS, steps
from tests.sim.world import World

PROTEGES: Final = 12
SPONSOR: Final = "crowd-sponsor"
"""Is of its own crowd, as `Watch` counts."""
SEEDS: Final = range(1, 4)


def tell(world: World, answers: dict[str, str]) -> None:
    """Every node knows the same vouchers."""
    for host in world.live():
        world.deliver(host, Vouched(tuple(sorted(answers.items()))))


def joins(world: World, name: str, answers: dict[str, str]) -> None:
    """At a network of its own."""
    world.networks[name] = f"10{len(world.networks)}.0.0.0/16"
    world.start(name, 1, True)
    tell(world, answers)


def one_vouches_for_many(seed: int, told: bool = True) -> Watch:
    """One peer for each stage, then a dozen that came by the word of one of them, whom the limits would not let in."""
    world = World(GROWING, seed, delay_max=0.03)
    watch = Watch(world)
    answers = {f"crowd{index}": SPONSOR for index in range(PROTEGES)} if told else {}
    for index in range(world.settings.stage_count):
        world.at(0.1 * index, joins, (world, SPONSOR if index == 1 else f"peer{index}", answers))
    world.run(15.0)
    watch.quorums.clear()  # while it was alone
    for index in range(PROTEGES):
        world.at(world.now + 0.2 * index, joins, (world, f"crowd{index}", answers))
    world.run(70.0)
    assert watch.members >= world.settings.stage_count, "they do take part"
    return watch


@pytest.mark.parametrize("seed", SEEDS)
def test_those_whom_one_vouches_for_are_no_quorum_and_no_majority_of_a_group(seed: int) -> None:
    watch = one_vouches_for_many(seed)
    assert (watch.quorums, watch.majorities) == ([], [])


def test_if_nobody_knew_the_vouchers_they_would_be() -> None:
    watch = one_vouches_for_many(1, told=False)
    assert watch.quorums and watch.majorities


def test_without_the_bound_they_are_a_quorum() -> None:
    with patched(ANY_GROUP, ANY_VOTER):
        watch = one_vouches_for_many(1)
    assert watch.quorums and watch.majorities


def liar_found(seed: int) -> tuple[World, Host, Host]:
    """Two that somebody vouched for have worked for long. One of them begins to lie, and goes. (…, it, the other)"""
    world = swarm(seed, replicas=3, spare=0, checks=CHECKS)
    view = seen(world)
    stage = next(stage for stage, group in enumerate(view.holders) if view.leader not in group)
    liar, mate = (world.by_id[peer.id] for peer in (view.holders[stage][0], view.holders[stage - 1][-1]))
    steps(world, 2 * STEPS + 8)
    tell(world, {liar.peer.id: "peer99", mate.peer.id: "peer99"})
    assert not any(host.participant.situation.new(view.members()) for host in world.live())
    liar.lies, world.liars = turned, True
    world.run(world.now + LONG_SECONDS, lambda: str(liar.peer) in lost(world))
    assert str(liar.peer) in lost(world)
    world.run(world.now + 1.0)
    return world, liar, mate


@pytest.mark.parametrize("seed", SEEDS)
def test_when_one_lies_the_others_that_came_with_it_are_new_again(seed: int) -> None:
    world, liar, mate = liar_found(seed)
    others = [host for host in world.live() if host.peer in seen(world).members() and host is not mate]
    for host in others:
        s = host.participant.situation
        assert s.new({mate.peer}) == {mate.peer} and not s.new(s.members - {mate.peer, liar.peer})


def test_without_that_they_are_not() -> None:
    with patched((Probation, "renew", lambda self, peer_ids: None)):
        world, _, mate = liar_found(1)
    assert not any(host.participant.situation.new({mate.peer}) for host in world.live())


def test_where_nobody_vouched_nobody_else_is_new_again() -> None:
    world = swarm(1, replicas=3, spare=0, checks=CHECKS)
    steps(world, 2 * STEPS + 8)
    view = seen(world)
    stage = next(stage for stage, group in enumerate(view.holders) if view.leader not in group)
    liar = world.by_id[view.holders[stage][0].id]
    liar.lies, world.liars = turned, True
    world.run(world.now + LONG_SECONDS, lambda: str(liar.peer) in lost(world))
    world.run(world.now + 1.0)
    for host in world.live():
        s = host.participant.situation
        assert not s.new(s.members - {liar.peer})
