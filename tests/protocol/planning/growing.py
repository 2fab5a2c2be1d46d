"""A swarm that grows as a leader lets it, one change after another, without a protocol: whoever has nothing is placed,
then somebody moves or takes more, as long as any change is worth it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.changes import Changes, without
from ftnode.protocol.planning.costs import Costs, Risk
from ftnode.protocol.planning.schedule import Batch
from ftnode.protocol.planning.swarm import Holders, Swarm, alike

CHANGES_MAX = 40
STEPS = 1e4
"""That are expected until the next loss."""


class NoEnd(Exception):
    """Changes follow each other for ever."""


def unequal(seed: int) -> Swarm:
    """Five to eight volunteers, one to twelve times as slow as the fastest, with room for one stage to all of four to
    nine. The first has room for all."""
    chance = Random(seed)
    stages, count = chance.randint(3, 8), chance.randint(5, 8)
    forward = {f"p{number}": 0.01 * 12 ** chance.random() for number in range(count)}
    room = {name: chance.randint(1, stages + 1) for name in forward} | {"p0": stages + 1}
    machines = {name: alike((one, 2 * one), (one, 2 * one), stages) for name, one in forward.items()}
    return Swarm(machines, room, (1,) * (stages + 1), Batch(12, 12, BoundaryBytes(0, 0)))


def grown(swarm: Swarm, replicas: int, risk: Risk, holders: Holders = ()) -> Holders:
    """What the layout becomes when volunteers come in the order of their names. `holders`: at first, all stages by
    those who come first; without them, all by the first one. Raises NoEnd."""
    names = sorted(swarm.machines)
    holders = holders or ((names[0],),) * len(swarm.sizes)
    there = len({name for group in holders for name in group})
    for place in range(max(2, there), len(names) + 1):
        for holders in _changed(swarm, holders, names[:place], replicas, risk):  # noqa: B020
            assert all(holders), "no stage without a holder"
    return holders


def _changed(swarm: Swarm, holders: Holders, names: list[str], replicas: int, risk: Risk) -> Iterator[Holders]:
    for _ in range(CHANGES_MAX):
        changes = Changes(Costs(_of(swarm, names), risk), holders, replicas)
        found = next((one for name in names if name not in changes.held and (one := changes.best_place(name))), None)
        if found is None:
            movable = {
                name: stages for name, stages in changes.held.items()
                if all(len(holders[stage]) > 1 for stage in stages)
            }  # fmt: skip
            moved = changes.best_move(movable, STEPS)
            if moved is not None:
                holders = without(holders, moved.place.name, movable[moved.place.name])
                yield holders
                continue
            roomy = [name for name, stages in changes.held.items() if len(stages) < swarm.room[name]]
            found = changes.best_wider(roomy)
        if found is None:
            return
        holders = found.place.holders
        yield holders
    raise NoEnd(holders)


def _of(swarm: Swarm, names: list[str]) -> Swarm:
    return Swarm({name: swarm.machines[name] for name in names}, swarm.room, swarm.sizes, swarm.batch)
