"""Swarms that go back to a snapshot because the author has ordered it (rule 47): once, from wherever they are in a
step, also when leaders die, and when somebody comes back who was away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.leader import restart
from ftnode.protocol.leader.undoing import Undoing
from ftnode.protocol.situation import Outcome
from ftnode.protocol.views import following, lineage_rank, succession
from ftnode.protocol.words.events import Ordered
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import RollbackOrder, Rung
from ftnode.protocol.words.view import Lineage
from tests.sim import test_restart
from tests.sim.checks import Violation
from tests.sim.planted import patched
from tests.sim.targets import best_view
from tests.sim.test_restart import Swarm
from tests.sim.world import World

SETTINGS = replace(test_restart.SETTINGS, steps=400, snapshot_every=8)
ORDER = RollbackOrder(1, 19)
"""Snapshots are of steps 8, 16, 24 and so on."""
BACK_AT = 16
SPOILT_AT = 26
OVER = 40
"""Far enough: everybody knows."""
SEEDS = range(1, 5)


def order(swarm: Swarm, given: RollbackOrder = ORDER, but: tuple[str, ...] = ()) -> None:
    for host in swarm.world.live():
        if host.peer.id not in but:
            swarm.world.deliver(host, Ordered(given))


def spoilt(seed: int, after: float = 0.0, settings: Settings = SETTINGS, peers: int = 4) -> Swarm:
    """A swarm that has come so far, and somewhere in the next step."""
    swarm = Swarm(settings, peers, seed)
    swarm.world.disks.keeps = 100
    swarm.until(SPOILT_AT)
    swarm.world.run(swarm.world.now + after)
    swarm.installed.clear()
    swarm.commits.clear()
    return swarm


def ends_at_the_order(swarm: Swarm, steps: int = OVER, founded: int = 1) -> None:
    """All stages come from the snapshots of step 16, and nobody goes on from later weights."""
    world = swarm.world
    world.run(world.now + 60.0, lambda: all(h.view and h.view.lineage.order for h in world.live()))
    swarm.commits.clear()
    swarm.until(steps)
    world.run(world.now + 2.0)
    view = best_view(swarm.world)
    assert view is not None and view.lineage.order == ORDER.number
    assert view.lineage.start is not None and view.lineage.start.step == BACK_AT
    for host in world.live():
        assert host.view is not None and host.view.lineage.order == ORDER.number, host.peer
    lineages = {one.lineage.id for one in world.ledger.views.values() if one.lineage.order and not one.lineage.root}
    assert len(lineages) <= founded


def in_mid_step(seed: int, after: float = 0.0) -> None:
    swarm = spoilt(seed, after)
    order(swarm)
    swarm.until(BACK_AT + 1, 30.0)
    ends_at_the_order(swarm)
    assert {(rung, base.step) for *_, rung, base in swarm.installed} == {(Rung.SNAPSHOT, BACK_AT)}
    view = best_view(swarm.world)
    assert view is not None and min(swarm.world.ledger.commits[view.lineage.id]) >= BACK_AT


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
    """A member was away when the order came, with weights and a disk of later steps."""
    swarm = spoilt(seed, settings=replace(SETTINGS, replicas=2), peers=8)
    world, view = swarm.world, best_view(swarm.world)
    assert view is not None
    away = next(peer for peer in view.members() if peer != view.leader)
    world.pause(world.by_id[away.id])
    order(swarm, but=(away.id,))
    world.at(world.now + 20.0, world.resume, (world.by_id[away.id],))
    ends_at_the_order(swarm)


def halves(swarm: Swarm) -> tuple[set[str], set[tuple[str, str]]]:
    """Half of the holders of each stage, the leader among the others, and the links between the halves."""
    view = best_view(swarm.world)
    assert view is not None and all(len(group) == 2 for group in view.holders)
    far = {next(peer.id for peer in group if peer != view.leader) for group in view.holders}
    near = {host.peer.id for host in swarm.world.live()} - far
    return far, {pair for one in near for other in far for pair in ((one, other), (other, one))}


def split(seed: int) -> None:
    """Half of the swarm was cut off when the order came, and has gone on by itself, farther than the others."""
    swarm = spoilt(seed, settings=replace(SETTINGS, replicas=2), peers=8)
    world = swarm.world
    far, links = halves(swarm)
    order(swarm, but=tuple(far))
    world.network.block(links)
    world.at(world.now + 25.0, world.network.heal, (links,))
    world.run(world.now + 24.0)
    assert {world.by_id[name].participant.order.number for name in far} == {0}
    ends_at_the_order(swarm, founded=2)  # the other half may follow it by itself before they are one


def starts_again(seed: int, later: int = 0, at: int = BACK_AT) -> None:
    """All are switched off after they have gone back; their disks have later steps that are undone as well."""
    swarm = spoilt(seed)
    order(swarm)
    swarm.until(BACK_AT + 3)
    swarm.commits.clear()
    swarm.until(BACK_AT + 4 + later)
    swarm.power_cut()
    for index in range(4):
        swarm.world.at(swarm.world.now + 2.5 + 0.1 * index, _tell, (swarm, f"peer{index}"))
    swarm.until(OVER)
    assert {base.step for *_, base in swarm.installed} == {at}
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


def test_but_from_what_came_after_the_order() -> None:
    starts_again(1, 18, 32)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_half_that_did_not_know_follows_the_other_half(seed: int) -> None:
    split(seed)


def too_old(seed: int) -> None:
    """No disk has anything of the step that is ordered, or of an earlier one."""
    swarm = spoilt(seed)
    view = best_view(swarm.world)
    order(swarm, RollbackOrder(1, 5))
    swarm.world.run(swarm.world.now + 20.0)
    after = best_view(swarm.world)
    assert view is not None and after is not None and after.lineage == view.lineage and not swarm.installed
    told = [note for note in swarm.world.notes if "changes nothing: no disk here has all stages of step 5" in note]
    assert len(told) == 1
    swarm.goes_on()


def test_a_leader_that_takes_no_notice_of_it_keeps_what_it_has() -> None:
    """It is not defended. SECURITY.md says so; the order stands, and whoever leads next follows it."""
    swarm = spoilt(1)
    view = best_view(swarm.world)
    assert view is not None
    with patched((Undoing, "beat", lambda self, s: Outcome())):
        order(swarm)
        swarm.world.run(swarm.world.now + 20.0)
        later = best_view(swarm.world)
        assert later is not None and (later.leader, later.lineage.order) == (view.leader, 0)
        assert swarm.world.ledger.top_commit() > SPOILT_AT + 5
    swarm.world.kill(swarm.world.by_id[view.leader.id], "power", silently=False)
    swarm.world.at(swarm.world.now + 8.0, swarm.world.start, (view.leader.id, 1, True))
    ends_at_the_order(swarm)


def test_a_leader_may_go_further_back_than_it_has_to() -> None:
    """It is not defended, as SECURITY.md says: nobody else looks which snapshots there are, and all follow."""
    swarm = spoilt(1)
    before_order = restart.Restart.before_order

    def older(self: restart.Restart, s: Any) -> Any:
        return before_order(self, s._replace(order=replace(s.order, step=BACK_AT - 1)))

    with patched((restart.Restart, "before_order", older)):
        order(swarm)
        world = swarm.world
        world.run(world.now + 60.0, lambda: all(host.view and host.view.lineage.order for host in world.live()))
        swarm.commits.clear()
        swarm.until(OVER)
    view = best_view(swarm.world)
    assert view is not None and view.lineage.order == ORDER.number
    assert view.lineage.start is not None and view.lineage.start.step == BACK_AT - 8
    assert {host.view.lineage.id for host in world.live() if host.view} == {view.lineage.id}


def test_a_second_order_goes_further_back() -> None:
    swarm = spoilt(2)
    order(swarm)
    swarm.until(BACK_AT + 2)
    order(swarm, RollbackOrder(2, 15))
    swarm.until(OVER)
    view = best_view(swarm.world)
    assert view is not None and view.lineage.order == 2
    assert view.lineage.start is not None and view.lineage.start.step == 8


@pytest.mark.parametrize("seed", SEEDS)
def test_without_a_snapshot_that_is_old_enough_nothing_changes(seed: int) -> None:
    too_old(seed)


def orders_are_not_ranked() -> Any:
    """Of lineages that meet the one with more steps goes on, whatever was ordered."""
    return patched(
        (following.Following, "_by_order", lambda self, s, out, sender, view, shown, hint=False: False),
        (lineage_rank, "wins", lambda s, theirs, step: lineage_rank._farther(s, step) > 0),
        (following, "wins", lambda s, theirs, step: lineage_rank._farther(s, step) > 0),
    )


def any_snapshot_will_do() -> Any:
    """The leader goes back to the newest that there is."""
    return patched((RollbackOrder, "spoils", lambda self, step: False))


def nothing_is_undone() -> Any:
    """After a restart all that disks have counts."""
    return patched((restart, "undone", lambda order, version, rolls: False))


def forgets_that_it_followed() -> Any:
    """The lineage does not say that it has followed the order."""
    return patched((succession, "Lineage", lambda *values: Lineage(*values[:5])))


def nobody_asks() -> Any:
    """What follows an order that is not known is never believed, and nobody asks for the manifest."""
    return patched((World, "ask_order", lambda self, host, peer: None))


@pytest.mark.parametrize(
    ("plant", "schedule"),
    [
        (any_snapshot_will_do, in_mid_step),
        (forgets_that_it_followed, in_mid_step),
        (orders_are_not_ranked, split),
        (nothing_is_undone, starts_again),
        (nobody_asks, split),
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[], Any], schedule: Callable[[int], None]) -> None:
    with plant(), pytest.raises((Violation, AssertionError)):
        for seed in SEEDS:
            schedule(seed)
