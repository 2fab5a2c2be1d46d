"""Disks of the virtual world: they outlive their nodes. A save takes time, and one that its node does not live to the
end of has never been."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from ftnode.protocol.leader.convictions import newest_of
from ftnode.protocol.recovery.rolls import with_roll
from ftnode.protocol.words.events import OrderKept, Remembered, Rolls, Snapshots
from ftnode.protocol.words.messages import Convicted, MembersOrder, Roll
from ftnode.protocol.words.records import EPOCH_MAX
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Snapshot, Version
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation, hopeless
from tests.sim.compute import Weights

if TYPE_CHECKING:
    from ftnode.protocol.words.effects import Install, KeepConvicted
    from tests.sim.host import Host
    from tests.sim.world import World

KEPT_OF_A_STAGE = 3


class Saved(NamedTuple):
    """What lies on a disk: what is told of it, and the weights themselves."""

    snapshot: Snapshot
    history: int


def lies(settings: Settings) -> tuple[Snapshot, ...]:
    """A whole step that nobody ever committed, from a history with many views."""
    version = Version(settings.steps - 1, "a lie", Attempt(2**40, 1))
    return tuple(Snapshot(stage, version, "1", EPOCH_MAX - 1) for stage in range(settings.stage_count))


def nothing(host: Host, stage: int) -> bool:
    """Is spoilt where disks are as they should be."""
    return False


class Disks:
    """By PeerId, in the order of the saves."""

    __slots__ = ("chance", "convicted", "held", "keeps", "liars", "orders", "rolls", "seconds", "spoils", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(f"disks {world.seed}")
        self.held: dict[str, list[Saved]] = {}
        self.rolls: dict[str, tuple[Roll, ...]] = {}
        self.convicted: dict[str, tuple[Convicted, ...]] = {}
        self.orders: dict[str, MembersOrder] = {}
        self.keeps = KEPT_OF_A_STAGE
        self.seconds = 0.6
        """A save takes at most so long."""
        self.liars: set[str] = set()
        """PeerIds that tell of a whole step that never was, and of other states than others have."""
        self.spoils: Callable[[Host, int], bool] = nothing
        """Whose weights of a stage are not what they should be when they are saved."""

    def applied(self, host: Host, stage: int) -> None:
        """A commit is applied; a save begins when it is due."""
        every = self.world.settings.snapshot_every
        weights = host.compute.weights[stage]
        if not every or weights.version.step % every or host.view is None:
            return
        history = weights.history ^ 1 if self.spoils(host, stage) else weights.history
        digest = f"{history & 0xFFFFFFFFFFFFFFFF:x}"
        snapshot = Snapshot(stage, weights.version, digest, host.view.epochs[stage])
        seconds = self.seconds * self.chance.random()
        self.world.at(self.world.now + seconds, self._whole, (host, host.compute_life, Saved(snapshot, history)))

    def save(self, host: Host, stages: Iterable[int]) -> None:
        """A node that stops or stands still writes what it holds, whatever step it is of."""
        view = host.participant.view
        for stage in stages:
            weights = host.compute.weights[stage]
            epoch = 0 if view is None else view.epochs[stage]
            snapshot = Snapshot(stage, weights.version, f"{weights.history & 0xFFFFFFFFFFFFFFFF:x}", epoch)
            self._whole(host, host.compute_life, Saved(snapshot, weights.history))

    def _whole(self, host: Host, life: int, saved: Saved) -> None:
        if not host.alive or host.compute_life != life:
            return
        disk = self.held.setdefault(host.peer.id, [])
        disk.append(saved)
        older = [one for one in disk if one.snapshot.stage == saved.snapshot.stage][: -self.keeps]
        self.held[host.peer.id] = [one for one in disk if one not in older]
        self.tell(host)

    def keep_roll(self, host: Host, roll: Roll) -> None:
        """A moment later it is on the disk."""
        sealed = self.world.seals.sealed_roll(host.peer, roll)
        self.world.at(self.world.now + 0.01, self._roll_kept, (host, sealed))

    def _roll_kept(self, host: Host, roll: Roll) -> None:
        if host.alive:
            self.rolls[host.peer.id] = with_roll(self.rolls.get(host.peer.id, ()), roll)
            self.world.deliver(host, Rolls(self.rolls[host.peer.id]))

    def keep_convicted(self, host: Host, kept: KeepConvicted) -> None:
        """A moment later it is on the disk."""
        self.world.at(self.world.now + 0.01, self._convicted_kept, (host, kept.case))

    def _convicted_kept(self, host: Host, case: Convicted) -> None:
        if host.alive:
            self.convicted[host.peer.id] = newest_of((*self.convicted.get(host.peer.id, ()), case))

    def keep_order(self, host: Host, order: MembersOrder | None) -> None:
        """At once."""
        if order is None:
            self.orders.pop(host.peer.id, None)
            return
        self.orders[host.peer.id] = self.world.seals.sealed_order(host.peer, order)

    def tells(self, peer_id: str) -> bool:
        """There is something on its disk, or it says so."""
        return any(peer_id in those for those in (self.held, self.liars, self.rolls, self.convicted, self.orders))

    def tell(self, host: Host) -> None:
        """The node looks at its disk."""
        order = self.orders.get(host.peer.id)
        if order is not None and host.participant.undoing_votes.order is None:
            self.world.deliver(host, OrderKept(order))
        if cases := self.convicted.get(host.peer.id, ()):
            self.world.deliver(host, Remembered(cases))
        if (rolls := self.rolls.get(host.peer.id)) and rolls != host.participant.holder.rolls.kept:
            self.world.deliver(host, Rolls(rolls))
        told = tuple(saved.snapshot for saved in self.held.get(host.peer.id, ()))
        if host.peer.id in self.liars:
            told = (*lies(self.world.settings), *(replace(snapshot, digest="0") for snapshot in told))
        if told:
            self.world.deliver(host, Snapshots(told))

    def lose(self, peer_id: str) -> None:
        """The disk breaks."""
        self.held.pop(peer_id, None)
        self.rolls.pop(peer_id, None)
        self.convicted.pop(peer_id, None)
        self.orders.pop(peer_id, None)

    def lends(self, host: Host, effect: Install) -> tuple[Saved | None, Peer | None]:
        """What the plan's first donor that can be asked has of it, and the last one asked in vain."""
        plan, world, asked = effect.plan, self.world, None
        for donor in plan.donors:
            other, asked = world.by_id.get(donor.peer.id), donor.peer
            pair = (host.peer.id, donor.peer.id)
            cut = pair in world.network.blocked or pair[::-1] in world.network.blocked
            if other is None or other.peer != donor.peer or not other.alive or other.paused or cut:
                continue
            disk = self.held.get(donor.peer.id, ())
            fits = [one for one in disk if (one.snapshot.stage, one.snapshot.digest) == (plan.stage, plan.digest)]
            if fits:
                return next((one for one in fits if one.snapshot.version == effect.base), fits[-1]), asked
        return None, asked

    def load(self, host: Host, effect: Install) -> Weights | None:
        """What a stage is filled with; I4: the base itself, as whoever committed it had it."""
        saved, _ = self.lends(host, effect)
        if saved is None:
            return None
        if saved.snapshot.version != effect.base:
            raise Violation("I4", f"{host.peer} fills a stage of {effect.base} from a snapshot of {saved.snapshot}")
        self.world.ledger.check_copy(
            str(host.peer), effect.plan.stage, saved.snapshot.version, saved.history, effect.base
        )
        return Weights(effect.base, saved.history)


def check_restart(world: World, view: View) -> None:
    """The first view of a lineage from disks, before anybody has acted on it: what is in the memory of those whom the
    founder heard does not suffice, and its epochs are new."""
    start = view.lineage.start
    if start is None or not view.lineage.from_disks or (view.lineage.id, view.number - 1) in world.ledger.views:
        return
    parent = next((one for one in world.ledger.views.values() if one.digest() == view.previous), None)
    if parent is None:  # its founder chose a view and gave it up at once; everybody in it is in this one
        return
    hosts = [host for host in world.live() if host.peer in parent.members() and not host.paused]
    hosts = [host for host in hosts if host.peer.id not in world.lying]
    commits = world.ledger.commits.get(parent.lineage.id, {})
    newest = commits[max(commits)] if commits else None
    if view.lineage.order > parent.lineage.order:
        return  # the author has ordered it
    if newest is not None and newest.step > 0 and parent.lineage.start != newest:
        held = {stage for host in hosts for stage, weights in host.compute.weights.items() if weights.version == newest}
        copied = {stage for host in hosts for stage in host.copies}
        if not hopeless(set(range(world.settings.stage_count)) - held - copied, world.settings.stages):
            raise Violation("I3", f"{newest} can be made of stages {held}, and the swarm starts again from {start}")
    known = [saved.snapshot for host in hosts for saved in world.disks.held.get(host.peer.id, ())]
    past = [snapshot.epoch for snapshot in known if snapshot.version == start]
    if past and min(view.epochs) <= max(past) and not world.disks.liars:  # who move them by JUMP_MAX at a time
        raise Violation("I2", f"epochs {view.epochs} after a restart; {max(past)} has been there before")


def startable(world: World, highest: int = 0) -> Version | None:
    """A step that the disks of the living make possible within rollback_max of the highest one known. Liars do not lend
    what they have."""
    settings, honest = world.settings, [host.peer.id for host in world.live() if host.peer.id not in world.disks.liars]
    disks = [saved.snapshot for name in honest for saved in world.disks.held.get(name, ())]
    newest = max([highest, *(snapshot.version.step for snapshot in disks)])
    reach = settings.rollback_max or newest
    for version in {snapshot.version for snapshot in disks}:
        stages = {snapshot.stage for snapshot in disks if snapshot.version == version}
        if 0 in stages and len(stages) > 1 and newest - version.step <= reach:
            return version
    return None
