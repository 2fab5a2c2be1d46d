"""A run of one or three volunteers with checks, and one more comes: it works soon, and who lies is found (rule 45)."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.planning.changes import Changes
from ftnode.protocol.situation import Situation
from ftnode.protocol.step.probation import STEPS
from ftnode.protocol.words.types import Peer
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.test_at_odds import lost
from tests.sim.test_checks import turned
from tests.sim.test_duty import LONG, seen
from tests.sim.test_probation import steps
from tests.sim.world import World

ALONE: Final = replace(LONG, stages=2, replicas=16, microbatches=8, window=8, checks=0.02)
ROOM: Final = 9
COMES_STEPS: Final = 20
"""From when it is here until it works."""
WATCHED_SECONDS: Final = 120.0
LONG_SECONDS: Final = 600.0


def run_of(names: str, seed: int, **changes: Any) -> World:
    """Each has room for all, and they have trained together for long."""
    world = World(replace(ALONE, **changes), seed, delay_max=0.005)
    world.notes = deque()
    for name in names:
        world.start(name, ROOM, True)
    steps(world, 2 * STEPS)
    return world


def works(world: World, room: int) -> Host:
    """One more, that holds a stage now."""
    host, before = world.start("new", room, True), world.ledger.top_commit()
    world.run(world.now + LONG_SECONDS, lambda: bool(seen(world).stages_of(host.peer)))
    assert seen(world).stages_of(host.peer) and world.ledger.top_commit() - before <= COMES_STEPS
    return host


def rate(world: World) -> float:
    """Steps a second."""
    before, begun = world.ledger.top_commit(), world.now
    world.run(begun + WATCHED_SECONDS)
    return (world.ledger.top_commit() - before) / WATCHED_SECONDS


@pytest.mark.parametrize("room", [1, ROOM])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_second_volunteer_works_beside_the_first_and_a_step_gets_shorter(seed: int, room: int) -> None:
    world = run_of("a", seed)
    alone = rate(world)
    host = works(world, room)
    view = seen(world)
    assert all(len(view.holders[stage]) == 2 for stage in view.stages_of(host.peer))
    assert len(view.stages_of(host.peer)) == min(room, 3) and host.peer not in view.voters
    steps(world, STEPS - COMES_STEPS)
    assert seen(world).holders == view.holders, "it stays where it can be checked"
    steps(world, 4 * STEPS)
    assert host.peer in seen(world).voters and rate(world) > 1.3 * alone


def steps_until_its_own(world: World, host: Host) -> int:
    """Until nobody else holds what it holds."""
    before = world.ledger.top_commit()

    def alone() -> bool:
        view = seen(world)
        mine = view.stages_of(host.peer)
        return bool(mine) and all(view.holders[stage] == (host.peer,) for stage in mine)

    world.run(world.now + LONG_SECONDS, alone)
    assert alone()
    return world.ledger.top_commit() - before


def after_the_first(seed: int, **changes: Any) -> tuple[int, float, int]:
    """Steps until a second volunteer with room for one stage has one of its own, steps a second then, and changes of
    who holds what."""
    world = run_of("a", seed, **changes)
    host = works(world, 1)
    taken = steps_until_its_own(world, host)
    return taken, rate(world), seen(world).number


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_it_takes_a_stage_over_when_it_is_not_new_any_more_and_is_then_as_fast_as_without_checks(seed: int) -> None:
    taken, fast, changes = after_the_first(seed)
    assert STEPS <= taken <= 4 * STEPS and changes <= 5
    assert fast >= 0.95 * after_the_first(seed, checks=0.0)[1]


def anybody_moves(self: ReplicaMoves, s: Situation, taken: Collection[Peer] = (), real: Any = ReplicaMoves.beat) -> Any:
    with patched((Situation, "new", lambda self, peers: frozenset())):
        return real(self, s)


def test_where_newcomers_are_moved_they_are_asked_beside_others_again() -> None:
    with patched((ReplicaMoves, "beat", anybody_moves)):
        assert after_the_first(1)[2] > 5


def found_before_it_votes(world: World, room: int) -> bool:
    host = works(world, room)
    host.lies, world.liars = turned, True
    before = world.ledger.top_commit()

    def over() -> bool:
        voting = host.peer in seen(world).voters
        return voting or str(host.peer) in lost(world) or world.ledger.top_commit() > before + 2 * STEPS

    world.run(world.now + LONG_SECONDS, over)
    return str(host.peer) in lost(world)


@pytest.mark.parametrize("members", ["a", "abc"])
@pytest.mark.parametrize("room", [1, ROOM])
def test_a_second_or_fourth_volunteer_that_lies_is_found_before_it_votes(members: str, room: int) -> None:
    assert all(found_before_it_votes(run_of(members, seed), room) for seed in range(1, 5))


def test_who_takes_a_stage_over_at_once_is_not_found() -> None:
    real = Changes.best_place

    def at_once(self: Changes, name: str, learnt: Any = (), steps: float = 1e9, beside: bool = False) -> Any:
        return real(self, name, learnt, steps)

    with patched((Changes, "best_place", at_once)):
        assert not any(found_before_it_votes(run_of("a", seed), 1) for seed in range(1, 5))
