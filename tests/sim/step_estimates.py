"""Swarms of unequal volunteers in the virtual world: what the planner's schedule says of a step, and what it takes.

    python -m tests.sim.step_estimates 0 1 2

says both, and the error, of the swarms with these seeds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import median

from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.schedule import Batch, Layout, Machine, step_timing
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Version
from tests.sim.targets import best_view
from tests.sim.world import World

BACKWARD = 2.0
"""Times the forward pass."""
TRIES = 4
START_SECONDS, SETTLE_STEPS, STEPS = 900.0, 12, 6


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds of a step. `groups`: how many hold each stage; `peers`: how many hold any."""

    estimated: float
    taken: float
    groups: tuple[int, ...]
    peers: int

    @property
    def error(self) -> float:
        return abs(self.estimated / self.taken - 1)


def compared(seed: int) -> Compared:
    """A random swarm, after it has settled."""
    chance = Random(seed)
    stages, microbatches = chance.randint(2, 6), chance.choice([8, 16, 32])
    settings = Settings(
        run="estimates", stages=stages, steps=100_000, microbatches=microbatches, window=microbatches,
        live_activations=microbatches, replicas=chance.choice([1, 2, 4]), head_every=0, listed=True,
    )  # fmt: skip
    world = World(settings, seed)
    size = chance.choice([0, 50_000, 250_000, 1_000_000])
    tensors = world.network.lines.tensors = BoundaryBytes(size, size)
    pace = 0.02 * chance.choice([1, 4])
    for number in range(stages + 1 + chance.choice([0, 1, stages])):
        name = f"peer{number}"
        up = chance.choice([5, 10, 20, 50, 200]) * 1e6 / 8
        world.network.lines.of[name] = Line(up, up * chance.choice([1, 5]), chance.choice([0.005, 0.03, 0.08]))
        host = world.start(name, 1, True)
        host.forward_seconds = pace * chance.choice([1, 1, 2, 4])
        host.costs = {"Forward": 1.0, "Backward": BACKWARD, "Reduce": 0.0, "Embed": 0.0}
    times: list[float] = []

    def on_commit(lineage: str, version: Version, skipped: bool) -> None:
        times.append(world.now)

    world.on_commit = on_commit
    world.run(START_SECONDS, lambda: len(times) >= SETTLE_STEPS)
    for _ in range(TRIES):
        view, began = best_view(world), len(times)
        assert view is not None
        world.run(world.now + START_SECONDS, lambda: len(times) >= began + STEPS)  # noqa: B023
        now = best_view(world)
        if now is not None and now.holders == view.holders:
            break
    assert now is not None and now.holders == view.holders, "it had not settled"
    machines = {}
    for peer in {peer for group in view.holders for peer in group}:
        forward = world.by_id[peer.id].forward_seconds
        # Of the head, the loss is part of the backward pass.
        paces = dict.fromkeys(range(1, stages + 1), (forward, BACKWARD * forward)) | {0: (0.0, BACKWARD * forward)}
        machines[peer.id] = Machine(paces, world.network.lines.of[peer.id])
    layout = Layout(tuple(tuple(peer.id for peer in group) for group in view.holders), machines, view.leader.id)
    timing = step_timing(layout, Batch(microbatches, microbatches, tensors))
    taken = median(later - earlier for earlier, later in pairwise(times[began:]))
    return Compared(timing.seconds, taken, tuple(map(len, view.holders)), len(machines))


if __name__ == "__main__":
    for number in map(int, sys.argv[1:]):
        one = compared(number)
        print(f"{number} {one.estimated:.3f} {one.taken:.3f} {one.estimated / one.taken - 1:+.3f} {one.groups}")
