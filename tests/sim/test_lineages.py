"""Lineages that meet: the training goes on, whichever of them wins (rule 16)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.holder.holder import Holder
from ftnode.protocol.leader.leader import Leader
from ftnode.protocol.views.lineage_rank import ABOUT
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.view import View
from tests.sim.directory import DirectoryService
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.scenario import run_seed
from tests.sim.test_former_holders import SETTINGS
from tests.sim.test_groups import SETTINGS as GROUPS
from tests.sim.test_restart import Swarm, cut, halves, lineages
from tests.sim.world import World


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


BLIND_SECONDS = 12.0


def late_and_blind(seed: int, monkeypatch: pytest.MonkeyPatch) -> tuple[World, int]:
    """Three train. Somebody fast comes, sees nobody in the directory for a while, and trains alone. Also how many steps
    it has done when it sees the others."""
    world = World(replace(GROUPS, listed=False, stages=2, steps=100_000), seed, delay_max=0.005)
    for name in "abc":
        world.start(name, 3, True)
    world.run(world.now + 120.0)
    until, visible = world.now + BLIND_SECONDS, DirectoryService._visible

    def hiding(service: DirectoryService, reader: Host) -> tuple[tuple[Presence, ...], tuple[View, ...]]:
        """The newcomer sees nobody, and nobody sees the newcomer."""
        presences, views = visible(service, reader)
        if world.now > until:
            return presences, views
        if reader.peer.id == "fast":
            return (), ()
        others = (view for view in views if view.leader.id != "fast")
        return tuple(one for one in presences if one.peer.id != "fast"), tuple(others)

    monkeypatch.setattr(DirectoryService, "_visible", hiding)
    fast = world.start("fast", 3, True)
    fast.forward_seconds = 0.002
    world.run(until)
    assert fast.view is not None and len(fast.view.members()) == 1, "it has found a run of its own"
    done = fast.participant.situation.highest_step
    world.run(world.now + 60.0)
    return world, done


@pytest.mark.parametrize("planted", [False, True], ids=["as it is", "what it has done counts at once"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_who_found_nobody_comes_to_the_others_when_it_sees_them(
    seed: int, planted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run is open to strangers, whose claims nobody believes who has something to lose."""
    if planted:
        never = property(lambda self: float("-inf"), lambda self, at: None)
        monkeypatch.setattr(Leader, "_founded_at", never, raising=False)
    world, done = late_and_blind(seed, monkeypatch)
    assert done >= ABOUT
    lineages_now = {host.view.lineage.id for host in world.live() if host.view is not None}
    assert (len(lineages_now) == 1) is not planted
