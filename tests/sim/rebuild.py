"""How a stage gets its weights in the virtual world: donors that have the base, time, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.effects import Install
from ftnode.protocol.events import Installed, InstallFailed
from ftnode.protocol.types import Peer, Rung
from tests.sim.checks import Violation
from tests.sim.compute import Weights, initial_history
from tests.sim.host import Host

if TYPE_CHECKING:
    from tests.sim.world import World


class Rebuilding:
    """Installs under way. A newer one of the same stage, a Forget or the loss of compute ends an older one."""

    __slots__ = ("_serial", "seconds", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.seconds = 0.3
        """Mean time of one transfer and blend."""
        self._serial = 0

    def install(self, host: Host, effect: Install) -> None:
        stage = effect.plan.stage
        self._serial += 1
        host.installing[stage] = serial = self._serial
        seconds = self.seconds * (0.5 + self.world.chance.random())
        self.world.at(
            self.world.now + self.world.chance.random() * 0.1,
            self._fetch,
            (host, effect, serial, seconds, self.world.now),
        )

    def _fetch(self, host: Host, effect: Install, serial: int, seconds: float, begun: float) -> None:
        """Ask the donors; wait for one that has not applied the base yet; fetch in the second half of the time."""
        plan = effect.plan
        if not host.alive or host.installing.get(plan.stage) != serial:
            return
        if host.paused:
            self.world.at(self.world.now + 0.5, self._fetch, (host, effect, serial, seconds, begun))
            return
        for donor in plan.donors:
            reason = self._donor_refuses(host, donor.peer, donor.stage, effect)
            if reason == "wait" and self.world.now < begun + self.world.settings.install_seconds:
                self.world.at(self.world.now + 0.1, self._fetch, (host, effect, serial, seconds, begun))
                return
            if reason:
                self._install_failed(host, effect, donor.peer, reason)
                return
        if seconds > 0:
            self.world.at(self.world.now + seconds, self._fetch, (host, effect, serial, 0.0, begun))
        else:
            self._finish_install(host, effect)

    def _donor_refuses(self, host: Host, donor: Peer, stage: int, effect: Install) -> str:
        other = self.world.by_id.get(donor.id)
        pair = (host.peer.id, donor.id)
        if other is None or not other.alive or other.peer != donor:
            return "donor is gone"
        if pair in self.world.network.blocked or pair[::-1] in self.world.network.blocked:
            return "cannot reach the donor"
        weights = other.compute.weights.get(stage)
        if other.paused or other.hung:
            return "wait"
        if weights is None:
            return "wait" if stage in other.installing else "donor has no weights"
        if weights.version == effect.base:
            return ""
        return "wait" if weights.version.step < effect.base.step else f"donor is at {weights.version}"

    def _install_failed(self, host: Host, effect: Install, donor: Peer | None, reason: str) -> None:
        del host.installing[effect.plan.stage]
        self.world.deliver(host, InstallFailed(effect.plan.stage, effect.base, donor, reason))

    def _finish_install(self, host: Host, effect: Install) -> None:
        if not host.compute_up:
            self._install_failed(host, effect, None, "there is no compute process")
            return
        plan, base = effect.plan, effect.base
        del host.installing[plan.stage]
        if plan.rung is Rung.INITIAL:
            if base.step:
                raise Violation("I3", f"{host.peer} takes initial weights for {base}")
            history = initial_history(base, plan.stage)
        elif plan.rung is Rung.KEPT:
            kept = host.compute.weights.get(plan.stage)
            if kept is None or kept.version != base:
                self._install_failed(host, effect, None, "the kept weights are gone")
                return
            history = kept.history
        else:
            lent = [self.world.by_id[d.peer.id].compute.weights[d.stage].history for d in plan.donors]
            exact = plan.rung in (Rung.REPLICA, Rung.HANDOVER)
            history = lent[0] if exact else hash((plan.rung is Rung.BLEND, *lent))
        host.compute.weights[plan.stage] = Weights(base, history)
        self.world.met[self.world.causes.pop(plan.stage, "start"), plan.rung.value] += 1
        if self.world.on_installed is not None:
            self.world.on_installed(host, effect)
        self.world.deliver(host, Installed(plan.stage, base, 1000, 0.1, 0.1, f"{history:x}"))
