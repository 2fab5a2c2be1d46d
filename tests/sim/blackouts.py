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

    def again(self, chance: random.Random) -> None:
        """A second cut while the swarm still starts again from the first."""
        self.ongoing += 1
        at = self.world.now + chance.uniform(1.0, 100.0 + self.world.settings.restart_wait_seconds)
        self.world.at(at, self.strike, ("power", 40))

    def power(self) -> bool:
        """Nobody keeps anything in memory. Disks may be lost, peers may stay away, and strangers may be first."""
        world, chance = self.world, random.Random(f"power {self.world.seed} {self.world.now}")
        hosts = world.live()
        if world.network.blocked or not hosts:
            return False
        spread, missing = chance.choice([2.0, 20.0, 60.0]), world.settings.stage_count
        living = set(chance.sample(hosts, min(len(hosts) - 1, chance.choice([0, 0, 0, 1, 2]))))
        if chance.random() < 0.2:
            world.disks.liars.add(chance.choice(hosts).peer.id)
        for host in hosts:
            if host in living:
                missing -= host.hold
                continue
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
        if chance.random() < 0.3:
            self.again(chance)
        self.lasting(spread, lambda: None)
        return True
