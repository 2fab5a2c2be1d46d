"""Where newcomers go: to the stage that limits a step, by what its holders have measured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.view import View
from tests.sim.targets import best_view, holders
from tests.sim.test_groups import SETTINGS, leads, sizes
from tests.sim.world import World

SETTLED = replace(SETTINGS, steps=100_000, evaluate_every=0)


def started(seed: int, peers: int, settings: Settings = SETTLED) -> World:
    world = World(settings, seed, delay_max=0.01)
    world.forward_seconds = 0.05
    for index in range(peers):
        world.start(f"peer{index}", 1, True)
    world.run(60.0, lambda: sum(sizes(world)) == peers)
    assert sum(sizes(world)) == peers
    return world


def measured(world: World) -> View:
    """Some steps later, when all holders know how fast they are now."""
    commit = world.ledger.top_commit()
    world.run(world.now + 120.0, lambda: world.ledger.top_commit() >= commit + 10)
    view = best_view(world)
    assert view is not None
    return view


def without_founder(seed: int) -> World:
    """The holder of the head, which founded the run and led it, has been lost; a holder of a block stage leads."""
    world = started(seed, SETTLED.stage_count)
    world.kill(leads(world, measured(world)), "kill", silently=False)
    world.start("another", 1, True)
    world.run(world.now + 60.0, lambda: sizes(world) == [1] * SETTLED.stage_count)
    return world


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("where", ["another stage", "the leader's, the head", "the leader's, a block stage"])
def test_a_newcomer_goes_to_the_slow_stage(where: str, seed: int) -> None:
    world = without_founder(seed) if where.endswith("block stage") else started(seed, SETTLED.stage_count)
    view = measured(world)
    own = view.stages_of(view.leader)[0]
    assert bool(own) == where.endswith("block stage")
    slow = own if where.startswith("the leader's") else 2
    for host in holders(world, view)[slow]:
        host.forward_seconds *= 4
    measured(world)
    world.start("new", 1, True)
    world.run(world.now + 60.0, lambda: sum(sizes(world)) == SETTLED.stage_count + 1)
    assert sizes(world) == [2 if stage == slow else 1 for stage in range(SETTLED.stage_count)]


@pytest.mark.parametrize("seed", range(6))
def test_who_comes_before_everybody_has_measured_goes_everywhere(seed: int) -> None:
    """Half of the swarm is offered a stage in the middle of the first step. When a holder that had only gone forward
    passed for a fast one, the others' stages got two newcomers each and its own none. With few microbatches a third
    holder of the head makes a step shorter than a second one elsewhere."""
    settings = replace(SETTLED, microbatches=16, window=16)
    assert sizes(started(seed, 2 * settings.stage_count, settings)) == [2] * settings.stage_count
