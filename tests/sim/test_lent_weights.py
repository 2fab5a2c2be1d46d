"""What a learner was lent is tried on the lender's own visits before it counts (rule 48)."""

from __future__ import annotations

from typing import Final

import pytest

from ftnode.protocol.recovery.trials import LENT_OTHERS, STEPS_MAX, Trials
from ftnode.protocol.step.showing import Showing
from ftnode.protocol.words.types import Peer
from tests.sim.checks import Violation
from tests.sim.honest_runs import accused
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.test_at_odds import lost, of_stage
from tests.sim.test_checks import NOBODY_ELSE_ASKS
from tests.sim.test_duty import seen, swarm
from tests.sim.world import World

CHECKS: Final = 0.02
GROWS_SECONDS: Final = 60.0
NOBODY_TRIES: Final = (Trials, "lent", lambda self, stage, by: None)


def turned(history: int) -> int:
    return ~history


def lender_and_newcomer(seed: int, holders: int) -> tuple[World, Host]:
    """A stage has so many holders fewer than it may have, and the one that lends weights of its own making has been
    there before the newcomer."""
    world = swarm(seed, replicas=2, spare=0, checks=CHECKS)
    liar = of_stage(world, True)
    stage = seen(world).stages_of(liar.peer)[0]
    liar.lends, world.liars = turned, True
    for peer in [peer for peer in seen(world).holders[stage] if peer != liar.peer][: 2 - holders]:
        world.kill(world.by_id[peer.id], "kill", silently=False)
    world.run(world.now + GROWS_SECONDS)
    world.notes.clear()
    return world, liar


def refusals(world: World) -> list[str]:
    return [note for note in world.notes if LENT_OTHERS in note]


@pytest.mark.parametrize("seed", range(1, 9))
def test_who_lends_other_weights_than_it_works_with_is_not_believed(seed: int) -> None:
    """It stays the only holder, and the run goes on with what it computes, which is right."""
    world, liar = lender_and_newcomer(seed, 1)
    stage = seen(world).stages_of(liar.peer)[0]
    before = world.ledger.top_commit()
    host = world.start("newcomer", 1, True)
    world.run(world.now + GROWS_SECONDS)
    assert refusals(world) and liar.peer in seen(world).holders[stage]
    assert host.peer not in seen(world).holders[stage] and stage in host.participant.holder.refuses
    assert lost(world) == [] and world.ledger.top_commit() > before + 5


def test_where_nobody_tries_them_the_group_is_apart() -> None:
    with patched(NOBODY_TRIES):
        world, _ = lender_and_newcomer(1, 1)
        world.start("newcomer", 1, True)
        with pytest.raises(Violation, match=r"I4: .* other weights than their lender"):
            world.run(world.now + GROWS_SECONDS)


@pytest.mark.parametrize("seed", range(1, 9))
def test_another_holder_lends_what_counts(seed: int) -> None:
    """Of two holders one lends other weights than it works with; the newcomer gets the stage from the other one."""
    world = swarm(seed, replicas=3, spare=-1, checks=CHECKS)
    short = min(range(len(seen(world).holders)), key=lambda stage: len(seen(world).holders[stage]))
    liar = world.by_id[next(peer for peer in seen(world).holders[short] if peer != seen(world).leader).id]
    liar.lends, world.liars = turned, True
    host = world.start("newcomer", 1, True)
    world.run(world.now + 3 * GROWS_SECONDS, lambda: host.peer in seen(world).holders[short])
    assert host.peer in seen(world).holders[short] and lost(world) == []
    world.run(world.now + GROWS_SECONDS)  # the invariants hold with it


def honest_joins(seed: int) -> tuple[float, int]:
    """Seconds until a newcomer holds the stage that has one holder only, and how many weights were not believed."""
    world = swarm(seed, replicas=2, spare=-1, checks=CHECKS)
    began, host = world.now, world.start("newcomer", 1, True)
    world.run(world.now + 3 * GROWS_SECONDS, lambda: host.peer in seen(world).members())
    assert host.peer in seen(world).members()
    return world.now - began, len(refusals(world))


def test_a_newcomer_whom_nobody_lies_to_comes_about_as_soon() -> None:
    found = [honest_joins(seed) for seed in range(1, 9)]
    with patched(NOBODY_TRIES):
        without = [honest_joins(seed)[0] for seed in range(1, 9)]
    assert [count for _, count in found] == [0] * 8
    assert sum(seconds for seconds, _ in found) < sum(without) + 8 * 2.0, (found, without)


def test_a_trial_that_nobody_helps_with_keeps_nobody_out() -> None:
    """Nobody shows anything. The newcomer looks for a trial in a few steps, and then believes."""

    def silent(self: Showing, sender: Peer, show: object) -> list[object]:
        return []

    with patched((Showing, "on_show", silent), NOBODY_ELSE_ASKS):
        seconds, count = honest_joins(1)
    assert count == 0 and STEPS_MAX > 1 and seconds < 2 * GROWS_SECONDS


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_honest_lenders_are_believed_whatever_goes_wrong(seed: int) -> None:
    """All faults of the virtual world, in runs with checks. Nobody honest is said to lend something else."""
    assert accused([seed]) == []
