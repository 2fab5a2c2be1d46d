"""Weights on their way to this peer: as the leader's plan says, or a learner's from the stage's holders (rules 19, 26).

A learner's step does not wait for it. Gradients that the group reduces while the state is under way are applied on
top of it when it is there, in order; what they make of it then is known before it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ftnode.protocol.effects import Forget, Install
from ftnode.protocol.events import Installed, InstallFailed
from ftnode.protocol.messages import Begin, Donor, Plan
from ftnode.protocol.types import Rung, Version

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant

BACKLOG_MAX = 12
"""Steps that may pass while a learner fetches; compute keeps a gradient for each (I6). A state is three gradients long,
so that whoever needs more would spend over 80 % of its line, or of its time, on the sums of a replica."""


@dataclass(slots=True)
class Pending:
    """`base`: what is fetched. `becomes`: what it will be with the gradients that wait for it. `failing_since`: when a
    donor first did not give it."""

    plan: Plan
    base: Version
    since: float
    becomes: Version
    failing_since: float | None = None
    retry_at: float | None = None


class Installs:
    """At most one per stage."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self._pending: dict[int, Pending] = {}
        self._epochs: dict[int, int] = {}
        """Stage that we learnt → the epoch of its holders then."""
        self.fetched: dict[int, int] = {}
        """Stage → bytes that its weights took over the wire when they were installed here."""

    def __contains__(self, stage: int) -> bool:
        return stage in self._pending

    def lost(self) -> None:
        """Compute is gone, and all with it."""
        self._pending.clear()

    def keep_only(self, stages: Collection[int]) -> None:
        """Break the others off: nobody waits for them any more."""
        for stage in sorted(self._pending.keys() - set(stages)):
            self.drop(stage)

    def drop(self, stage: int) -> None:
        """Break it off: what has come of it, and the past that comes with it, may be of another lineage."""
        if self._pending.pop(stage, None) is not None:
            self.core.holder.forget(stage)

    def start(self, plan: Plan, base: Version) -> None:
        """Unless it is under way."""
        core, pending = self.core, self._pending.get(plan.stage)
        if pending is not None and (pending.plan, pending.base) == (plan, base):
            return
        self._pending[plan.stage] = Pending(plan, base, core.now, base)
        donors = ", ".join(f"{donor.peer} (stage {donor.stage})" for donor in plan.donors) or "nobody"
        core.note("rebuild", f"stage {plan.stage} by {plan.rung} from {donors}: {plan.reason}", stages=str(plan.stage),
                  rung=plan.rung.value)  # fmt: skip
        core.emit(Install(plan, base))

    def learn(self, stage: int, begin: Begin) -> None:
        """Fetch the state of the Begin's base from a holder of the stage, who goes on meanwhile."""
        core = self.core
        assert core.view is not None
        group = core.view.holders[stage]
        donor = group[begin.step % len(group)]
        donors = (Donor(stage, donor, core.contacts.get(donor, ())),)
        self._epochs[stage] = core.view.epochs[stage]
        rung = Rung.REPLICA if begin.base.step else Rung.INITIAL
        core.emit(Forget(stage))
        self.start(Plan(stage, core.me, rung, donors, 1.0, "learns it while the others go on", None), begin.base)

    def outdated(self, stage: int, begin: Begin, goes_on: bool) -> bool:
        """Has the stage been rebuilt since we learnt it? Then it has other weights under the same name. An attempt that
        began without us may have begun with a rebuild."""
        assert self.core.view is not None
        rebuilt = any(plan.stage == stage for plan in begin.installs)
        unseen = not goes_on and begin.attempt.view != begin.view
        return rebuilt or unseen or self._epochs.get(stage) != self.core.view.epochs[stage]

    def becomes(self, stage: int) -> Version | None:
        """What the stage will be when its weights are here."""
        pending = self._pending.get(stage)
        return None if pending is None else pending.becomes

    def carries_on(self, stage: int, base: Version) -> bool:
        """A learner's state under way, which the gradient of `base` can be applied to: it is from now on."""
        pending = self._pending.get(stage)
        if pending is None or pending.becomes.step != base.step - 1 or base.step - pending.base.step > BACKLOG_MAX:
            return False
        pending.becomes = base
        return True

    def on_installed(self, event: Installed) -> Version | None:
        """What the stage now is; None when nobody waits for it any more."""
        pending = self._pending.get(event.stage)
        if pending is None or pending.base != event.base:
            return None
        del self._pending[event.stage]
        self.fetched[event.stage] = event.bytes_fetched
        text = f"stage {event.stage} has its weights of step {event.base.step} by {pending.plan.rung}"
        self.core.note("rebuilt", text, stages=str(event.stage), rung=pending.plan.rung.value)
        return pending.becomes

    def on_failed(self, event: InstallFailed) -> bool:
        """Ask again after a while; a member that is gone is the leader's to notice, and brings a new plan. But nobody
        notices a copy that its keeper has not any more, or a keeper that is no member and gone: False, given up after a
        lease. A learner's next Begin is better than asking again."""
        core, pending = self.core, self._pending.get(event.stage)
        if pending is None or pending.base != event.base:
            return True
        if pending.failing_since is None:
            pending.failing_since = core.now
        settings, outside = core.settings, event.donor is not None and event.donor not in core.members
        unnoticed = core.now - pending.failing_since > settings.lease_seconds
        hopeless = unnoticed and (outside or pending.plan.copy is not None)
        if event.stage not in core.mine:
            del self._pending[event.stage]
            core.note("rebuild", f"stage {event.stage} is not learnt yet: {event.reason}", stages=str(event.stage))
        elif hopeless or core.now - pending.since > settings.install_seconds:
            del self._pending[event.stage]  # the same plan may come again, and is then begun again
            return False
        else:
            core.note("rebuild", f"stage {event.stage} again: {event.reason}", stages=str(event.stage))
            pending.retry_at = core.now + core.settings.resend_seconds
        return True

    def beat(self) -> None:
        """Ask again where it is time to; what is learnt for too long is begun anew, if the next Begin says so."""
        limit = self.core.now - self.core.settings.install_seconds
        for stage in [stage for stage, item in self._pending.items() if item.since < limit]:
            if stage not in self.core.mine:
                self.drop(stage)
        for pending in self._pending.values():
            if pending.retry_at is not None and self.core.now >= pending.retry_at:
                pending.retry_at = None
                self.core.emit(Install(pending.plan, pending.base))

    def hung(self) -> int | None:
        """A stage of ours whose weights have been under way for too long, while we were not suspended."""
        limit, grace = self.core.now - self.core.settings.install_seconds, self.core.liveness.grace
        late = (stage for stage, item in self._pending.items() if max(item.since, grace) < limit)
        return next((stage for stage in late if stage in self.core.mine), None)
