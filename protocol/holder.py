"""What a peer does with the stages it holds: versions, Status, Begin, installs, and the attempt in progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.early import EarlyTensors
from ftnode.protocol.effects import Apply, Discard, Forget, Install, PublishView, Release, RestartCompute
from ftnode.protocol.events import ComputeReady, Done, Installed, InstallFailed
from ftnode.protocol.keeping import Copies
from ftnode.protocol.messages import Begin, Boundary, Plan, Ready, Resign, Stored
from ftnode.protocol.presence import status_of
from ftnode.protocol.retired import Retired
from ftnode.protocol.step import StepWork
from ftnode.protocol.types import Attempt, Handle, Peer, Version
from ftnode.protocol.view import View

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant

LINEAGES_KEPT = 8


class Holder:
    """Weights by version, and the work on one attempt. Weights of stages no longer held are kept for a return."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self.versions: dict[int, Version] = {}
        self._made_in: dict[int, str] = {}
        """Stage → the lineage that made its version."""
        self._lineages: list[str] = []
        """The lineages that this peer has been in, oldest first, each a descendant of the one before."""
        self.fetched: dict[int, int] = {}
        """Stage → bytes that its weights took over the wire when they were installed here."""
        self._retired = Retired()
        self.work: StepWork | None = None
        self.begin: Begin | None = None
        self.compute_ready = False
        self.capacity = 0
        self.may_head = False
        self.tokens_per_second = 0.0
        self.refuses: set[int] = set()
        self._installing: dict[int, tuple[Plan, Version, float]] = {}
        self._retry: dict[int, float] = {}
        self._early = EarlyTensors(2 * core.settings.window)
        self.copies: Copies = Copies(core)
        self._left: Attempt | None = None
        """The attempt whose work we dropped last: should it go on with us, nobody can finish it."""
        self._ready_sent = -1.0
        self._task_since = 0.0
        self._resigning: Resign | None = None

    # -- what others want to know

    def state_of(self, stage: int) -> str:
        """One word for people."""
        if stage in self._installing:
            return "rebuilding"
        if self.begin is None or self.work is None:
            return "waiting"
        if not self.begin.training:
            return "finished"
        return "ready" if self.work.complete else "training"

    def applied(self, stage: int) -> int:
        version = self.versions.get(stage)
        return version.step if version is not None else -1

    @property
    def finished(self) -> bool:
        """All steps are committed."""
        return self.begin is not None and not self.begin.training

    def busy_seconds(self) -> float:
        return self.core.now - self._task_since if self.work is not None and self.work.busy else 0.0

    # -- views and Begin

    def on_view(self, view: View, was: tuple[int, ...], forked: bool) -> None:
        """Drop what belongs to a role we no longer have; report to the leader of the new view (rules 15, 17).

        `forked`: the view founds a lineage out of the one before, whose attempts it may commit (rules 16, 18 ii).
        """
        core = self.core
        if forked:
            self._retired.forked(view.lineage.id)
        if view.lineage.id not in self._lineages:
            if not forked:  # a copy may be of a past that is not this lineage's
                self.copies.forget(None)
            self._lineages = [*self._lineages[-LINEAGES_KEPT:], view.lineage.id]
        if self._resigning is not None and not set(self._resigning.stages) & set(core.mine) & set(was):
            self._resigning = None
        if not core.member or set(was) - set(core.mine):
            self._stop_work()
        if core.mine:
            for stage in set(self.versions) - set(core.mine):
                self._forget(stage)
        for stage in set(self._installing) - set(core.mine):
            del self._installing[stage]
        self.copies.on_view(view)
        if core.member:
            self.send_status()

    def _forget(self, stage: int) -> None:
        del self.versions[stage]
        self._made_in.pop(stage, None)
        self.core.emit(Forget(stage))

    def forget_all(self) -> None:
        """A new run begins: nothing of an earlier one may get into it."""
        self._stop_work()
        self._drop_retired()
        self._installing.clear()
        self.copies.forget(None)
        for stage in list(self.versions):
            self._forget(stage)

    def abandon(self) -> None:
        """The view is given up before we had any weights of it."""
        self._stop_work()
        self._installing.clear()

    def yield_to(self, winner: str) -> None:
        """Our lineage loses: what it made must not mix with the winner's (rule 16); what is older is the winner's."""
        self._stop_work()
        if self._retired.work_in(winner) is None:
            self._drop_retired()
        self._installing.clear()
        at = self._lineages.index(winner) + 1 if winner in self._lineages else len(self._lineages) - 1
        lost, self._lineages = self._lineages[at:], self._lineages[:at]
        self.copies.forget(lost)
        for stage in [stage for stage, lineage in self._made_in.items() if lineage in lost]:
            self._forget(stage)

    def _stop_work(self) -> None:
        """Leave the attempt. One that is complete here is kept, since the others may commit it without us."""
        work, self.work, self.begin = self.work, None, None
        if work is not None and work.begin.training:
            self._left = work.begin.attempt
        self._release(self._early.drop(None))
        if work is not None and work.complete and work.begin.training:
            self._retired.keep(work)
            self.core.emit(Release(work.kept_handles()))
            self.core.emit(Discard(work.begin.attempt))
        elif work is not None or not self._retired:
            self._retired.drop()
            self.core.emit(Discard(None))

    def _drop_retired(self) -> None:
        if self._retired.drop():
            self.core.emit(Discard(None))

    def exact(self, lineage: str) -> tuple[tuple[int, Version], ...]:
        """The versions that we have, or can make at once of what a retired attempt reduced."""
        return (*sorted(self.versions.items()), *self._retired.promised(self.versions, lineage))

    def send_status(self) -> None:
        assert self.core.view is not None
        self.core.send(self.core.view.leader, status_of(self.core, self.core.view))

    def reduced(self, stage: int, lineage: str) -> Attempt | None:
        """The training attempt whose reduced gradient of the stage is here: that in work, or one that we left."""
        work, begin = self.work, self.begin
        if (
            work is not None
            and begin is not None
            and begin.training
            and stage in work.stages
            and work.has_reduced(stage)
        ):
            return begin.attempt
        return self._retired.reduced(stage, lineage)

    def on_begin(self, begin: Begin) -> None:
        """Rule 19: commit base, install what is missing, then work on the attempt."""
        core, old = self.core, self.begin
        if old is not None and begin.view == old.view and (begin.step, begin.attempt) <= (old.step, old.attempt):
            return
        if old is not None and begin.base.step < old.base.step:
            return
        for stage in core.mine:
            self._bring_to(stage, begin)
        assert core.view is not None
        self._ready_sent = -1.0
        goes_on = self.work is not None and old is not None and old.attempt == begin.attempt and old.step == begin.step
        self.begin = begin
        self._retired.begun(begin.lineage, goes_on)
        if goes_on and self.work is not None:
            core.route(self.work.continue_in(core.view, begin, core.now))
        else:
            self._release(self._early.drop(begin.attempt))
            core.emit(Discard(begin.attempt))
            self.work = StepWork(core.me, core.view, begin, core.settings)
            self._task_since = core.now
            if begin.attempt == self._left:
                self.work.give_up("its work on this attempt was dropped")
        self.work.installed(self._usable(begin.base))
        self.copies.on_begin(begin)
        for sender, boundary, handle in self._early.take():
            self.on_boundary(sender, boundary, handle)

    def _usable(self, base: Version) -> list[int]:
        return [stage for stage in self.core.mine if self.versions.get(stage) == base]

    def _bring_to(self, stage: int, begin: Begin) -> None:
        """Apply what was reduced, or install what the plan says, so that the stage is at begin.base."""
        core, version, work, base = self.core, self.versions.get(stage), self.work, begin.base
        if version == base:
            return
        work = self._retired.work_in(begin.lineage) or work
        reduced = work is not None and work.begin.attempt == base.attempt and work.has_reduced(stage)
        if work is not None and reduced and version is not None and version.step == base.step - 1:
            core.emit(Apply(stage, base, base.attempt, work.begin.skip))
            self.versions[stage] = base
            self._made_in[stage] = begin.lineage
            return
        plan = next((plan for plan in begin.installs if (plan.stage, plan.peer) == (stage, core.me)), None)
        if plan is None:
            self.resign((stage,), f"stage {stage} has no weights of step {base.step} and no plan to get them", False)
            return
        self.versions.pop(stage, None)
        pending = self._installing.get(stage)
        if pending is None or pending[0] != plan or pending[1] != base:
            self._installing[stage] = (plan, base, core.now)
            donors = ", ".join(f"{donor.peer} (stage {donor.stage})" for donor in plan.donors) or "nobody"
            core.note("rebuild", f"stage {stage} by {plan.rung} from {donors}: {plan.reason}", stages=str(stage),
                      rung=plan.rung.value)  # fmt: skip
            core.emit(Install(plan, base))

    def on_installed(self, event: Installed) -> None:
        pending = self._installing.get(event.stage)
        if pending is None or pending[1] != event.base:
            return
        del self._installing[event.stage]
        self._retry.pop(event.stage, None)
        self.fetched[event.stage] = event.bytes_fetched
        plan = pending[0]
        self.versions[event.stage] = event.base
        assert self.core.view is not None
        self._made_in[event.stage] = self.core.view.lineage.id
        self.core.note("rebuilt", f"stage {event.stage} has its weights of step {event.base.step} by {plan.rung}",
                       stages=str(event.stage), rung=plan.rung.value)  # fmt: skip
        if self.work is not None and self.begin is not None:
            self.work.installed(self._usable(self.begin.base))

    def on_install_failed(self, event: InstallFailed) -> None:
        """Ask again after a while; a member that is gone is the leader's to notice, and brings a new plan."""
        pending = self._installing.get(event.stage)
        if pending is None or pending[1] != event.base:
            return
        settings, outside = self.core.settings, event.donor is not None and event.donor not in self.core.members
        if self.core.now - pending[2] > (settings.lease_seconds if outside else settings.install_seconds):
            self.resign((event.stage,), f"could not rebuild: {event.reason}", False)
        else:
            self.core.note("rebuild", f"stage {event.stage} again: {event.reason}", stages=str(event.stage))
            self._retry[event.stage] = self.core.now + self.core.settings.resend_seconds

    # -- tensors and tasks

    def on_boundary(self, sender: Peer, boundary: Boundary, handle: Handle) -> None:
        core = self.core
        known = sender in core.members and core.view is not None and boundary.lineage == core.view.lineage.id
        if not core.member or core.view is None or not known:
            core.emit(Release((handle,)))
            return
        begin = self.begin
        now_at = (core.view.number, begin.attempt if begin is not None else Attempt(-1, 0))
        begun = begin is not None and begin.view == core.view.number
        if begun and (boundary.view, boundary.attempt) == now_at and self.work is not None:
            core.route(self.work.on_boundary(sender, boundary, handle))
        elif (boundary.view, boundary.attempt) > now_at or (boundary.view == core.view.number and not begun):
            self._release(self._early.keep(sender, boundary, handle))
        else:
            core.emit(Release((handle,)))

    def _release(self, handles: tuple[Handle, ...]) -> None:
        if handles:
            self.core.emit(Release(handles))

    def on_stored(self, sender: Peer, stored: Stored) -> None:
        if self.work is not None:
            self.core.route(self.work.on_stored(sender, stored))

    def on_done(self, done: Done) -> None:
        core, view = self.core, self.core.view
        self._task_since = core.now
        if self.work is None or view is None or done.task.attempt != self.work.begin.attempt:
            if done.output is not None:
                core.emit(Release((done.output,)))
            return
        core.route(self.work.on_done(done, core.now, view.leader))

    def on_link_up(self, peer: Peer) -> None:
        if self.work is not None:
            self.core.route(self.work.resend(self.core.now, lambda kept: kept.to == peer))

    def advance(self) -> None:
        """Give compute what it can do, and tell the leader when all is done."""
        core, work, begin = self.core, self.work, self.begin
        if work is None or begin is None or core.view is None or not self.compute_ready:
            return
        if work.can_advance:
            idle = not work.busy
            core.route(work.advance(core.now))
            if idle and work.busy:
                self._task_since = core.now
        if self._ready_sent < 0 and begin.view == core.view.number and work.complete:
            self._send_ready(work.ready())

    def _send_ready(self, ready: Ready) -> None:
        assert self.core.view is not None
        self._ready_sent = self.core.now
        self.core.send(self.core.view.leader, ready)

    # -- trouble and time

    def on_compute_ready(self, event: ComputeReady) -> None:
        self.compute_ready = True
        self.capacity, self.may_head = event.capacity, event.head
        self.tokens_per_second = event.tokens_per_second
        self.core.follow.on_compute_ready()

    def on_compute_lost(self, reason: str, out_of_memory_stage: int) -> None:
        """All weights and tensors are gone: withdraw at once, and be a standby when compute is back."""
        core = self.core
        self.compute_ready = False
        self.versions.clear()
        self._made_in.clear()
        self._retired.drop()
        self._installing.clear()
        self._early.drop(None)
        self.work = self.begin = None
        core.emit(Discard(None))
        if out_of_memory_stage >= 0:
            self.refuses.add(out_of_memory_stage)
        core.note("compute", f"compute is lost: {reason}")
        core.emit(PublishView(None))
        if core.mine:
            self.resign(core.mine, f"compute is lost: {reason}", False)

    def resign(self, stages: tuple[int, ...], reason: str, leaving: bool) -> None:
        """Say so to the leader until a view without us in these stages comes."""
        view, old = self.core.view, self._resigning
        if view is not None and self.core.member:
            if old is not None:
                stages, leaving = tuple(sorted({*old.stages, *stages})), leaving or old.leaving
            self._resigning = Resign(view.lineage.id, view.number, stages, leaving, reason[:500])
            self._send_resign()

    def _send_resign(self) -> None:
        core, resign = self.core, self._resigning
        if resign is None or core.view is None:
            return
        message = Resign(core.view.lineage.id, core.view.number, resign.stages, resign.leaving, resign.reason)
        targets = core.view.voters if resign.leaving and core.leader is not None else (core.view.leader,)
        for peer in targets:
            core.send(peer, message)

    def beat(self) -> None:
        """Resend Status, Ready and tensors; retry installs; notice a task that does not end."""
        core, now, settings = self.core, self.core.now, self.core.settings
        if not core.member or core.view is None:
            return
        self._send_resign()
        if self.begin is None or self.begin.view != core.view.number:
            self.send_status()
        if self._give_up_hung_install():
            return
        work = self.work
        if work is None:
            return
        if self._ready_sent >= 0 and now - self._ready_sent >= settings.resend_seconds and work.complete:
            self._send_ready(work.ready())
        core.route(work.resend(now, lambda kept: now - kept.sent >= settings.resend_seconds))
        for kept in work.stalled(now - settings.stall_seconds):
            where = f"microbatch {kept.boundary.microbatch} at visit {kept.boundary.visit} is not acknowledged"
            core.watch.suspect(kept.to, "stalled", where)
        for stage in [stage for stage, at in self._retry.items() if now >= at]:
            del self._retry[stage]
            if stage in self._installing:
                plan, base, _ = self._installing[stage]
                core.emit(Install(plan, base))
        if work.poison is not None:
            core.send(core.view.leader, work.poison)
        if self.busy_seconds() > settings.task_seconds:
            reason = f"a task has been running for {self.busy_seconds():.0f} s"
            core.emit(RestartCompute(reason))
            self.on_compute_lost(reason, -1)

    def _give_up_hung_install(self) -> bool:
        """Whoever rebuilds for too long lets another try (invariant I8); compute may be what hangs."""
        limit = self.core.settings.install_seconds
        hung = [stage for stage, (_, _, since) in self._installing.items() if self.core.now - since > limit]
        if not hung:
            return False
        reason = f"the rebuild of stage {hung[0]} takes longer than {limit:.0f} s"
        self.core.emit(RestartCompute(reason))
        self.on_compute_lost(reason, -1)
        return True
