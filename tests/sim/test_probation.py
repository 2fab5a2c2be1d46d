"""Newcomers in a run with checks: no vote and no stage of their own at first, and they are checked more often."""

from __future__ import annotations

from typing import Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.situation import Situation
from ftnode.protocol.step import check
from ftnode.protocol.step.probation import STEPS, Probation
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.planted import NOBODY_JUDGES, patched
from tests.sim.test_at_odds import lost
from tests.sim.test_checks import turned
from tests.sim.test_duty import betrays, seen, swarm
from tests.sim.world import World
from tests.tiers import seeds

CHECKS: Final = 0.02
LONG_SECONDS: Final = 600.0
NEVER_NEW: Final = (Probation, "lasts", lambda self, peer_id: False)


def steps(world: World, count: int) -> None:
    until = world.ledger.top_commit() + count
    world.run(world.now + LONG_SECONDS, lambda: world.ledger.top_commit() >= until)
    assert world.ledger.top_commit() >= until


@kept
def with_newcomer(seed: int, checks: float = CHECKS, replicas: int = 3) -> tuple[World, Host]:
    """Two for each stage, who have trained together for long, and one that has just joined."""
    world = swarm(seed, replicas=replicas, spare=-4, checks=checks)
    steps(world, 2 * STEPS + 8)
    host = world.start("newcomer", 1, True)
    world.run(world.now + LONG_SECONDS, lambda: host.peer in seen(world).members())
    return world, host


def steps_without_a_vote(world: World, host: Host) -> int:
    """Of a member; -1 when it has none after twice the time of its probation."""
    before = world.ledger.top_commit()

    def over() -> bool:
        return host.peer in seen(world).voters or world.ledger.top_commit() > before + 2 * STEPS

    world.run(world.now + LONG_SECONDS, over)
    return world.ledger.top_commit() - before if host.peer in seen(world).voters else -1


@pytest.mark.parametrize("seed", range(1, 5))
def test_a_newcomer_works_beside_others_and_votes_later(seed: int) -> None:
    world, host = with_newcomer(seed)
    view = seen(world)
    assert host.peer not in view.voters and {*view.members()} - {*view.voters} == {host.peer}
    assert all(len(view.holders[stage]) > 1 for stage in view.stages_of(host.peer))
    assert STEPS - 1 <= steps_without_a_vote(world, host) <= STEPS + 6


def test_without_probation_it_votes_at_once() -> None:
    with patched(NEVER_NEW):
        assert steps_without_a_vote(*with_newcomer(1)) == 0


def test_without_checks_nothing_is_different() -> None:
    assert steps_without_a_vote(*with_newcomer(1, checks=0.0)) == 0


def found_before_it_votes(seed: int) -> bool:
    world, host = with_newcomer(seed)
    host.lies, world.liars = turned, True
    steps_without_a_vote(world, host)
    return str(host.peer) in lost(world)


def test_a_newcomer_that_lies_is_found_before_it_votes() -> None:
    assert all(found_before_it_votes(seed) for seed in seeds(12))


def test_without_more_checks_of_newcomers_it_often_gets_a_vote() -> None:
    with patched((check, "CHECKED", 0.0)):
        assert not all(found_before_it_votes(seed) for seed in range(1, 5))


def test_an_empty_run_has_no_newcomers() -> None:
    world = swarm(1, replicas=2, spare=0, checks=CHECKS)
    assert {*seen(world).members()} == {*seen(world).voters}


def test_who_is_new_is_what_one_has_seen() -> None:
    """Of everybody the one that came last, and nobody of who was there before."""
    world, host = with_newcomer(1)
    for other in world.live():
        s: Situation = other.participant.situation
        assert s.new(s.members) <= {host.peer}


def accused_by_a_newcomer(seed: int) -> list[str]:
    """Who goes when a newcomer says in each step that another of its group lies."""
    world, host = with_newcomer(seed)
    betrays(host, traitor.Accusing())
    world.liars = True
    world.notes.clear()
    world.run(world.now + LONG_SECONDS, lambda: str(host.peer) in lost(world))
    steps(world, 5)
    return lost(world)


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_word_of_a_newcomer_costs_nobody_a_place_but_itself(seed: int) -> None:
    assert accused_by_a_newcomer(seed) == ["wcomer"]


def test_without_probation_and_a_third_it_costs_one_that_is_honest_its_place() -> None:
    with patched(NEVER_NEW, NOBODY_JUDGES):
        assert accused_by_a_newcomer(1)[0] != "wcomer"


def two_that_agree(seed: int) -> list[str]:
    """Who goes when two newcomers in a group of three tell the same lie, and accuse the older one."""
    world = swarm(seed, replicas=3, spare=0, checks=CHECKS)
    steps(world, 2 * STEPS + 8)
    view = seen(world)
    stage = next(stage for stage, group in enumerate(view.holders) if view.leader not in group)
    for peer in view.holders[stage][1:]:
        world.kill(world.by_id[peer.id], "kill", silently=False)
    world.run(world.now + 30.0, lambda: len(seen(world).holders[stage]) == 1)
    hosts = [world.start(name, 1, True) for name in ("liar1", "liar2")]
    world.run(world.now + LONG_SECONDS, lambda: {host.peer for host in hosts} <= {*seen(world).members()})
    assert {host.peer for host in hosts} <= {*seen(world).holders[stage]}
    for host in hosts:
        host.lies, host.agrees = turned, True
    world.liars = True
    world.notes.clear()
    liars = {str(host.peer) for host in hosts}
    world.run(world.now + LONG_SECONDS, lambda: liars <= {*lost(world)} or not {*lost(world)} <= liars)
    return lost(world)


@pytest.mark.parametrize("seed", range(1, 5))
def test_two_newcomers_that_tell_the_same_lie_cost_nobody_older_its_place(seed: int) -> None:
    assert sorted(two_that_agree(seed)) == ["liar1", "liar2"]


def test_without_probation_the_two_outvote_it() -> None:
    with patched(NEVER_NEW):
        gone = two_that_agree(1)
    assert any(not name.startswith("liar") for name in gone), gone
