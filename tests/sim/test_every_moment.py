"""Deaths at every event of a step, not at some: the leader, the first holder of each group, and several at once."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial

import pytest

from ftnode.protocol.view import View
from tests.sim.host import Host
from tests.sim.planted import dead_ends
from tests.sim.targets import best_view, holders
from tests.sim.test_groups import SETTINGS, final_weights, sizes
from tests.sim.world import World

QUIET = replace(
    SETTINGS, replicas=2, steps=8, head_every=0, microbatches=2, window=2, evaluate_every=0, evaluation_microbatches=0
)
Victims = Callable[[World, View], list[Host]]


def begun() -> World:
    """Full groups, and no view between the steps that follow."""
    world = World(QUIET, 2, delay_max=0.02)
    world.forward_seconds = 0.05
    for index in range(QUIET.replicas * QUIET.stage_count):
        world.start(f"peer{index}", 1, True)
    return world


def at(world: World, event: int) -> View:
    world.run(60.0, lambda: world.events >= event)
    assert world.events >= event
    view = best_view(world)
    assert view is not None
    return view


def leader(world: World, view: View) -> list[Host]:
    return [host for host in world.live() if host.peer == view.leader]


def first_of(stage: int) -> Victims:
    return lambda world, view: holders(world, view)[stage][:1]


def several(world: World, view: View) -> list[Host]:
    """One of each group at once, the leader among them if it is the last of its group."""
    return [group[-1] for group in holders(world, view).values()]


def ended(world: World) -> World:
    world.run(world.now + 120.0, lambda: world.ledger.top_commit() >= QUIET.steps)
    world.run(world.now + 5.0)
    return world


@cache
def span() -> tuple[range, int]:
    """The events of the step, and the last commit before the first of them."""
    world = begun()
    world.run(60.0, lambda: sizes(world) == [QUIET.replicas] * QUIET.stage_count)
    commit = world.ledger.top_commit() + 1
    world.run(60.0, lambda: world.ledger.top_commit() >= commit)
    first = world.events
    world.run(60.0, lambda: world.ledger.top_commit() >= commit + 1)
    return range(first, world.events + 1), commit


def is_traceless(who: str, event: int, wanted: dict[int, set[int]]) -> bool:
    """Whether the run comes to its end with the weights of an undisturbed one when they die at the event."""
    world = begun()
    for host in WHO[who](world, at(world, event)):
        world.kill(host, "kill", silently=False)
    ended(world)
    return world.ledger.top_commit() == QUIET.steps and world.losses == 0 and final_weights(world) == wanted


WHO = {"leader": leader, "head": first_of(0), "middle": first_of(2), "last": first_of(3), "several": several}


def traces(who: str, events: Sequence[int]) -> list[int]:
    """The events at which a death shows afterwards. Processes are forked, so what is patched here is patched there."""
    wanted = final_weights(ended(begun()))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        traceless = pool.map(partial(is_traceless, who, wanted=wanted), events, chunksize=8)
    return [event for event, well in zip(events, traceless) if not well]


@pytest.mark.parametrize("who", ["leader", "head", "last", "several"])
def test_whoever_dies_at_whichever_event_of_a_step_leaves_no_trace(who: str) -> None:
    events, commit = span()
    assert len(events) > 100 and commit + 2 < QUIET.steps
    assert traces(who, events) == []


def test_it_would_be_seen_if_visits_were_left_with_the_dead() -> None:
    with dead_ends():
        assert traces("middle", span()[0][::10])
