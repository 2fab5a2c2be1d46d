"""Honest holders are killed one after another, until a liar has what is left: a copy, weights to lend, or a neighbour's
place (rules 46, 48, 49). The run goes on without anything of the liar's, or halts.

The liar's core decides as all others do. What it lends is made up, whatever it is asked for. Invariants see what gets
in: I4 a copy that was never the stage's, weights that nobody works with, and a stage that is made of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from random import Random
from typing import Final

import pytest

from ftnode.protocol.recovery.donor_trials import DonorTrials
from ftnode.protocol.recovery.trials import Trials
from ftnode.protocol.words.messages import Plan
from ftnode.protocol.words.settings import Settings
from tests.sim.checks import Violation
from tests.sim.compute import Weights
from tests.sim.host import Host
from tests.sim.liars import grown, view_of
from tests.sim.planted import patched
from tests.sim.test_duty import LONG
from tests.sim.world import World

CHECKS: Final = 0.02
SETTLES_SECONDS: Final = 20.0
SEEDS: Final = range(1, 1 + (int(os.environ.get("FTNODE_SEEDS", "0")) // 8 or 6))


@dataclass
class Amnesia:
    """What the liar wants to be asked for. `stage`: the one that is to be lost."""

    world: World
    liar: Host
    stage: int

    def lies(self) -> None:
        """From now on about all that it lends, and about copies that it gets later."""
        self.world.liars = True
        self.liar.lends = lambda history: ~history
        self.spoil()

    def spoil(self) -> None:
        self.liar.bend_copies(self._spoilt)

    def _spoilt(self, weights: Weights) -> Weights:
        if weights.history not in self.spoilt:
            weights = weights._replace(history=~weights.history)
            self.spoilt.add(weights.history)
        return weights

    def __post_init__(self) -> None:
        self.spoilt: set[int] = set()

    def kill_others(self, chance: Random) -> None:
        """Of the stage, and of who could lend it, and where it is a donor also of the stage on the other side: one
        after the other, at any moment of the steps. Those that come in their places are left alone, and so is the
        head."""
        view, begun = view_of(self.world), self.world.ledger.top_commit()
        donates = self.liar.peer in view.holders[self.stage - 1]
        held = [*view.holders[self.stage], *(view.holders[self.stage + 1] if donates else ())]
        kept = [host.peer for host in self.world.live() if self.stage in host.copies]
        for peer in dict.fromkeys([*kept, *held]):
            host = self.world.by_id[peer.id]
            if host is self.liar or not host.alive or host.peer != peer or peer in view.holders[0]:
                continue
            self.spoil()
            self.world.kill(host, "kill", silently=chance.random() < 0.5)
            self.world.run(self.world.now + chance.uniform(0.0, 3.0))
            self.spoil()
        self.world.run(self.world.now + 3 * SETTLES_SECONDS, lambda: self.world.ledger.top_commit() >= begun + 25)


def drawn(seed: int, settings: Settings, liar: Callable[[World, int], Host | None]) -> Amnesia:
    """A world that has settled, and one that lies in it, which does not lead."""
    world = grown(seed, settings, settings.replicas * settings.stage_count, spare=3)
    world.run(world.now + SETTLES_SECONDS)
    world.notes.clear()
    view = view_of(world)
    stages = [stage for stage in range(2, settings.stages) if view.leader not in view.holders[stage]]
    Random(f"amnesia {seed}").shuffle(stages)
    for stage in stages:
        found = liar(world, stage)
        if found is not None and found.peer != view.leader and found.peer not in view.holders[0]:
            return Amnesia(world, found, stage)
    raise AssertionError(f"seed {seed} has nobody who could lie")


def neighbour(world: World, stage: int) -> Host | None:
    return world.by_id[view_of(world).holders[stage - 1][0].id]


def keeper(world: World, stage: int) -> Host | None:
    holders = view_of(world).holders[stage]
    return next((host for host in world.live() if stage in host.copies and host.peer not in holders), None)


def replica(world: World, stage: int) -> Host | None:
    return world.by_id[view_of(world).holders[stage][-1].id]


BASE: Final = replace(LONG, stages=5, microbatches=4, window=4, checks=CHECKS)
WAYS: Final = {
    "donor": (BASE, neighbour),
    "keeper": (replace(BASE, shadow_every=1, head_every=1), keeper),
    "replica": (replace(BASE, stages=4, replicas=2), replica),
}


def amnesia(way: str, seed: int) -> World:
    settings, liar = WAYS[way]
    schedule = drawn(seed, settings, liar)
    schedule.lies()
    schedule.kill_others(Random(f"kills {seed}"))
    return schedule.world


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("way", WAYS)
def test_whoever_kills_the_honest_gets_nothing_of_its_own_in(way: str, seed: int) -> None:
    """And the run goes on, without what only the dead had."""
    world = amnesia(way, seed)
    before = world.ledger.top_commit()
    world.run(world.now + 3 * SETTLES_SECONDS, lambda: world.ledger.top_commit() >= before + 3)
    assert world.ledger.top_commit() >= before + 3, [*world.notes][-30:]


OFF: Final[dict[str, Callable[[], AbstractContextManager[None]]]] = {
    "donor": lambda: patched((DonorTrials, "lent", lambda self, *given: None)),
    "keeper": lambda: patched((Plan, "takes", lambda self, digest: True)),
    "replica": lambda: patched((Trials, "lent", lambda self, stage, by: None)),
}


@pytest.mark.parametrize("way", WAYS)
def test_with_the_defence_off_it_does(way: str) -> None:
    with OFF[way](), pytest.raises(Violation, match="I4"):
        for seed in range(1, 30):
            amnesia(way, seed)
