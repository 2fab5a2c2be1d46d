"""Random swarms of unequal volunteers, and the best layout of a small one, found by looking at all of them."""

from __future__ import annotations

from itertools import product
from random import Random

from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.schedule import Batch, step_timing
from ftnode.protocol.planning.swarm import Holders, Range, Swarm, alike, holders_of

MBIT = 1e6 / 8


def random_swarm(chance: Random, machines: int, stages: int, microbatches: int) -> Swarm:
    """`stages`: block stages. Devices are one to four times as slow as others, lines have 5 to 200 Mbit/s up, and the
    head takes up to twice as much memory as a block stage."""
    tensors, sums = chance.choice([0, 50_000, 250_000, 1_000_000]), chance.choice([0, 2_000_000])
    pace = chance.choice([0.02, 0.1])
    peers, room = {}, {}
    for number in range(machines):
        up = chance.choice([5, 10, 20, 50, 200]) * MBIT
        line = Line(up, up * chance.choice([1, 5]), chance.choice([0.005, 0.03, 0.08]))
        forward = pace * chance.choice([1, 1, 2, 4])
        name = f"p{number:02}"
        peers[name] = alike((forward, 2 * forward), (0.0, chance.choice([0.5, 2]) * forward), stages, line)
        room[name] = chance.randint(min(stages + 2, max(2, -(-2 * (stages + 2) // machines))), stages + 2)
    window = chance.choice([microbatches, microbatches, max(2, microbatches // 2)])
    batch = Batch(
        microbatches, window, BoundaryBytes(tensors, tensors), (sums,) * (stages + 1), fused=chance.random() < 0.5
    )
    return Swarm(peers, room, (chance.choice([1, 2]), *[1] * stages), batch)


def unequal(seed: int) -> Swarm:
    """Five to eight volunteers, one to twelve times as slow as the fastest, with room for one stage to all of four to
    nine. The first has room for all."""
    chance = Random(seed)
    stages, count = chance.randint(3, 8), chance.randint(5, 8)
    forward = {f"p{number}": 0.01 * 12 ** chance.random() for number in range(count)}
    room = {name: chance.randint(1, stages + 1) for name in forward} | {"p0": stages + 1}
    machines = {name: alike((one, 2 * one), (one, 2 * one), stages) for name, one in forward.items()}
    return Swarm(machines, room, (1,) * (stages + 1), Batch(12, 12, BoundaryBytes(0, 0)), 2)


def random_layout(chance: Random, swarm: Swarm, tries: int = 300) -> Holders:
    """Everybody holds some range or nothing. Empty where none was found."""
    count = len(swarm.sizes)
    for _ in range(tries):
        held = {name: chance.choice(ranges) for name in swarm.machines if (ranges := _ranges(swarm, name))}
        holders = holders_of({name: one for name, one in held.items() if chance.random() < 0.9}, count)
        if swarm.feasible(holders):
            return holders
    return ()


def best_of_all(swarm: Swarm, least: float) -> float:
    """Seconds of the best layout of all, or `least` where none takes less."""
    names, count, work = sorted(swarm.machines), len(swarm.sizes), swarm.batch.microbatches
    options: list[list[Range | None]] = [[None, *_ranges(swarm, name)] for name in names]
    paces = [[sum(swarm.machines[name].paces[stage]) for stage in range(count)] for name in names]
    for chosen in product(*options):
        rates, holding = [0.0] * count, [0] * count
        for number, one in enumerate(chosen):
            for stage in range(one[0], one[1] + 1) if one else ():
                rates[stage] += 1 / paces[number][stage]
                holding[stage] += 1
        if not all(holding) or work / min(rates) >= least:
            continue
        alone = (
            sum(paces[number][stage] for stage in range(one[0], one[1] + 1) if holding[stage] == 1)
            for number, one in enumerate(chosen)
            if one
        )
        if work * max(alone) >= least:
            continue
        holders = holders_of({name: one for name, one in zip(names, chosen) if one}, count)
        least = min(least, step_timing(swarm.layout(holders), swarm.batch).seconds)
    return least


def _ranges(swarm: Swarm, name: str) -> list[Range]:
    count = len(swarm.sizes)
    every = ((first, last) for first in range(count) for last in range(first, count))
    return [(first, last) for first, last in every if swarm.fits(name, range(first, last + 1))]
