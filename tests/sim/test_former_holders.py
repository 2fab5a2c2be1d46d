"""A part of a swarm goes on without the other and is lost: all weights are outside of the view then (rule 16)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from random import Random
from typing import Any

import pytest

from ftnode.protocol.situation import Situation
from ftnode.protocol.step import completed_attempt
from ftnode.protocol.views import following, former_holders, founding
from ftnode.protocol.words.events import Received
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, Version
from ftnode.protocol.words.view import View
from tests.sim.planted import patched
from tests.sim.targets import best_view
from tests.sim.test_restart import Swarm, cut, lineages
from tests.sim.world import World

SETTINGS = Settings(
    listed=True,
    run="sim", stages=2, steps=1000, microbatches=2, window=2, head_every=1, replicas=2, lease_seconds=3.0,
    minority_wait_seconds=6.0,
)  # fmt: skip


def parted(seed: int, come_back: bool, miss: float) -> Swarm:
    """Each part has one holder of each stage. The leader's part goes on, learns that the other one is gone, and loses
    power; the line comes back, and with `come_back` those who lost power do, with nothing. The directory shows a record
    with a chance of 1 - `miss` from the cut on."""
    swarm, chance = Swarm(SETTINGS, peers=6, seed=seed), Random(seed)
    world = swarm.world

    def whole() -> bool:
        view = best_view(world)
        return view is not None and all(len(group) == 2 for group in view.holders) and len(view.voters) == 6

    world.run(100.0, whole)
    swarm.until(max(step for _, step in swarm.commits) + 10)
    world.run(world.now + chance.uniform(0.0, 0.6))
    view = best_view(world)
    assert view is not None
    leader = view.leader.id
    with_leader = [max((peer.id for peer in group), key=lambda name: name == leader) for group in view.holders]
    near, far = set(with_leader), {peer.id for peer in view.members()} - set(with_leader)
    pairs = cut(swarm, near, far)
    world.directory.miss = miss
    world.run(world.now + 60.0, lambda: not far & {peer.id for peer in (best_view(world) or view).members()})
    tell(world, best_view(world) or view, sorted(far))
    world.run(world.now + chance.uniform(0.2, 5.2))
    swarm.commits.clear()
    for name in sorted(near):
        world.kill(world.by_id[name], "power", silently=False)
        if come_back:
            world.at(world.now + 0.5, world.start, (name, 1, True))
    world.network.heal(pairs)
    return swarm


def tell(world: World, view: View, names: Iterable[str]) -> None:
    """Its leader's certificate gets through to them after all."""
    leader = world.by_id[view.leader.id]
    for name in names:
        host = world.by_id[name]
        shown = leader.participant.certificate(host.view.number if host.view is not None else -1)
        world.deliver(host, Received(view.leader, world.seals.sealed(view.leader, shown), None))


def go_on_together(seed: int, come_back: bool, miss: float) -> None:
    """From the commit that they have, with the weights that they have: nothing is rebuilt."""
    swarm = parted(seed, come_back, miss)
    before = len(swarm.installed)
    swarm.until(5, 90.0)
    assert min(step for _, step in swarm.commits) > 5
    rungs = {rung.value for *_, rung, _ in swarm.installed[before:]}
    assert rungs <= {"replica", "kept"}, rungs
    swarm.world.run(swarm.world.now + 30.0)
    swarm.goes_on()
    assert len(lineages(swarm)) == 1


SEEDS = range(12)
LEFT, LATE = 31, 118
"""The others have committed what a former holder has left, and it can make that commit of its weights; and the lineage
comes out of a view that was not the last one that the others heard of."""


@pytest.mark.parametrize("miss", [0.0, 0.4], ids=["all", "some"])
@pytest.mark.parametrize("come_back", [False, True], ids=["gone", "anew"])
@pytest.mark.parametrize("seed", SEEDS)
def test_former_holders_go_on_together(seed: int, come_back: bool, miss: float) -> None:
    go_on_together(seed, come_back, miss)


@pytest.mark.parametrize("seed", [LEFT, LATE])
def test_some_know_more_than_others(seed: int) -> None:
    go_on_together(seed, False, 0.0)


@pytest.mark.parametrize("come_back", [False, True], ids=["gone", "anew"])
def test_a_founder_that_a_reading_does_not_show_later_weights_remembers_them(come_back: bool) -> None:
    go_on_together(LEFT, come_back, 0.4)


def last_reading(self: former_holders.FormerHolder, s: Situation) -> None:
    """What one of them knows of the others is what the last reading of the directory has shown."""
    self._reported = {}
    READ(self, s)


READ = former_holders.FormerHolder.read
FORGETS = (former_holders.FormerHolder, "read", last_reading)


def with_planted(planted: Any, seeds: Iterable[int], miss: float) -> None:
    with planted, pytest.raises(AssertionError):
        for seed in seeds:
            go_on_together(seed, False, miss)


def test_planted_who_is_outside_takes_it_for_another_lineage() -> None:
    """And drops its weights: the run halts, with all of them in memory a moment ago."""

    def for_members(s: Situation, former: former_holders.FormerHolder, sender: Peer, view: View) -> bool:
        return s.member and founding.founded_for_us(s, former, sender, view)

    with_planted(patched((following, "founded_for_us", for_members)), (1,), 0.0)


def test_planted_only_the_first_view_of_a_lineage_tells_where_it_comes_from() -> None:
    """Whoever the directory did not show to the founder hears of the second one."""

    def first(view: View, mine: View) -> bool:
        return view.previous == mine.digest()

    with_planted(patched((former_holders, "descends", first), FORGETS), range(230, 240), 0.4)


def test_planted_what_was_left_has_one_name() -> None:
    """What an attempt would make is named by the lineage that we follow now, though the others committed it before."""

    def promised(self: completed_attempt.CompletedAttempt, versions: Mapping[int, Version], lineage: str) -> Any:
        work = self.work_in(lineage)
        return () if work is None else completed_attempt.promised_by(work, versions, lineage)

    seeds = LEFT, *range(130, 400)
    with_planted(patched((completed_attempt.CompletedAttempt, "promised", promised)), seeds, 0.0)
