"""Volunteers of docs/explanation/planner.md in a swarm that makes one change at a time, as a node's leader does.

python -m tests.protocol.planning.grown_volunteers 0 16       draws from, to; two seconds of one core each
"""

from __future__ import annotations

import sys
from random import Random
from statistics import mean

from ftnode.lab.planner.volunteers import best_equal, drawn, swarm, tokens_a_second
from ftnode.protocol.planning.costs import Risk
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.planning.swarm import Holders, Swarm
from tests.protocol.planning.growing import grown

VOLUNTEERS, REPLICAS = 20, 16


def founded(asked: Swarm, names: list[str]) -> Holders:
    """The first ones take what they have room for, one after the other, until somebody holds each stage."""
    holders: list[tuple[str, ...]] = []
    for name in names:
        room = asked.room[name]
        while len(holders) < len(asked.sizes) and asked.sizes[len(holders)] <= room:
            room -= asked.sizes[len(holders)]
            holders.append((name,))
    return tuple(holders)


def of_draw(seed: int) -> tuple[float, float]:
    """Tokens a second of what they grow to, and of equal stages, in the order in which they come."""
    volunteers = drawn(VOLUNTEERS, Random(seed))
    asked = swarm(volunteers)
    risk = Risk(1 / 36_000, 4.0, (1.0, *[30.0] * (len(asked.sizes) - 1)))
    holders = grown(asked, REPLICAS, risk, founded(asked, sorted(asked.machines)))
    equal = best_equal(volunteers)
    assert equal is not None
    return tokens_a_second(step_timing(asked.layout(holders), asked.batch).seconds), tokens_a_second(equal[0])


def main(first: int, end: int) -> None:
    ratios = []
    for seed in range(first, end):
        found, equal = of_draw(seed)
        ratios.append(found / equal)
        print(f"draw {seed}: {found:,.0f} tokens/s, equal stages {equal:,.0f}, {ratios[-1]:.2f}", flush=True)
    print(f"{mean(ratios):.2f} on the mean, {min(ratios):.2f} at worst")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
