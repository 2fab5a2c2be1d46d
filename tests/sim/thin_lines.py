"""Eight volunteers of unequal devices behind unequal lines, in the virtual world: what goals are worth (decision 0042).

    python -m tests.sim.thin_lines 0 9

says of these draws how many steps they make in a second without goals and with them; half a minute of one core each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from random import Random
from statistics import mean
from typing import Any, Final

from ftnode.protocol.leader import goals
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from tests.sim.targets import best_view
from tests.sim.unequal import UNEQUAL
from tests.sim.world import World

VOLUNTEERS, STAGES = 8, 8
TENSORS: Final = BoundaryBytes(500_000, 500_000)
SETTINGS: Final = replace(
    UNEQUAL, stages=STAGES, replicas=4, forward_bytes=TENSORS.forward, backward_bytes=TENSORS.backward
)
APART, SETTLES, MEASURED = 40.0, 600.0, 200.0
"""Seconds between two who come, then until it is measured, and for how long."""
Find = Callable[..., Any]


def drawn(chance: Random) -> dict[str, tuple[float, int, Line]]:
    """Seconds forward, room, and a line of 10 to 200 Mbit/s up."""
    while True:
        found = {}
        for number in range(VOLUNTEERS):
            seconds, room = 0.01 * 8 ** chance.random(), chance.randint(2, STAGES + 1)
            up = 10 * 20 ** chance.random() * 1e6 / 8
            found[f"p{number}"] = seconds, room, Line(up, 3 * up, 0.03)
        if sum(room for _, room, _ in found.values()) >= STAGES + 6:
            return found


def steps_a_second(seed: int, find: Find) -> tuple[float, int]:
    """And how many views there were."""
    goals.find_goal = find
    volunteers, world = drawn(Random(seed)), World(SETTINGS, seed, delay_max=0.005)
    world.network.lines.tensors = TENSORS
    world.network.lines.of.update({name: line for name, (_, _, line) in volunteers.items()})
    for name, (seconds, room, _) in volunteers.items():
        world.start(name, room, True).forward_seconds = seconds
        world.run(world.now + APART)
    world.run(world.now + SETTLES)
    before = world.ledger.top_commit()
    world.run(world.now + MEASURED)
    view = best_view(world)
    assert view is not None
    return (world.ledger.top_commit() - before) / MEASURED, view.number


def main(first: int, end: int) -> None:
    find, ratios = goals.find_goal, []
    for seed in range(first, end):
        found: list[bool] = []

        def counted(*given: Any, found: list[bool] = found) -> Any:
            goal = find(*given)
            found.append(goal is not None)
            return goal

        (without, _), (with_goals, views) = steps_a_second(seed, lambda *given: None), steps_a_second(seed, counted)
        ratios.append(with_goals / without)
        print(f"draw {seed}: {without:.3f} steps/s without goals, {with_goals:.3f} with {sum(found)} of them, "
              f"{ratios[-1]:.2f} times as many; {views} views", flush=True)  # fmt: skip
    print(f"{mean(ratios):.2f} on the mean")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
