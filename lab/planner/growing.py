"""A swarm that grows as a node's leader lets it, without a protocol: volunteers come one after the other, whoever has
nothing is placed, and then somebody moves or takes more, as long as any change is worth it. Where none is, they go to a
better layout, change by change."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from ftnode.protocol.planning.changes import Changes, without
from ftnode.protocol.planning.costs import Costs, Risk
from ftnode.protocol.planning.goal import Goal, find_goal, next_change
from ftnode.protocol.planning.swarm import Holders, Swarm

CHANGES_MAX: Final = 100
"""Between two who come."""
STEPS: Final = 1e4
"""That are expected until the next loss."""


class NoEnd(Exception):
    """Changes follow each other for ever."""


def founded(swarm: Swarm, names: Sequence[str]) -> Holders:
    """The first ones take what they have room for, one after the other, until somebody holds each stage."""
    holders: list[tuple[str, ...]] = []
    for name in names:
        room = swarm.room[name]
        while len(holders) < len(swarm.sizes) and swarm.sizes[len(holders)] <= room:
            room -= swarm.sizes[len(holders)]
            holders.append((name,))
    return tuple(holders)


def grown(swarm: Swarm, risk: Risk, goals: bool = True) -> Holders:
    """What the layout becomes when volunteers come in the order of their names. `goals`: they also go to layouts
    that only several changes together are worth. Raises NoEnd."""
    names = sorted(swarm.machines)
    holders = founded(swarm, names)
    there = len({name for group in holders for name in group})
    for place in range(there, len(names) + 1):
        costs = Costs(replace(swarm, machines={name: swarm.machines[name] for name in names[:place]}), risk)
        for holders in _changed(costs, holders, goals):  # noqa: B020
            assert all(holders), "no stage without a holder"
    return holders


def _changed(costs: Costs, holders: Holders, goals: bool) -> Iterator[Holders]:
    """One change after the other, with one goal at most."""
    goal: Goal | None = None
    for _ in range(CHANGES_MAX):
        changes = Changes(costs, holders)
        after = _on_the_way(changes, goal)
        if after is None:
            goal, after = None, _single_change(changes)
        if after is None and goals:
            goals, goal = False, find_goal(changes, STEPS)
            after = _on_the_way(changes, goal)
        if after is None:
            return
        holders = after
        yield holders
    raise NoEnd(holders)


def _on_the_way(changes: Changes, goal: Goal | None) -> Holders | None:
    if goal is None or not goal.stands(changes.present, changes.costs.swarm.machines):
        return None
    found = next_change(changes, goal)
    return found.place.holders if found is not None else None


def _single_change(changes: Changes) -> Holders | None:
    present, held, swarm = changes.present, changes.held, changes.costs.swarm
    idle = [name for name in sorted(swarm.machines) if name not in held]
    found = next((one for name in idle if (one := changes.best_place(name)) is not None), None)
    if found is None:
        movable = {name: stages for name, stages in held.items() if all(len(present[stage]) > 1 for stage in stages)}
        moved = changes.best_move(movable, STEPS)
        if moved is not None:
            return without(present, moved.place.name, movable[moved.place.name])
        found = changes.best_wider([name for name, stages in held.items() if len(stages) < swarm.room[name]])
    return found.place.holders if found is not None else None
