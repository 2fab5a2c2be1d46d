"""A peer whose compute has no memory for one stage loses that one, and does not take as many again."""

from __future__ import annotations

import pytest

from tests.sim.planted import forgets_its_limit
from tests.sim.run import run_seeds
from tests.sim.test_comings_and_goings import LONG, held, seen, started
from tests.sim.world import World
from tests.tiers import seeds


def loses(seed: int, out_of_memory: bool) -> tuple[World, str]:
    """Two of two stages each, and one that stands by; one of the two loses stage 2."""
    world = started(World(LONG, seed, delay_max=0.01), 2, hold=2)
    (peer,) = seen(world).holders[2]
    world.start("newcomer", 1, True)
    world.run(world.now + 0.1)
    world.lose_stage(world.by_id[peer.id], 2, "out of memory", out_of_memory)
    return world, peer.id


@pytest.mark.parametrize("seed", range(1, 21))
def test_it_keeps_its_other_stage_and_the_swarm_recovers_the_one(seed: int) -> None:
    world, peer = loses(seed, True)
    (other,) = set(held(world)[peer]) - {2}
    core, commit = world.by_id[peer].participant, world.ledger.top_commit()
    version = core.holder.versions[other]
    world.run(world.now + 0.2)
    assert core.holder.versions[other].step >= version.step and 2 not in core.holder.versions
    world.run(world.now + 60.0)
    assert world.ledger.top_commit() > commit + 20
    assert 2 not in held(world)[peer] and seen(world).holders[2]
    assert core.picture.me == core.me and core.holder.capacity == 1
    assert sum("is lost here, and no other" in note for note in world.notes) == 1
    assert not any(f"{peer} with" in note and "is lost (" in note for note in world.notes), "it was never away"


def test_one_that_lost_it_with_a_process_may_have_it_again() -> None:
    world, peer = loses(1, False)
    world.run(world.now + 60.0)
    assert world.by_id[peer].participant.holder.capacity == 2
    assert seen(world).holders[2]


def test_whoever_forgets_its_limit_runs_into_it_again() -> None:
    """The planted bug: it says that it has room as before, and takes a second stage again as soon as one is open."""

    def capacity() -> int:
        world, peer = loses(3, True)
        world.run(world.now + 5.0)
        world._compute_ready(world.by_id[peer], world.by_id[peer].compute_life)  # compute reports, as it did before
        return world.by_id[peer].participant.holder.capacity

    assert capacity() == 1
    with forgets_its_limit():
        assert capacity() == 2


def test_many_seeds_with_little_memory() -> None:
    for outcome in run_seeds(seeds(60), 1, ("memory", "memory", "kill", "election", "leave")):
        assert not outcome.violation, outcome.report()
