"""Swarms of unequal volunteers in the virtual world who come one after the other, and what layout they end in.

    python -m tests.sim.unequal 0 30

says of these seeds how much longer a step takes there than in the best layout that the search finds.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.outlook import Outlook, name_of
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.planning.search import best_layout
from ftnode.protocol.situation import Situation
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.view import View
from tests.sim.targets import best_view
from tests.sim.test_groups import SETTINGS
from tests.sim.world import World

UNEQUAL = replace(SETTINGS, stages=8, steps=100_000, microbatches=12, window=12, replicas=2, evaluate_every=0)
Devices = Mapping[str, tuple[float, int]]
"""Seconds forward, and room, in the order in which they come."""


def drawn(seed: int) -> tuple[int, Devices]:
    """Block stages, and five to eight volunteers, one to twelve times as slow as the fastest could be."""
    chance = Random(seed)
    stages, count = chance.randint(3, 8), chance.randint(5, 8)
    while True:
        devices = {f"p{i}": (0.01 * 12 ** chance.random(), chance.randint(1, stages + 1)) for i in range(count)}
        if sum(room for _, room in devices.values()) >= stages + 3:
            return stages, devices


def grown(seed: int, devices: Devices, stages: int = 8, settings: Settings = UNEQUAL) -> World:
    world = World(replace(settings, stages=stages), seed, delay_max=0.005)
    for name, (seconds, room) in devices.items():
        host = world.start(name, room, True)
        host.forward_seconds = seconds
        world.run(world.now + 40.0)
    world.run(world.now + 200.0)
    return world


def led(world: World) -> tuple[View, Situation, LeaderMemory]:
    """The view, as its leader sees it."""
    view = best_view(world)
    assert view is not None
    participant = world.by_id[view.leader.id].participant
    assert participant.leader is not None
    return view, participant.situation, participant.leader.memory


def over_best(world: World) -> float:
    """A step of the present layout by the schedule, against that of the best one for these volunteers."""
    view, s, memory = led(world)
    here = [host.participant.peers.presences for host in world.live()]
    idle = {presence for told in here for presence in told.values() if not view.stages_of(presence.peer)}
    swarm = Outlook(s, memory, view.holders, idle).costs.swarm
    present = tuple(tuple(map(name_of, group)) for group in view.holders)
    best = best_layout(swarm, present)
    assert best is not None
    return step_timing(swarm.layout(present), swarm.batch).seconds / best.seconds


def over_measured(world: World) -> float:
    """What the leader thinks that a step takes, over what it takes."""
    view, s, memory = led(world)
    looked = Outlook(s, memory, view.holders)
    assert memory.usual_step is not None
    return looked.costs.scheduled(looked.changes.present).seconds / memory.usual_step


if __name__ == "__main__":
    found = []
    for number in range(int(sys.argv[1]), int(sys.argv[2])):
        drawn_stages, drawn_devices = drawn(number)
        found.append(over_best(grown(number, drawn_devices, drawn_stages)))
        print(f"{number} {found[-1]:.2f}", flush=True)
    print(f"mean {sum(found) / len(found):.2f}, worst {max(found):.2f}")
