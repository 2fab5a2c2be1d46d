"""Disks of the virtual world: they outlive their nodes. A save takes time, and one that its node does not live to the
end of has never been."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from ftnode.protocol.events import Snapshots
from ftnode.protocol.messages import Begin
from ftnode.protocol.types import Peer, Rung, Snapshot, Version
from tests.sim.checks import Violation
from tests.sim.compute import Weights

if TYPE_CHECKING:
    from ftnode.protocol.effects import Install
    from tests.sim.host import Host
    from tests.sim.world import World

KEPT_OF_A_STAGE = 3


class Saved(NamedTuple):
    """What lies on a disk: what is told of it, and the weights themselves."""

    snapshot: Snapshot
    history: int


class Disks:
    """By PeerId, in the order of the saves."""

    __slots__ = ("chance", "held", "seconds", "spoils", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.chance = random.Random(f"disks {world.seed}")
        self.held: dict[str, list[Saved]] = {}
        self.seconds = 0.6
        """A save takes at most so long."""
        self.spoils: Callable[[Host, int], bool] = lambda host, stage: False
        """Whose weights of a stage are not what they should be when they are saved."""

    def applied(self, host: Host, stage: int) -> None:
        """A commit is applied; a save begins when it is due."""
        every = self.world.settings.snapshot_every
        weights = host.compute.weights[stage]
        if not every or weights.version.step % every or host.view is None:
            return
        history = weights.history ^ 1 if self.spoils(host, stage) else weights.history
        digest = f"{history & 0xFFFFFFFFFFFFFFFF:x}"
        snapshot = Snapshot(stage, weights.version, digest, host.view.epochs[stage], host.view.lineage.forks)
        seconds = self.seconds * self.chance.random()
        self.world.at(self.world.now + seconds, self._whole, (host, host.compute_life, Saved(snapshot, history)))

    def _whole(self, host: Host, life: int, saved: Saved) -> None:
        if not host.alive or host.compute_life != life:
            return
        disk = self.held.setdefault(host.peer.id, [])
        disk.append(saved)
        older = [one for one in disk if one.snapshot.stage == saved.snapshot.stage][:-KEPT_OF_A_STAGE]
        self.held[host.peer.id] = [one for one in disk if one not in older]
        self.tell(host)

    def tell(self, host: Host) -> None:
        """The node looks at its disk."""
        if self.held.get(host.peer.id):
            self.world.deliver(host, Snapshots(tuple(saved.snapshot for saved in self.held[host.peer.id])))

    def lose(self, peer_id: str) -> None:
        """The disk breaks."""
        self.held.pop(peer_id, None)

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


def check_restart(world: World, begin: Begin) -> None:
    """A Begin that fills every stage from disks: nobody's newer weights are lost to it, and its epochs are new."""
    if not any(plan.rung is Rung.SNAPSHOT for plan in begin.installs):
        return
    view = world.ledger.views[begin.lineage, begin.view]
    if len(begin.installs) < sum(map(len, view.holders)) or world.ledger.commits.get(begin.lineage):
        return
    for plan in begin.installs:
        host = world.by_id[plan.peer.id]
        weights = host.compute.weights.get(plan.stage) if host.peer == plan.peer and host.alive else None
        if weights is not None and weights.version.step > begin.base.step:
            raise Violation("I3", f"{plan.peer} has {weights}, and the swarm starts again from {begin.base}")
    past = [saved.snapshot.epoch for plan in begin.installs for saved in world.disks.held.get(plan.peer.id, ())]
    if past and min(view.epochs) <= max(past):
        raise Violation("I2", f"epochs {view.epochs} after a restart; {max(past)} has been there before")


def startable(world: World) -> Version | None:
    """A step that the disks of the living make possible within rollback_max, as an onlooker sees it."""
    settings = world.settings
    disks = [saved.snapshot for host in world.live() for saved in world.disks.held.get(host.peer.id, ())]
    newest = max((snapshot.version.step for snapshot in disks), default=0)
    reach = settings.rollback_max or newest
    for version in {snapshot.version for snapshot in disks}:
        stages = {snapshot.stage for snapshot in disks if snapshot.version == version}
        if 0 in stages and len(stages) > 1 and newest - version.step <= reach:
            return version
    return None
