"""Lineages that meet: the training goes on, whichever of them wins (rule 16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.holder.holder import Holder
from tests.sim.planted import patched
from tests.sim.scenario import run_seed
from tests.sim.test_former_holders import SETTINGS
from tests.sim.test_restart import Swarm, cut, halves, lineages


@pytest.mark.parametrize("seed", [10761, 10886])
def test_a_lineage_that_trains_does_not_yield_to_one_that_cannot_go_on(seed: int) -> None:
    """In both seeds a peer with one stage leads a lineage of higher rank than that of those who train."""
    outcome = run_seed(seed)
    assert not outcome.violation and not outcome.halted


def lost_to_one_that_dies() -> tuple[Swarm, int]:
    """Two halves train apart and meet; those who win are gone in the same moment. Also the step of those who lost."""
    swarm, near, far = halves(replace(SETTINGS, stages=3))
    world = swarm.world
    pairs = cut(swarm, near, far)
    world.run(world.now + 60.0, lambda: len(lineages(swarm)) == 2)
    world.run(world.now + 30.0)
    both = {host.peer.id: host.view.lineage.id for host in world.live() if host.view is not None}
    steps = {name: max(world.ledger.commits[name]) for name in set(both.values())}
    world.network.heal(pairs)
    world.run(world.now + 60.0, lambda: len(lineages(swarm)) == 1)
    (winner,) = lineages(swarm)
    assert len(steps) == 2
    for name, lineage in both.items():
        if lineage == winner:
            world.kill(world.by_id[name], "power", silently=True)
    swarm.commits.clear()
    return swarm, next(step for name, step in steps.items() if name != winner)


def test_those_who_lost_go_back_when_nobody_stands_behind_the_winner() -> None:
    swarm, step = lost_to_one_that_dies()
    swarm.world.run(swarm.world.now + 60.0)
    swarm.goes_on()
    assert min(told for _, told in swarm.commits) > step


def test_planted_those_who_lost_keep_nothing() -> None:
    with patched((Holder, "given_up", property(lambda self: None))):
        swarm, _ = lost_to_one_that_dies()
        swarm.world.run(swarm.world.now + 120.0)
    assert not swarm.commits
