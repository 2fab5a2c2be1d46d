"""Volunteers with unequal devices and room: one change after another leads to a layout near the best, and back to one
when somebody is lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.leader.outlook import Outlook, name_of
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.planning.search import best_layout
from tests.sim.targets import best_view
from tests.sim.test_groups import SETTINGS
from tests.sim.world import World

UNEQUAL = replace(SETTINGS, stages=8, steps=100_000, microbatches=12, window=12, replicas=2, evaluate_every=0)
DEVICES = {"a": (0.03, 9), "b": (0.01, 9), "c": (0.03, 4), "d": (0.06, 4), "e": (0.02, 3), "f": (0.12, 2)}
"""Seconds forward, and room."""
NEAR = 1.3


def over_best(world: World) -> float:
    """A step of the present layout by the schedule, against that of the best one for these volunteers."""
    view = best_view(world)
    assert view is not None
    leader = world.by_id[view.leader.id].participant
    s = leader._situation
    assert leader.leader is not None
    swarm = Outlook(s, leader.leader.memory, view.holders).costs.swarm
    present = tuple(tuple(map(name_of, group)) for group in view.holders)
    best = best_layout(swarm, present)
    assert best is not None
    return step_timing(swarm.layout(present), swarm.batch).seconds / best.seconds


def grown(seed: int) -> World:
    world = World(UNEQUAL, seed, delay_max=0.005)
    for name, (seconds, room) in DEVICES.items():
        host = world.start(name, room, True)
        host.forward_seconds = seconds
        world.run(world.now + 40.0)
    world.run(world.now + 200.0)
    return world


@pytest.mark.parametrize("seed", range(3))
def test_six_unequal_volunteers_find_a_layout_near_the_best(seed: int) -> None:
    world = grown(seed)
    assert over_best(world) < NEAR
    view = best_view(world)
    assert view is not None
    fast = next(host for host in world.live() if host.peer.id == "b")
    assert len(view.stages_of(fast.peer)) >= 3, "the fastest holds a range"
    step = world.ledger.top_commit()
    world.kill(fast, "kill", silently=False)
    world.run(world.now + 300.0)
    assert world.ledger.top_commit() > step + 20 and over_best(world) < NEAR
