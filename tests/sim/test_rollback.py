"""Swarms that go back to a snapshot because the author has ordered it (rule 47): once, from wherever they are in a step,
also when leaders die, and when somebody comes back who was away."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from ftnode.protocol.holder import holder
from ftnode.protocol.leader import restart, undoing
from ftnode.protocol.recovery import rolls
from ftnode.protocol.views import following, lineage_rank
from ftnode.protocol.words.events import Ordered
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import RollbackOrder, Rung
from ftnode.protocol.words.view import Lineage
from tests.sim.checks import Violation
from tests.sim.planted import patched
from tests.sim.targets import best_view
from tests.sim.test_restart import SETTINGS, Swarm

ORDER = RollbackOrder(1, 7)
"""Snapshots are of steps 3, 6, 9 and so on."""
SEEDS = range(1, 5)
SPOILT_AT = 10


def order(swarm: Swarm, given: RollbackOrder = ORDER, but: tuple[str, ...] = ()) -> None:
    for host in swarm.world.live():
        if host.peer.id not in but:
            swarm.world.deliver(host, Ordered(given))


def spoilt(seed: int, after: float = 0.0, settings: Settings = SETTINGS, step: int = SPOILT_AT) -> Swarm:
    """A swarm that has come so far, and somewhere in the next step."""
    swarm = Swarm(settings, seed=seed)
    swarm.until(step)
    swarm.world.run(swarm.world.now + after)
    swarm.installed.clear()
    swarm.commits.clear()
    return swarm


def ends_at_the_order(swarm: Swarm, steps: int = SETTINGS.steps) -> None:
    """All stages come from the snapshots of step 6, and nobody goes on from later weights."""
    swarm.until(steps)
    swarm.world.run(swarm.world.now + 2.0)
    view = best_view(swarm.world)
    assert view is not None and view.lineage.order == ORDER.number
    assert view.lineage.start is not None and view.lineage.start.step == 6
    for host in swarm.world.live():
        assert host.view is not None and host.view.lineage.order == ORDER.number, host.peer
    founded = {one.lineage.id for one in swarm.world.ledger.views.values() if one.lineage.order and not one.lineage.root}
    assert len(founded) == 1


def in_mid_step(seed: int, after: float = 0.0) -> None:
    swarm = spoilt(seed, after)
    order(swarm)
    swarm.until(7, 30.0)
    ends_at_the_order(swarm)
    assert {(rung, base.step) for *_, rung, base in swarm.installed} == {(Rung.SNAPSHOT, 6)}
    assert [step for _, step in swarm.commits if step <= 9].count(7) == 1


def leader_dies(seed: int) -> None:
    """The order is known, and whoever leads is gone before it is followed."""
    swarm = spoilt(seed, 0.1 * seed)
    view = best_view(swarm.world)
    assert view is not None
    order(swarm)
    swarm.world.kill(swarm.world.by_id[view.leader.id], "power", silently=False)
    swarm.world.at(swarm.world.now + 8.0, swarm.world.start, (view.leader.id, 1, True))
    ends_at_the_order(swarm)


def one_member_does_not_know(seed: int) -> None:
    """It hears of the lineage first, and asks for the manifest."""
    swarm = spoilt(seed)
    view = best_view(swarm.world)
    assert view is not None
    order(swarm, but=tuple(peer.id for peer in view.members() if peer != view.leader)[:1])
    ends_at_the_order(swarm)


def comes_back(seed: int) -> None:
    """A member was cut off when the order came, with weights and a disk of later steps."""
    swarm = spoilt(seed)
    world, view = swarm.world, best_view(swarm.world)
    assert view is not None
    away = next(peer for peer in view.members() if peer != view.leader)
    world.pause(world.by_id[away.id])
    order(swarm, but=(away.id,))
    world.at(world.now + 30.0, world.resume, (world.by_id[away.id],))
    ends_at_the_order(swarm)


def starts_again(seed: int) -> None:
    """All are switched off after they have gone back; their disks have later steps that are undone as well."""
    swarm = spoilt(seed, step=12)
    order(swarm)
    swarm.until(8)
    swarm.power_cut()
    for index in range(4):
        swarm.world.at(swarm.world.now + 3.0 + 0.1 * index, _tell, (swarm, f"peer{index}"))
    swarm.until(SETTINGS.steps)
    assert {base.step for *_, base in swarm.installed} == {6}
    view = best_view(swarm.world)
    assert view is not None and view.lineage.order == ORDER.number


def _tell(swarm: Swarm, name: str) -> None:
    swarm.world.deliver(swarm.world.by_id[name], Ordered(ORDER))


@pytest.mark.parametrize("after", [0.0, 0.1, 0.3, 0.7])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_swarm_goes_back_once_and_trains_on(seed: int, after: float) -> None:
    in_mid_step(seed, after)


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_leads_next_follows_the_order(seed: int) -> None:
    leader_dies(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_member_that_has_not_seen_the_order_asks_for_it(seed: int) -> None:
    one_member_does_not_know(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_comes_back_with_the_undone_lineage_gives_it_up(seed: int) -> None:
    comes_back(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restart_does_not_go_on_from_what_is_undone(seed: int) -> None:
    starts_again(seed)


def test_without_a_snapshot_that_is_old_enough_nothing_changes() -> None:
    swarm = spoilt(1)
    view = best_view(swarm.world)
    order(swarm, RollbackOrder(1, 2))
    swarm.until(SETTINGS.steps)
    swarm.world.run(swarm.world.now + 20.0)
    after = best_view(swarm.world)
    assert view is not None and after is not None and after.lineage == view.lineage and not swarm.installed


def test_and_whoever_leads_says_so() -> None:
    settings = SETTINGS._replace(steps=500) if hasattr(SETTINGS, "_replace") else None
    from dataclasses import replace

    swarm = spoilt(1, settings=replace(SETTINGS, steps=500) if settings is None else settings)
    order(swarm, RollbackOrder(1, 2))
    swarm.world.run(swarm.world.now + 20.0)
    assert any("changes nothing: no disk here has all stages of step 2" in note for note in swarm.world.notes)


def test_a_second_order_goes_further_back() -> None:
    swarm = spoilt(2)
    order(swarm)
    swarm.until(8)
    order(swarm, RollbackOrder(2, 5))
    swarm.until(SETTINGS.steps)
    view = best_view(swarm.world)
    assert view is not None and view.lineage.order == 2
    assert view.lineage.start is not None and view.lineage.start.step == 3
