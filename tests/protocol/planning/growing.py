"""A swarm that grows as a leader lets it, one change after another, without a protocol: whoever has nothing is placed,
then somebody moves or takes more, as long as any change is worth it."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.changes import Changes, without
from ftnode.protocol.planning.costs import Costs, Risk
from ftnode.protocol.planning.schedule import Batch
from ftnode.protocol.planning.swarm import Holders, Swarm, alike, stages_of

CHANGES_MAX = 60
STEPS = 1e4
"""That are expected until the next loss."""


def unequal(seed: int) -> Swarm:
    """Five to eight volunteers, one to twelve times as slow as the fastest, with room for one stage to all of four to
    nine. The first has room for all."""
    chance = Random(seed)
    stages, count = chance.randint(3, 8), chance.randint(5, 8)
    forward = {f"p{number}": 0.01 * 12 ** chance.random() for number in range(count)}
    room = {name: chance.randint(1, stages + 1) for name in forward} | {"p0": stages + 1}
    machines = {name: alike((one, 2 * one), (one, 2 * one), stages) for name, one in forward.items()}
    return Swarm(machines, room, (1,) * (stages + 1), Batch(12, 12, BoundaryBytes(0, 0)))


def grown(swarm: Swarm, replicas: int, risk: Risk) -> tuple[Holders, int]:
    """What the layout becomes when volunteers come in the order of their names, and after how many changes."""
    names, count = sorted(swarm.machines), 0
    holders: Holders = ((names[0],),) * len(swarm.sizes)
    for place in range(2, len(names) + 1):
        there = names[:place]
        for holders in _changed(swarm, holders, there, replicas, risk):  # noqa: B020
            count += 1
            assert all(holders), "no stage without a holder"
    return holders, count


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
    raise AssertionError(f"{CHANGES_MAX} changes, and no end")


def _of(swarm: Swarm, names: list[str]) -> Swarm:
    return Swarm({name: swarm.machines[name] for name in names}, swarm.room, swarm.sizes, swarm.batch)


def stand_by(swarm: Swarm, holders: Holders) -> set[str]:
    return swarm.machines.keys() - stages_of(holders).keys()
