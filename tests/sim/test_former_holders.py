"""A part of a swarm goes on without the other and is lost: all weights are outside of the view then (rule 16)."""

from __future__ import annotations

import pytest

from ftnode.protocol import follow
from ftnode.protocol.settings import Settings
from tests.sim.planted import patched
from tests.sim.targets import best_view
from tests.sim.test_restart import Swarm, cut, lineages

SETTINGS = Settings(
    run="sim", stages=2, steps=1000, microbatches=2, window=2, head_every=1, replicas=2, lease_seconds=3.0,
    minority_wait_seconds=6.0,
)  # fmt: skip


def parted(seed: int, come_back: bool) -> Swarm:
    """Each part has one holder of each stage. The leader's part goes on, learns that the other one is gone, and loses
    power; the line comes back, and with `come_back` those who lost power do, with nothing."""
    swarm = Swarm(SETTINGS, peers=6, seed=seed)
    world = swarm.world

    def whole() -> bool:
        view = best_view(world)
        return view is not None and all(len(group) == 2 for group in view.holders) and len(view.voters) == 6

    world.run(100.0, whole)
    swarm.until(max(step for _, step in swarm.commits) + 10)
    view = best_view(world)
    assert view is not None
    leader = view.leader.id
    with_leader = [max((peer.id for peer in group), key=lambda name: name == leader) for group in view.holders]
    near, far = set(with_leader), {peer.id for peer in view.members()} - set(with_leader)
    pairs = cut(swarm, near, far)
    world.run(world.now + 60.0, lambda: not far & {peer.id for peer in (best_view(world) or view).members()})
    world.run(world.now + 5.0)
    swarm.commits.clear()
    for name in sorted(near):
        world.kill(world.by_id[name], "power", silently=False)
        if come_back:
            world.at(world.now + 0.5, world.start, (name, 1, True))
    world.network.heal(pairs)
    return swarm


@pytest.mark.parametrize("seed", [1, 2, 4])
@pytest.mark.parametrize("come_back", [False, True], ids=["gone", "anew"])
def test_former_holders_go_on_together(seed: int, come_back: bool) -> None:
    """From the commit that they have, with the weights that they have: nothing is rebuilt."""
    swarm = parted(seed, come_back)
    before = len(swarm.installed)
    swarm.until(5, 60.0)
    assert min(step for _, step in swarm.commits) > 5
    rungs = {rung.value for *_, rung, _ in swarm.installed[before:]}
    assert rungs <= {"replica", "kept"}, rungs
    swarm.world.run(swarm.world.now + 20.0)
    swarm.goes_on()
    assert len(lineages(swarm)) == 1


def test_planted_who_is_outside_takes_it_for_another_lineage() -> None:
    """And drops its weights: the run halts, with all of them in memory a moment ago."""
    original = follow.founded_for_us
    members_only = patched(
        (
            follow,
            "founded_for_us",
            lambda core, sender, view: core.me in view.members() and original(core, sender, view),
        )
    )
    with members_only, pytest.raises(AssertionError):
        test_former_holders_go_on_together(1, False)


def test_planted_nobody_is_told() -> None:
    with patched((follow, "FORMER_HOLDERS_MAX", 0)), pytest.raises(AssertionError):
        for seed in (1, 2, 4):
            test_former_holders_go_on_together(seed, False)
