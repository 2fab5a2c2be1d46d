"""Who gives one microbatch to two holders of a stage, on two paths, costs nobody else a place (rules 20, 21, 23)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.step.admissions import Admissions
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.messages import Boundary
from ftnode.protocol.words.types import HEAD, Direction
from tests.sim.checks import Violation
from tests.sim.forking import Forking
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.test_at_odds import lost
from tests.sim.test_duty import betrays, seen, swarm
from tests.sim.world import World

SEEDS: Final = range(1, 11)
FEW: Final = range(1, 4)
SECONDS_MAX: Final = 120.0
STEPS_AFTER: Final = 4
CHECKS: Final = 0.02
ANY_PATH: Final = (Admissions, "allows", lambda self, boundary: True)
"""Whatever path a tensor comes on."""
NOBODY_IS_SHOWN: Final = (Admissions, "to_show", lambda self, peer, doubles: [])
"""By whose word the other one has a visit."""
NOBODY_COMPARES: Final = (Admissions, "two_paths", lambda self, words: ())


def holder(world: World, stage: int, leads: bool = False) -> Host:
    view = seen(world)
    return next(world.by_id[peer.id] for peer in view.holders[stage] if (peer == view.leader) is leads)


def forks(seed: int, stage: int, **how: Any) -> tuple[World, Host, Forking]:
    """From now on somebody forks what it passes on; it does not lead."""
    world = swarm(seed, 3, checks=CHECKS)
    host = holder(world, stage, how.pop("leads", False))
    world.liars = True
    world.notes.clear()
    forking = Forking(world, host, **how)
    betrays(host, forking)
    return world, host, forking


def gone_after(world: World, host: Host, steps: int = STEPS_AFTER) -> list[str]:
    """Who goes until this one is gone, and in some steps after that."""
    world.run(world.now + SECONDS_MAX, lambda: host.peer not in seen(world).members())
    begun = world.ledger.top_commit()
    world.run(world.now + SECONDS_MAX, lambda: world.ledger.top_commit() >= begun + steps)
    assert world.ledger.top_commit() >= begun + steps, world.notes
    return lost(world)


def trains_with_all(world: World, forking: Forking, steps: int = 3 * STEPS_AFTER) -> None:
    begun = world.ledger.top_commit()
    world.run(world.now + SECONDS_MAX, lambda: world.ledger.top_commit() >= begun + steps)
    assert world.ledger.top_commit() >= begun + steps and lost(world) == []
    assert forking.forked > steps // 2


@pytest.mark.parametrize("seed", SEEDS)
def test_a_head_that_gives_a_microbatch_to_two_goes_and_nobody_else(seed: int) -> None:
    world, host, _ = forks(seed, HEAD)
    before = world.ledger.top_commit()
    world.run(world.now + SECONDS_MAX, lambda: host.peer not in seen(world).members())
    assert world.ledger.top_commit() <= before + 2
    assert gone_after(world, host) == [str(host.peer)]
    assert any(" convicted: " in note and "on two paths" in note for note in world.notes)


@pytest.mark.parametrize("seed", FEW)
@pytest.mark.parametrize("how", [{"whole": False}, {"meets": True}], ids=["the second one ends", "both meet again"])
def test_it_goes_as_well_where_only_one_of_the_paths_is_whole(seed: int, how: dict[str, bool]) -> None:
    world, host, _ = forks(seed, HEAD, **how)
    assert gone_after(world, host) == [str(host.peer)]


@pytest.mark.parametrize("seed", FEW)
def test_a_leader_that_does_so_is_replaced(seed: int) -> None:
    world, host, _ = forks(seed, HEAD, leads=True)
    assert gone_after(world, host) == ["leader"]
    assert any(f"lost: leader {host.peer} has lied, as two words prove" in note for note in world.notes)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_has_not_admitted_it_can_fork_nothing(seed: int) -> None:
    world, _, forking = forks(seed, 1)
    trains_with_all(world, forking)


@pytest.mark.parametrize("seed", FEW)
def test_a_path_that_its_head_has_not_signed_is_not_taken(seed: int) -> None:
    world, _, forking = forks(seed, HEAD, signs=False)
    trains_with_all(world, forking)


@pytest.mark.parametrize("seed", [1, 2])
def test_without_checks_a_head_that_forks_costs_one_after_another_its_place(seed: int) -> None:
    """It is not defended, as SECURITY.md says: no path is signed, and nobody names the head."""
    world = swarm(seed, 3)
    host = holder(world, HEAD)
    world.liars = True
    world.notes.clear()
    betrays(host, Forking(world, host))
    world.run(world.now + SECONDS_MAX, lambda: len({*lost(world)}) >= 2)
    assert len({*lost(world)}) >= 2 and str(host.peer) not in lost(world)
    assert not any(" convicted: " in note for note in world.notes)


def begins_a_path(host: Host, effect: fx.Effect) -> bool:
    """It gives a microbatch that it has admitted to the first block stage."""
    message = effect.message if isinstance(effect, fx.Send) else None
    if not isinstance(message, Boundary) or message.path[0] != host.peer:
        return False
    return message.visit == 1 and message.direction is Direction.FORWARD


def admits_what_others_do(world: World, host: Host) -> list[int]:
    """From now on the host gives each holder that it gives a microbatch to those of other heads as well; which."""
    sent: list[int] = []

    def way(event: ev.Event, decide: traitor.Decide) -> list[fx.Effect]:
        effects, begin = decide(event), host.participant.holder.begin
        shares = begin.shares if begin is not None else ()
        others = [m for peer, share in shares if peer != host.peer for m in share]
        for effect in [effect for effect in effects if begins_a_path(host, effect)]:
            assert isinstance(effect, fx.Send) and isinstance(effect.message, Boundary)
            effects += [fx.Send(effect.to, replace(effect.message, microbatch=m), effect.handle) for m in others]
            sent.extend(others)
        return effects

    world.liars = True
    world.notes.clear()
    betrays(host, way)
    return sent


@pytest.mark.parametrize("seed", FEW)
def test_a_head_admits_nothing_that_the_begin_gives_to_another_one(seed: int) -> None:
    """Not in runs without checks either."""
    world = swarm(seed, 3)
    sent = admits_what_others_do(world, holder(world, HEAD))
    begun = world.ledger.top_commit()
    world.run(world.now + SECONDS_MAX, lambda: world.ledger.top_commit() >= begun + 12)
    assert world.ledger.top_commit() >= begun + 12 and lost(world) == [] and len(sent) > 6


def test_planted_a_head_may_admit_what_it_likes() -> None:
    """Then its tensors are taken for those of others' microbatches."""
    with patched(ANY_PATH):
        world = swarm(1, 3)
        admits_what_others_do(world, holder(world, HEAD))
        with pytest.raises(Violation, match="feeds"):
            world.run(world.now + SECONDS_MAX)


@pytest.mark.parametrize("seed", [3, 4])
def test_planted_tensors_come_on_any_path(seed: int) -> None:
    """Then who forks them in the middle costs others their place."""
    with patched(ANY_PATH):
        world, host, _ = forks(seed, 1)
        world.run(world.now + SECONDS_MAX, lambda: bool({*lost(world)} - {str(host.peer)}))
        assert {*lost(world)} - {str(host.peer)}


@pytest.mark.parametrize("bug", [NOBODY_IS_SHOWN, NOBODY_COMPARES], ids=["nobody is shown", "nobody compares"])
def test_planted_two_words_are_not_brought_together(bug: Any) -> None:
    """Then a head that forks costs others their place."""
    with patched(bug):
        world, host, _ = forks(1, HEAD)
        world.run(world.now + SECONDS_MAX, lambda: bool({*lost(world)} - {str(host.peer)}))
        assert {*lost(world)} - {str(host.peer)}
