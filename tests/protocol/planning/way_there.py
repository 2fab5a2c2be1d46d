"""From the layout that a swarm comes to by one change at a time to the one that the search finds, change by change.

python -m tests.protocol.planning.way_there 0 16        draws from, to; four seconds of one core each

Each change is one that a node can make: somebody learns stages that one other peer holds, in its place or beside it, or
gives up stages that others hold. Always that one comes next after which the layout costs least.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from random import Random
from statistics import mean
from typing import Final, NamedTuple

from ftnode.lab.planner.volunteers import best_equal, drawn, swarm, tokens_a_second
from ftnode.protocol.planning.changes import without
from ftnode.protocol.planning.costs import Costs, Risk
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.planning.search import best_layout
from ftnode.protocol.planning.swarm import Holders, Swarm, stages_of
from tests.protocol.planning.growing import grown
from tests.protocol.planning.grown_volunteers import REPLICAS, VOLUNTEERS, founded

CHANGES_MAX: Final = 60


class Way(NamedTuple):
    """`costs`: of the layout at first and after each change (costs.py). `arrives`: it ends where it should."""

    costs: tuple[float, ...]
    arrives: bool
    holders: Holders


def way(swarm: Swarm, costs: Costs, present: Holders, target: Holders) -> Way:
    seen = [costs.liquid(present).cost]
    while not alike(present, target) and len(seen) <= CHANGES_MAX:
        after = [(costs.liquid(one).cost, one) for one in changes(swarm, present, target) if all(one)]
        if not after:
            break
        cost, present = min(after)
        seen.append(cost)
    return Way(tuple(seen), alike(present, target), present)


def alike(one: Holders, other: Holders) -> bool:
    return [*map(frozenset, one)] == [*map(frozenset, other)]


def changes(swarm: Swarm, present: Holders, target: Holders) -> Iterator[Holders]:
    """What the layout may be after one change that the target wants."""
    held, wanted = stages_of(present), stages_of(target)
    for name, stages in wanted.items():
        mine, givers = held.get(name, ()), dict[str, list[int]]()
        for stage in stages:
            others = [other for other in present[stage] if stage not in wanted.get(other, ())]
            if stage not in mine:
                givers.setdefault(others[0] if others else "", []).append(stage)
        for giver, part in givers.items():
            if swarm.fits(name, (*mine, *part)):
                yield tuple(
                    (*(one for one in group if one != giver), name) if stage in part else group
                    for stage, group in enumerate(present)
                )
    for name, stages in held.items():
        kept = wanted.get(name, ())
        spare = [stage for stage in stages if stage not in kept and {*present[stage]} & {*target[stage]} - {name}]
        if spare:
            yield without(present, name, spare)


def of_draw(seed: int) -> tuple[Way, float, float]:
    """The way, and what is reached before and after it, over equal stages."""
    volunteers = drawn(VOLUNTEERS, Random(seed))
    asked = swarm(volunteers)
    costs = Costs(asked, Risk(1 / 36_000, 4.0, (1.0, *[30.0] * (len(asked.sizes) - 1))))
    before = grown(asked, REPLICAS, costs.risk, founded(asked, sorted(asked.machines)))
    best, equal = best_layout(asked, before), best_equal(volunteers)
    assert best is not None and equal is not None
    there = way(asked, costs, before, best.holders)

    def ratio(holders: Holders) -> float:
        return tokens_a_second(step_timing(asked.layout(holders), asked.batch).seconds) / tokens_a_second(equal[0])

    return there, ratio(before), ratio(there.holders)


def main(first: int, end: int) -> None:
    found = []
    for seed in range(first, end):
        there, before, after = of_draw(seed)
        most = max(there.costs) / there.costs[0]
        found.append((before, after))
        ends = "" if there.arrives else "; it does not arrive"
        print(f"draw {seed}: {before:.2f}, after {len(there.costs) - 1} changes {after:.2f}; in between it costs "
              f"{most:.2f} times as much at most{ends}", flush=True)  # fmt: skip
    print(f"{mean(one for one, _ in found):.2f} on the mean, after the changes {mean(two for _, two in found):.2f}, "
          f"{min(two for _, two in found):.2f} at worst")  # fmt: skip


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
