"""Copies that peers outside the view tell of: who does not lend them is not believed again at each heartbeat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from ftnode.protocol.words.events import Received
from ftnode.protocol.words.messages import Heartbeat
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Rung, Version
from ftnode.protocol.words.view import View
from tests.sim.directory import DirectoryService
from tests.sim.host import Host
from tests.sim.test_restart import SETTINGS, Swarm
from tests.sim.world import World

LONG = replace(SETTINGS, steps=2000)
STRANGER = Peer("stranger", 7)
CYCLE = 3 * (SETTINGS.lease_seconds + SETTINGS.search_seconds)
"""Somebody is offered the stage, asks in vain for a lease, and gives it up."""


class WithStranger(DirectoryService):
    """Tells of a peer that is in no view and says that it keeps a copy of the head."""

    __slots__ = ("claims",)

    def __init__(self, world: World, claims: Callable[[View], Version]) -> None:
        super().__init__(world, 0.0)
        self.claims, self.shelves = claims, world.directory.shelves

    def _visible(self, reader: Host) -> tuple[tuple[Presence, ...], tuple[View, ...]]:
        presences, views = super()._visible(reader)
        core = next((host.participant for host in self.world.live() if host.participant.leader is not None), None)
        if core is None or core.view is None:
            return presences, views
        copies, lineage = ((0, self.claims(core.view)),), core.view.lineage.id
        stranger = Presence(STRANGER, ("/sim/stranger",), lineage, 0, 0, False, (), (), copies, 0.0, ())
        return (*presences, stranger), views


def stranger_comes(world: World, claims: Callable[[View], Version]) -> None:
    """From now on, with a heartbeat each second to whoever leads."""
    world.directory = WithStranger(world, claims)

    def beat() -> None:
        for host in world.live():
            view = host.participant.view
            if host.participant.leader is not None and view is not None:
                heartbeat = Heartbeat(view.lineage.id, view.number, False, 0, (), 0.0, False, (), (), "", ())
                world.deliver(host, Received(STRANGER, heartbeat, None))
        world.at(world.now + 1.0, beat, ())

    world.at(world.now, beat, ())


class PowerCut:
    """All are killed but the leader to be, who holds stage 2, and the keeper of the head's copy, whose compute dies."""

    def __init__(self, settings: Settings = LONG, outage: float | None = None) -> None:
        """`outage`: for how long nobody but that leader reaches the keeper."""
        self.swarm = swarm = Swarm(settings, peers=0)
        world = self.world = swarm.world
        for index in range(4):
            world.start(f"peer{index}", 1, index in (0, 1))
        swarm.until(8)
        self.head, self.survivor = swarm.holder_of(0), world.by_id[swarm.holder_of(2)]
        self.keeper = next(host for host in world.live() if 0 in host.copies and not host.head)
        killed = [host for host in world.live() if host not in (self.keeper, self.survivor)]
        others = [host.peer.id for host in killed] + ["new0", "new1"]
        if outage is not None:
            pairs = {pair for name in others for pair in ((name, self.keeper.peer.id), (self.keeper.peer.id, name))}
            world.network.block(pairs)
            world.at(world.now + outage, world.network.heal, (pairs,))
        for index, host in enumerate(killed):
            world.kill(host, "power", silently=False)
            world.at(world.now + 0.5 + 0.4 * index, world.start, (host.peer.id, 1, host.head))
        for index in range(2):
            world.at(world.now + 3.0 + index, world.start, (f"new{index}", 1, True))
        world.lose_compute(self.keeper, "as a test")
        swarm.installed.clear()


def test_a_keeper_that_only_the_leader_hears_does_not_keep_the_others_from_their_disks() -> None:
    cut = PowerCut(outage=1000.0)
    began = cut.world.now
    cut.swarm.until(12, 10 * CYCLE + SETTINGS.restart_wait_seconds)
    assert (0, Rung.SNAPSHOT, 6) in {(stage, rung, base.step) for _, stage, rung, base in cut.swarm.installed}
    views = [view for view in cut.world.ledger.views.values() if not view.lineage.from_disks]
    assert max(view.number for view in views) < 20 and cut.world.now - began < 100.0


@pytest.mark.parametrize("outage", [20.0, 60.0, 200.0])
def test_a_keeper_whose_line_was_down_is_asked_again(outage: float) -> None:
    """Nobody has a disk, so that nothing goes without its copy."""
    cut = PowerCut(replace(LONG, snapshot_every=0), outage)
    began = cut.world.now
    cut.swarm.until(12, 3 * outage + 10 * CYCLE + 2 * SETTINGS.restart_wait_seconds)
    assert Rung.HEAD in {rung for _, stage, rung, _ in cut.swarm.installed if stage == 0}
    assert cut.world.now - began > outage


def survived_by_stage_two() -> tuple[Swarm, Host]:
    """A power cut, of which whoever holds stage 2 lives on. The others come back, who held the head without room for
    it, but with its disk."""
    swarm = Swarm(LONG)
    swarm.until(8)
    world, survivor, head = swarm.world, swarm.world.by_id[swarm.holder_of(2)], swarm.holder_of(0)
    swarm.installed.clear()
    for index, host in enumerate([host for host in world.live() if host is not survivor]):
        world.kill(host, "power", silently=False)
        world.at(world.now + 0.5 + 0.4 * index, world.start, (host.peer.id, int(host.peer.id != head), True))
    world.at(world.now + 2.0, world.start, ("new", 1, True))
    return swarm, survivor


def test_a_stranger_that_says_that_it_keeps_the_head_costs_little_time() -> None:
    swarm, _ = survived_by_stage_two()
    stranger_comes(swarm.world, lambda view: Version(1, "x", Attempt(0, 1)))
    swarm.until(12, 3 * CYCLE + 2 * SETTINGS.restart_wait_seconds + 40.0)
    assert {rung for _, stage, rung, _ in swarm.installed if stage == 0} == {Rung.SNAPSHOT}


def test_nor_does_one_that_tells_of_another_version_each_time() -> None:
    """Disks are waited for meanwhile, and no longer than without the stranger."""
    swarm, _ = survived_by_stage_two()
    stranger_comes(swarm.world, lambda view: Version(1, f"of view {view.number}", Attempt(0, 1)))
    world, notes = swarm.world, swarm.world.notes

    def told(text: str) -> bool:
        return any(text in note for note in notes)

    world.run(world.now + 100.0, lambda: told("waiting: halted"))
    halted = world.now
    world.run(world.now + 100.0, lambda: told(" restart: "))
    assert world.now - halted < SETTINGS.restart_wait_seconds + CYCLE
    swarm.until(12, 40.0)
    assert {rung for _, stage, rung, _ in swarm.installed if stage == 0} == {Rung.SNAPSHOT}


@pytest.mark.parametrize("another", [False, True])
def test_nor_does_a_member_that_does_not_lend_what_it_tells_of(another: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    swarm, survivor = survived_by_stage_two()
    core = survivor.participant

    def versions() -> tuple[tuple[int, Version], ...]:
        assert core.view is not None
        return ((0, Version(7, f"of view {core.view.number}" if another else "x", Attempt(0, 7))),)

    monkeypatch.setattr(core.holder.copies, "versions", versions)
    swarm.until(12, 5 * CYCLE + 2 * SETTINGS.restart_wait_seconds + 40.0)
    assert {rung for _, stage, rung, _ in swarm.installed if stage == 0} == {Rung.SNAPSHOT}


def test_a_newer_copy_that_nobody_lends_does_not_oust_the_older_one_of_an_honest_keeper() -> None:
    cut = PowerCut(replace(LONG, snapshot_every=0))
    stranger_comes(cut.world, lambda view: Version(8, "x", Attempt(0, 8)))
    cut.swarm.until(12, 3 * CYCLE + 60.0)
    assert {rung for _, stage, rung, _ in cut.swarm.installed if stage == 0} == {Rung.HEAD}
