"""How a stage gets its weights in the virtual world: donors that have the base, time, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ftnode.protocol.recovery.rungs import REBUILT
from ftnode.protocol.words.effects import DropCopy, Install, Keep, TakeCopy
from ftnode.protocol.words.events import History, Installed, InstallFailed, KeepFailed, Kept, Lent
from ftnode.protocol.words.messages import OTHER_COPY, Donor, Plan
from ftnode.protocol.words.types import LentCopy, Peer, Rung
from tests.sim.checks import Violation
from tests.sim.compute import Weights, initial_history
from tests.sim.host import Host

if TYPE_CHECKING:
    from tests.sim.world import World


def copy_digest(stage: int, copy: Weights) -> str:
    """Of a copy as it travels."""
    return f"{copy.version.commit}/{stage}/{copy.history & 0xFFFFFFFFFFFFFFFF:x}"


class Rebuilding:
    """Installs under way. A newer one of the same stage, a Forget or the loss of compute ends an older one."""

    __slots__ = ("_free_at", "_frozen", "_serial", "_watched", "copy_seconds", "lines", "seconds", "world")

    def __init__(self, world: World) -> None:
        self.world = world
        self.seconds = 0.3
        """Mean time of one transfer and blend."""
        self.copy_seconds: float | None = None
        """Time of the transfer of a copy, instead of anything up to `seconds`."""
        self.lines: dict[str, float] = {}
        """PeerId → bytes a second that its line takes. Stages that are lent over one follow each other."""
        self._free_at: dict[str, float] = {}
        """PeerId → when what its line carries has passed."""
        self._serial = 0
        self._frozen: dict[tuple[Peer, int], tuple[Host, int, Weights]] = {}
        """(learner, stage) to who promised what."""
        self._watched: set[tuple[Peer, int]] = set()

    def install(self, host: Host, effect: Install) -> None:
        stage = effect.plan.stage
        self._serial += 1
        host.installing[stage] = serial = self._serial
        host.shelved.pop(stage, None)
        seconds = self.seconds * (0.5 + self.world.chance.random())
        self.world.at(
            self.world.now + self.world.chance.random() * 0.1,
            self._fetch,
            (host, effect, serial, seconds, self.world.now),
        )
        self._frozen.pop((host.peer, stage), None)

    def _fetch(self, host: Host, effect: Install, serial: int, seconds: float, begun: float) -> None:
        """Ask the donors; wait for one that has not applied the base yet; fetch in the second half of the time."""
        plan = effect.plan
        if not host.alive or host.installing.get(plan.stage) != serial:
            return
        if host.paused:
            self.world.at(self.world.now + 0.5, self._fetch, (host, effect, serial, seconds, begun))
            return
        if plan.rung is Rung.SNAPSHOT:
            saved, asked = self.world.disks.lends(host, effect)
            if saved is None:
                self._install_failed(host, effect, asked, "nobody has that snapshot")
            elif seconds > 0:
                self.world.at(self.world.now + seconds, self._fetch, (host, effect, serial, 0.0, begun))
            else:
                self._finish_install(host, effect)
            return
        if plan.copy is not None:  # one after the other is asked; the last one's word counts
            effect = replace(effect, plan=self._of_next_keeper(host, effect))
            plan = effect.plan
        for donor in plan.donors[:1] if plan.copy is not None else plan.donors:
            if self._has_frozen(host, donor, effect):
                continue
            reason = self._donor_refuses(host, donor.peer, donor.stage, effect)
            if reason == "wait" and self.world.now < begun + self.world.settings.install_seconds:
                self.world.at(self.world.now + 0.1, self._fetch, (host, effect, serial, seconds, begun))
                return
            if reason:
                self._install_failed(host, effect, donor.peer, reason)
                return
        if seconds > 0:
            if plan.rung is Rung.REPLICA:
                donor_host = self.world.by_id[plan.donors[0].peer.id]
                frozen = donor_host.compute.weights[plan.stage]
                self._frozen[host.peer, plan.stage] = donor_host, donor_host.compute_life, frozen
                seconds = self._over_line(donor_host, plan.stage, seconds)
            self.world.at(self.world.now + seconds, self._fetch, (host, effect, serial, 0.0, begun))
        else:
            self._finish_install(host, effect)

    def _of_next_keeper(self, host: Host, effect: Install) -> Plan:
        """The plan without the keepers before the first one that lends at once."""
        plan = effect.plan
        refused = [bool(self._donor_refuses(host, donor.peer, donor.stage, effect)) for donor in plan.donors[:-1]]
        return replace(plan, donors=plan.donors[[*refused, False].index(False) :])

    def _over_line(self, donor: Host, stage: int, seconds: float) -> float:
        """How long the stage takes from this donor, whose line may be known; else `seconds`."""
        rate, now, name = self.lines.get(donor.peer.id, 0.0), self.world.now, donor.peer.id
        if rate <= 0:
            return seconds
        begins = max(now, self._free_at.get(name, 0.0))
        self._free_at[name] = begins + self.world.settings.state_bytes_of(stage) / rate
        return self._free_at[name] - now

    def _has_frozen(self, host: Host, donor: Donor, effect: Install) -> bool:
        """The donor keeps the weights that a replica was promised while it goes on with newer ones."""
        other, life, weights = self._frozen.get((host.peer, effect.plan.stage), (None, 0, None))
        if other is None or weights is None or other.peer != donor.peer or weights.version != effect.base:
            return False
        pair, blocked = (host.peer.id, donor.peer.id), self.world.network.blocked
        return other.alive and other.compute_life == life and pair not in blocked and pair[::-1] not in blocked

    def _donor_refuses(self, host: Host, donor: Peer, stage: int, effect: Install) -> str:
        other = self.world.by_id.get(donor.id)
        pair = (host.peer.id, donor.id)
        if other is None or not other.alive or other.peer != donor:
            return "donor is gone"
        if pair in self.world.network.blocked or pair[::-1] in self.world.network.blocked:
            return "cannot reach the donor"
        weights = other.compute.weights.get(stage)
        if other.paused:
            return "wait"
        if effect.plan.copy is not None:  # not compute's business
            views = host.view, other.view
            same = None not in views and views[0].lineage.id == views[1].lineage.id  # type: ignore[union-attr]
            if not same or stage not in other.copies:
                return "donor has no copy"
            copy = other.copies[stage].version
            return "" if copy.step <= effect.base.step else f"the copy there is of step {copy.step}"
        if other.hung:
            life = (other.peer, other.compute_life)
            if life not in self._watched:  # its node sees that compute does not answer
                self._watched.add(life)
                self.world.at(self.world.now + self.world.settings.task_seconds, self._notice_hang, (other, life[1]))
            return "wait"
        if weights is None:
            return "wait" if stage in other.installing else "donor has no weights"
        if weights.version == effect.base:
            return ""
        return "wait" if weights.version.step < effect.base.step else f"donor is at {weights.version}"

    def _notice_hang(self, host: Host, life: int) -> None:
        if host.alive and host.hung and host.compute_life == life:
            if host.paused:
                self.world.at(self.world.now + 1.0, self._notice_hang, (host, life))
            else:
                self.world.lose_compute(host, "it answers nothing")

    def _install_failed(self, host: Host, effect: Install, donor: Peer | None, reason: str) -> None:
        del host.installing[effect.plan.stage]
        self.world.deliver(host, InstallFailed(effect.plan.stage, effect.base, donor, reason))

    def _finish_install(self, host: Host, effect: Install) -> None:
        if not host.compute_up:
            self._install_failed(host, effect, None, "there is no compute process")
            return
        plan, base, falsely, made_of_lies = effect.plan, effect.base, False, False
        lent: list[int] = []
        serial = host.installing.pop(plan.stage)
        if plan.rung is Rung.INITIAL:
            if base.step:
                raise Violation("I3", f"{host.peer} takes initial weights for {base}")
            history = initial_history(base, plan.stage)
        elif plan.rung is Rung.FIRST:
            if not self.world.settings.continued:
                raise Violation(
                    "I3", f"{host.peer} begins stage {plan.stage} again, and there is no model to begin with"
                )
            history = initial_history(base, plan.stage)
        elif plan.rung is Rung.SNAPSHOT:
            loaded = self.world.disks.load(host, effect)
            if loaded is None:
                self._install_failed(host, effect, None, "the snapshot is gone")
                return
            history = loaded.history
        elif plan.rung is Rung.KEPT:
            kept = host.compute.weights.get(plan.stage)
            if kept is None or kept.version != base:
                self._install_failed(host, effect, None, "the kept weights are gone")
                return
            history = kept.history
        elif plan.copy is not None:
            keeper = plan.donors[0].peer
            copy = self.world.by_id[keeper.id].copies[plan.stage]
            if not plan.takes(copy_digest(plan.stage, copy)):
                self._next_keeper(host, effect, keeper, serial)
                return
            self.world.ledger.check_copy(str(host.peer), plan.stage, copy.version, copy.history, base)
            history = copy.history
        else:
            frozen = self._frozen.pop((host.peer, plan.stage), None)
            if frozen is not None:
                lent = [frozen[0].lends(frozen[2].history)]
                falsely = lent != [frozen[2].history]
            else:
                donors = [(d.stage, self.world.by_id[d.peer.id]) for d in plan.donors]
                had = [donor.compute.weights[at].history for at, donor in donors]
                lent = [donor.lends(true) for (_, donor), true in zip(donors, had)]
                made_of_lies = lent != had
            exact = plan.rung is Rung.REPLICA
            history = lent[0] if exact else hash((plan.rung is not Rung.COPY, *lent))
        host.compute.weights[plan.stage] = Weights(base, history)
        host.compute.lent_falsely.discard(plan.stage)
        if falsely:
            host.compute.lent_falsely.add(plan.stage)
        host.compute.made_of_lies.discard(plan.stage)
        if made_of_lies:
            host.compute.made_of_lies.add(plan.stage)
        of_others = plan.rung in REBUILT and self.world.settings.checks > 0
        host.compute.lent[plan.stage] = (
            {donor.stage: Weights(base, lies) for donor, lies in zip(plan.donors, lent)} if of_others else {}
        )
        for update, reduction in host.shelved.pop(plan.stage, ()):
            host.compute.apply(update, reduction)
            self.world.disks.applied(host, update.stage)
        first = "power" if plan.rung is Rung.SNAPSHOT else "start"
        self.world.ledger.rebuilt.add((plan.stage, base.commit, history))
        self.world.met[self.world.bereaved.causes.pop(plan.stage, first), plan.rung.value] += 1
        if self.world.on_installed is not None:
            self.world.on_installed(host, effect)
        self.world.deliver(host, Installed(plan.stage, base, 1000, 0.1, 0.1, f"{history:x}"))

    def _next_keeper(self, host: Host, effect: Install, keeper: Peer, serial: int) -> None:
        """What this one lent does not count."""
        plan = effect.plan
        host.installing[plan.stage] = serial
        if len(plan.donors) == 1:
            self._install_failed(host, effect, keeper, f"{keeper} has {OTHER_COPY}")
            return
        rest = replace(effect, plan=replace(plan, donors=plan.donors[1:]))
        self._fetch(host, rest, serial, self.seconds, self.world.now)

    # -- copies

    def keep(self, host: Host, effect: Keep) -> None:
        """The donor freezes its weights when it is asked; the copy is whole after a while."""
        self._serial += 1
        host.copies_fetched.pop(effect.donor.stage, None)
        host.copying[effect.donor.stage] = serial = self._serial
        seconds = self.world.chance.uniform(0.01, 0.1)
        self.world.at(self.world.now + seconds, self._freeze, (host, effect, serial, seconds))

    def _freeze(self, host: Host, effect: Keep, serial: int, seconds: float) -> None:
        stage = effect.donor.stage
        donor = self.world.by_id.get(effect.donor.peer.id)
        if not host.alive or host.copying.get(stage) != serial:
            return
        weights = donor.compute.weights.get(stage) if donor is not None and donor.peer == effect.donor.peer else None
        pair = (host.peer.id, effect.donor.peer.id)
        cut = pair in self.world.network.blocked or pair[::-1] in self.world.network.blocked
        if donor is None or not donor.alive or donor.paused or donor.hung or cut or weights is None:
            self._keep_ends(host, effect, KeepFailed(stage, effect.version, "the donor does not answer"))
        elif weights.version == effect.version:
            told = History(donor.participant.chronicle.after(effect.since))
            drawn = self.seconds * self.world.chance.random()
            lent = self.world.now + (drawn if self.copy_seconds is None else self.copy_seconds)
            whole = lent + self.world.chance.random() * self.world.delay_max
            life = donor.compute_life
            self.world.at(lent, self._lent, (host, effect, serial, weights, life))
            self.world.at(whole, self._whole, (host, effect, serial, weights, life, told))
        elif weights.version.step < effect.version.step and seconds < 1.0:
            self.world.at(self.world.now + 0.1, self._freeze, (host, effect, serial, seconds + 0.1))
        else:
            self._keep_ends(host, effect, KeepFailed(stage, effect.version, "the donor is elsewhere"))

    def _lends(self, host: Host, donor: Peer, life: int) -> Host | None:
        """The donor, if what it sends still arrives. `life`: of the compute that has what is lent."""
        other, pair, blocked = self.world.by_id[donor.id], (host.peer.id, donor.id), self.world.network.blocked
        cut = pair in blocked or pair[::-1] in blocked
        there = other.alive and not other.paused and other.peer == donor and other.compute_life == life
        return other if there and not cut else None

    def _lent(self, host: Host, effect: Keep, serial: int, weights: Weights, life: int) -> None:
        """The donor has sent the last of it."""
        stage, donor = effect.donor.stage, self._lends(host, effect.donor.peer, life)
        if donor is not None and host.alive and host.copying.get(stage) == serial:
            lent = LentCopy(stage, host.peer.id, weights.version, copy_digest(stage, weights))
            self.world.deliver(donor, Lent(lent))

    def _whole(
        self, host: Host, effect: Keep, serial: int, weights: Weights, life: int, told: History
    ) -> None:  # fmt: skip
        stage = effect.donor.stage
        if not host.alive or host.copying.get(stage) != serial:
            return
        if self._lends(host, effect.donor.peer, life) is None:
            self._keep_ends(host, effect, KeepFailed(stage, effect.version, "the donor is gone"))
            return
        host.copies_fetched[stage] = weights
        self.world.deliver(host, told)
        self._keep_ends(host, effect, Kept(stage, effect.version, 1000, 0.1))

    def _keep_ends(self, host: Host, effect: Keep, event: Kept | KeepFailed) -> None:
        host.copying.pop(effect.donor.stage, None)
        self.world.deliver(host, event)

    def take_copy(self, host: Host, effect: TakeCopy) -> None:
        host.copies[effect.stage] = host.copies_fetched.pop(effect.stage)

    def drop_copy(self, host: Host, effect: DropCopy) -> None:
        host.copying.pop(effect.stage, None)
        host.copies_fetched.pop(effect.stage, None)
        host.copies.pop(effect.stage, None)
