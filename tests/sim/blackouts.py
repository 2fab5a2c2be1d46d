"""The power goes: everybody at once, in the middle of whatever they do. Who comes back with which disk is drawn."""

from __future__ import annotations

import random

from tests.sim.moments import Moments
from tests.sim.world import World


class Blackouts(Moments):
    """The faults that take the whole swarm."""

    def __init__(self, world: World, chance: random.Random) -> None:
        super().__init__(world, chance)
        self.kinds |= {"power": self.power}

    def power(self) -> bool:
        """Nobody keeps anything in memory. Disks may be lost, peers may stay away, and strangers may be first."""
        world, chance = self.world, random.Random(f"power {self.world.seed} {self.world.now}")
        hosts = world.live()
        if world.network.blocked or not hosts:
            return False
        spread, missing = chance.choice([2.0, 20.0, 60.0]), world.settings.stage_count
        for host in hosts:
            world.kill(host, "power", silently=chance.random() < 0.5)
            host.paused = False
            if chance.random() < 0.1:
                world.disks.lose(host.peer.id)
            if chance.random() < 0.9:
                arguments = (host.peer.id, host.hold, host.head)
                world.at(world.now + chance.uniform(0.5, spread), world.start, arguments)
                missing -= host.hold
        for _ in range(max(1, missing) + chance.randint(0, 2)):
            self.newcomers += 1
            world.at(world.now + chance.uniform(0.5, spread), world.start, (f"new{self.newcomers}", 1))
        self.lasting(spread, lambda: None)
        return True
