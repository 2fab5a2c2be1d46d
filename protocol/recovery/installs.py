"""Weights on their way to this peer: as the leader's plan says, or a learner's from the stage's holders (rules 19, 26).

A learner's step does not wait for it. Gradients that the group reduces while the state is under way are applied on
top of it when it is there, in order; what they make of it then is known before it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.effects import Forget, Install
from ftnode.protocol.words.events import Installed, InstallFailed
from ftnode.protocol.words.messages import Begin, Donor, Plan
from ftnode.protocol.words.types import Peer, Rung, Version, spoken_stage

BACKLOG_MAX = 12
"""Steps that may pass while a learner fetches; compute keeps a gradient for each (I6), and the driver a commit. A state
is three gradients long, so that whoever needs more would spend over 80 % of its line, or of its time, on the sums of a
replica."""


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
    """At most one per stage. When one is broken off, the holder forgets the weights that have come of it."""

    def __init__(self) -> None:
        self._pending: dict[int, Pending] = {}
        self._epochs: dict[int, int] = {}
        """Stage that we learnt → the epoch of its holders then."""
        self.fetched: dict[int, int] = {}
        """Stage → bytes that its weights took over the wire when they were installed here."""

    def __contains__(self, stage: int) -> bool:
        return stage in self._pending

    @property
    def stages(self) -> Collection[int]:
        """Those whose weights are under way."""
        return self._pending.keys()

    def lost(self) -> None:
        """Compute is gone, and all with it."""
        self._pending.clear()

    def keep_only(self, stages: Collection[int]) -> list[int]:
        """Break the others off, and say which: nobody waits for them any more."""
        return [stage for stage in sorted(self._pending.keys() - set(stages)) if self.drop(stage)]

    def drop(self, stage: int) -> bool:
        """Break it off if it is under way: what has come of it, and the past with it, may be of another lineage."""
        return self._pending.pop(stage, None) is not None

    def start(self, s: Situation, plan: Plan, base: Version) -> Outcome:
        """Unless it is under way."""
        out, pending = Outcome(), self._pending.get(plan.stage)
        if pending is not None and (pending.plan, pending.base) == (plan, base):
            return out
        self._pending[plan.stage] = Pending(plan, base, s.now, base)
        donors = ", ".join(f"{donor.peer}'s {spoken_stage(donor.stage).removeprefix('the ')}" for donor in plan.donors)
        source = _source(plan, s) + (f" ({donors})" if donors else "")
        text = f"{spoken_stage(plan.stage)} starts from {source}: {plan.reason}"
        out.note("rebuild", text, stages=str(plan.stage), rung=plan.rung.value)
        out.append(Install(plan, base))
        return out

    def learn(self, s: Situation, stage: int, begin: Begin, believed: Sequence[Peer] = ()) -> Outcome:
        """Fetch the state of the Begin's base from a holder of the stage, who goes on meanwhile. `believed`: the only
        ones to fetch from, if any."""
        assert s.view is not None
        group = believed or s.view.holders[stage]
        donor = group[begin.step % len(group)]
        donors = (Donor(stage, donor, s.contacts.get(donor, ())),)
        self._epochs[stage] = s.view.epochs[stage]
        rung = Rung.REPLICA if begin.base.step else Rung.INITIAL
        plan = Plan(stage, s.me, rung, donors, 1.0, "learns it while the others go on", None)
        return Outcome([Forget(stage)]).extended(self.start(s, plan, begin.base))

    def outdated(self, s: Situation, stage: int, begin: Begin, goes_on: bool) -> bool:
        """Has the stage been rebuilt since we learnt it? Then it has other weights under the same name. An attempt that
        began without us may have begun with a rebuild."""
        assert s.view is not None
        rebuilt = any(plan.stage == stage for plan in begin.installs)
        unseen = not goes_on and begin.attempt.view != begin.view
        return rebuilt or unseen or self._epochs.get(stage) != s.view.epochs[stage]

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

    def plan_of(self, event: Installed) -> Plan | None:
        """By which the weights are here that we wait for."""
        pending = self._pending.get(event.stage)
        return pending.plan if pending is not None and pending.base == event.base else None

    def on_installed(self, s: Situation, event: Installed) -> tuple[Version | None, Outcome]:
        """What the stage now is; None when nobody waits for it any more."""
        out, pending = Outcome(), self._pending.get(event.stage)
        if pending is None or pending.base != event.base:
            return None, out
        del self._pending[event.stage]
        self.fetched[event.stage] = event.bytes_fetched
        text = f"{spoken_stage(event.stage)} is here as of step {event.base.step}, from {_source(pending.plan, s)}"
        out.note("rebuilt", text, stages=str(event.stage), rung=pending.plan.rung.value)
        return pending.becomes, out

    def on_failed(self, s: Situation, event: InstallFailed) -> tuple[bool, Outcome]:
        """Ask again after a while; a member that is gone is the leader's to notice, and brings a new plan. But nobody
        notices a copy that its keeper has not any more, or a keeper that is no member and gone: False, given up after a
        lease. A learner's next Begin is better than asking again."""
        out, pending = Outcome(), self._pending.get(event.stage)
        if pending is None or pending.base != event.base:
            return True, out
        if pending.failing_since is None:
            pending.failing_since = s.now
        settings, outside = s.settings, event.donor is not None and event.donor not in s.members
        unnoticed = s.now - pending.failing_since > settings.lease_seconds
        hopeless = unnoticed and (outside or pending.plan.copy is not None)
        if event.stage not in s.mine:
            del self._pending[event.stage]
            text = f"{spoken_stage(event.stage)} is not learnt yet: {event.reason}"
            out.note("rebuild", text, stages=str(event.stage))
        elif hopeless or s.now - pending.since > settings.install_seconds:
            del self._pending[event.stage]  # the same plan may come again, and is then begun again
            return False, out
        else:
            out.note("rebuild", f"{spoken_stage(event.stage)} once more: {event.reason}", stages=str(event.stage))
            pending.retry_at = s.now + settings.resend_seconds
        return True, out

    def too_late(self, s: Situation) -> list[int]:
        """Stages that are learnt for too long; they are begun anew if the next Begin says so. Those that come side by
        side share a line."""
        learnt = {stage: item for stage, item in self._pending.items() if stage not in s.mine}
        limit = s.now - len(learnt) * s.settings.install_seconds
        return [stage for stage, item in learnt.items() if item.since < limit]

    def beat(self, s: Situation) -> Outcome:
        """Ask again where it is time to."""
        out = Outcome()
        for pending in self._pending.values():
            if pending.retry_at is not None and s.now >= pending.retry_at:
                pending.retry_at = None
                out.append(Install(pending.plan, pending.base))
        return out

    def hung(self, s: Situation) -> int | None:
        """A stage of ours whose weights have been under way for too long, while we were not suspended."""
        limit, grace = s.now - s.settings.install_seconds, s.liveness.grace
        late = (stage for stage, item in self._pending.items() if max(item.since, grace) < limit)
        return next((stage for stage in late if stage in s.mine), None)


def _source(plan: Plan, s: Situation) -> str:
    """Where the weights come from, for people."""
    initial = Rung.FIRST.spoken if s.settings.continued else "random weights"
    return initial if plan.rung is Rung.INITIAL else plan.rung.spoken
