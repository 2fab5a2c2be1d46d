"""What a peer does with the stages it holds: versions, Status, Begin, installs, and the attempt in progress."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ftnode.protocol.adaptive import Deadlines
from ftnode.protocol.early import EarlyTensors
from ftnode.protocol.effects import Discard, Forget, PublishView, Release, RestartCompute
from ftnode.protocol.events import ComputeReady, Done, Installed, InstallFailed
from ftnode.protocol.installs import Installs
from ftnode.protocol.keeping import Copies
from ftnode.protocol.messages import Begin, Boundary, Share, Stored
from ftnode.protocol.presence import status_of
from ftnode.protocol.resigning import NOT_LENT, Resigning
from ftnode.protocol.retired import Retired, promised_by
from ftnode.protocol.schedule import Pace
from ftnode.protocol.step import StepWork
from ftnode.protocol.types import Attempt, Handle, Peer, Version
from ftnode.protocol.updates import commit_base
from ftnode.protocol.view import Lineage, View

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant

LINEAGES_KEPT = 8


class Holder:
    """Weights by version, and the work on one attempt. Weights of stages no longer held are kept for a return."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self.versions: dict[int, Version] = {}
        self.made_in: dict[int, tuple[str, str]] = {}
        """Stage → the lineage that made its version, and that lineage's origin."""
        self._lineages: list[str] = []
        """The lineages that this peer has been in, oldest first, each a descendant of the one before."""
        self.origin = ""
        """Of the lineage that we are in."""
        self.retired, self.pace = Retired(), Pace()
        self.deadlines = Deadlines(core.settings.resend_seconds, core.settings.stall_seconds)
        self.work: StepWork | None = None
        self.begin: Begin | None = None
        self.compute_ready, self.may_head, self.capacity = False, False, 0
        self.tokens_per_second = 0.0
        self.refuses: set[int] = set()
        self.installs = Installs(core)
        self.learning: tuple[int, ...] = ()
        """Stages that the last Begin lets us learn (rule 26)."""
        self.named_at = 0.0
        """When the leader last was at the step whose Begin lets us learn."""
        self._early = EarlyTensors(2 * core.settings.window)
        self._early_shares: dict[tuple[Peer, int], Share] = {}
        """The newest that came before their Begin, of each (holder, stage)."""
        self.copies: Copies = Copies(core)
        self.told: tuple[Version, bool] | None = None
        """The base of the last Begin, and whether it was skipped: a member knows of it although its work is gone."""
        self._left: Attempt | None = None
        """The attempt whose work we dropped last: should it go on with us, nobody can finish it."""
        self._ready_sent, self._ready_results = -1.0, -1
        """When we said that we are Ready, and for how many stages: what we learn may be reduced later."""
        self._task_since, self.resigning = 0.0, Resigning(core)

    # -- what others want to know

    @property
    def ours(self) -> dict[int, Version]:
        """Those that have a common past with the lineage that we are in."""
        return {stage: version for stage, version in self.versions.items() if self.made_in[stage][1] == self.origin}

    def applied(self, stage: int) -> int:
        return self.versions[stage].step if stage in self.versions else -1

    @property
    def finished(self) -> bool:
        """All steps are committed."""
        return self.begin is not None and not self.begin.training

    def busy_seconds(self) -> float:
        since = max(self._task_since, self.core.liveness.grace)  # a suspended node is not a hung compute
        return self.core.now - since if self.work is not None and self.work.busy else 0.0

    # -- views and Begin

    def on_view(self, view: View, was: tuple[int, ...], forked: bool) -> None:
        """Drop what belongs to a role we no longer have; report to the leader of the new view (rules 15, 17).

        `forked`: the view founds a lineage out of the one before, whose attempts it may commit (rules 16, 18 ii).
        """
        core, lineage = self.core, view.lineage
        if lineage.origin != self.origin:
            self.origin, self._lineages = lineage.origin, []
            if lineage.start is not None and core.member:  # it goes on from disks, with nothing of our memory (rule 36)
                self.forget_all(but=self.ours)
        if forked:
            self.retired.forked(view.lineage.id)
        if view.lineage.id not in self._lineages:
            if not (forked and (was or view.leader == core.me)):  # a copy may be of a past that is not this lineage's
                self.copies.forget(None)
            self._lineages = [*self._lineages[-LINEAGES_KEPT:], view.lineage.id]
        self.resigning.on_view(set(core.mine) & set(was))
        self.learning = tuple(stage for stage in self.learning if stage not in core.mine)
        if core.mine and not was and core.me not in view.voters:  # what we did as a learner may be long over
            self._stop_work()
        if not (core.member or self.learning) or (set(was) - set(core.mine) and not self._handed_over(was)):
            self._stop_work()
        ours = {*core.mine, *was, *self.learning}
        if core.mine:  # what nobody holds may be needed exactly, and is in nobody's way
            for stage in [stage for stage in self.versions if stage not in ours and view.holders[stage]]:
                self.forget(stage)
        self.installs.keep_only(ours)
        if not core.member or (not was and core.me not in view.voters):
            self.told = None
        self.copies.on_view(view)
        self.deadlines.keep_only(core.members)
        if core.member:
            self.send_status()

    def _handed_over(self, was: tuple[int, ...]) -> bool:
        """We hold less than before, and the step is done: its last word on what was given up is still ours."""
        return self.core.member and self.work is not None and self.work.complete and set(was) <= set(self.work.stages)

    def forget(self, stage: int) -> None:
        self.versions.pop(stage, None)
        self.made_in.pop(stage, None)
        self.core.emit(Forget(stage))

    def forget_all(self, but: Collection[int] = ()) -> None:
        """A new run begins: nothing of an earlier one may get into it."""
        self._stop_work()
        self.told = None
        self._drop_retired()
        self.installs.keep_only(())
        self.copies.forget(None)
        for stage in [stage for stage in self.versions if stage not in but]:
            self.forget(stage)

    def abandon(self) -> None:
        """The view is given up, and what is learnt or fetched for it with it; what we held before stays."""
        self._stop_learning()
        self.told = None

    def yield_to(self, winner: Lineage) -> None:
        """Our lineage loses: what it made must not mix with the winner's (rule 16); what is older is the winner's."""
        self._stop_work()
        self.told = None
        if self.retired.work_in(winner.id) is None:
            self._drop_retired()
        self.installs.keep_only(())
        at = self._lineages.index(winner.id) + 1 if winner.id in self._lineages else len(self._lineages) - 1
        at = at if winner.origin == self.origin else 0
        lost, self._lineages = self._lineages[at:], self._lineages[:at]
        self.copies.forget(lost)
        for stage in [stage for stage, (lineage, _) in self.made_in.items() if lineage in lost]:
            self.forget(stage)

    def _stop_work(self) -> None:
        """Leave the attempt. One that is complete here is kept, since the others may commit it without us."""
        self._keep_told()
        work, self.work, self.begin = self.work, None, None
        if work is not None and work.begin.training:
            self._left = work.begin.attempt
        self._release(self._early.drop(None))
        if work is not None and work.complete and work.begin.training:
            self.retired.keep(work)
            self.core.emit(Release(work.kept_handles()))
            self.core.emit(Discard(work.begin.attempt))
        elif work is not None or not self.retired:
            self.retired.drop()
            self.core.emit(Discard(None))

    def _keep_told(self) -> None:
        if self.begin is not None and self.core.member:
            self.told = self.begin.base, self.begin.skipped

    def _drop_retired(self) -> None:
        if self.retired.drop():
            self.core.emit(Discard(None))

    def exact(self, lineage: str) -> tuple[tuple[int, Version], ...]:
        """The versions that we have, or can make at once of what this attempt or a retired one reduced."""
        at_work = self.work is not None and self.work.begin.training
        here = promised_by(self.work, self.versions, lineage) if at_work and self.work else ()
        return (*sorted(self.versions.items()), *self.retired.promised(self.versions, lineage), *here)

    def send_status(self) -> None:
        assert self.core.view is not None
        self.core.send(self.core.view.leader, status_of(self.core, self.core.view))

    def reduced(self, stage: int, lineage: str) -> Attempt | None:
        """The training attempt whose reduced gradient of the stage is here: that in work, or one that we left."""
        work = self.work if self.begin is not None else None
        if work is not None and work.begin.training and stage in work.stages and work.has_reduced(stage):
            return work.begin.attempt
        return self.retired.reduced(stage, lineage)

    def on_begin(self, begin: Begin) -> None:
        """Rule 19: commit base, install what is missing, then work on the attempt."""
        core, old = self.core, self.begin
        if old is not None and begin.view == old.view and (begin.step, begin.attempt) <= (old.step, old.attempt):
            return
        if old is not None and begin.base.step < old.base.step:
            return
        self.learning, self.named_at = tuple(stage for stage, peer in begin.learners if peer == core.me), core.now
        self.installs.keep_only({*core.mine, *self.learning})
        goes_on = self.work is not None and old is not None and old.attempt == begin.attempt and old.step == begin.step
        commit_base(self, begin, goes_on)
        assert core.view is not None
        self._ready_sent, self._ready_results = -1.0, -1
        self.begin, self.told = begin, None
        self.retired.begun(begin.lineage, goes_on)
        if goes_on and self.work is not None:
            core.route(self.work.continue_in(core.view, begin, core.now))
        else:
            self._release(self._early.drop(begin.attempt))
            core.emit(Discard(begin.attempt))
            paces = core.watch.paces()
            self.work = StepWork(core.me, core.view, begin, core.settings, self.pace, paces, self.deadlines)
            self._task_since = core.now
            if begin.attempt == self._left:
                self.work.give_up("its work on this attempt was dropped")
        self.work.installed(self._usable(begin.base))
        self.copies.on_begin(begin)
        for sender, boundary, handle in self._early.take():
            self.on_boundary(sender, boundary, handle)
        early, self._early_shares = self._early_shares, {}
        for (sender, _), share in early.items():
            self.on_share(sender, share)

    def _usable(self, base: Version) -> list[int]:
        return [stage for stage in (*self.core.mine, *self.learning) if self.versions.get(stage) == base]

    def on_installed(self, event: Installed) -> None:
        version = self.installs.on_installed(event)
        if version is None:
            return
        self.versions[event.stage] = version
        assert self.core.view is not None
        self.made_in[event.stage] = self.core.view.lineage.id, self.origin
        if self.work is not None and self.begin is not None:
            self.work.installed(self._usable(self.begin.base))
        if event.stage in self.learning:
            self.core.send(self.core.view.leader, self.core.watch.heartbeat(False))

    def on_install_failed(self, event: InstallFailed) -> None:
        if not self.installs.on_failed(event):
            self.resign((event.stage,), f"{NOT_LENT}: {event.reason}", False)

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

    def on_share(self, sender: Peer, share: Share) -> None:
        core, begin = self.core, self.begin
        if core.view is None or share.lineage != core.view.lineage.id or sender not in core.members:
            return
        now_at = (begin.view, begin.attempt) if begin is not None else (-1, Attempt(-1, 0))
        if self.work is not None and (share.view, share.attempt) == now_at:
            core.route(self.work.on_share(sender, share, core.now))
        elif (share.view, share.attempt) > now_at:
            self._early_shares[(sender, share.stage)] = share

    def on_stored(self, sender: Peer, stored: Stored) -> None:
        if self.work is not None:
            self.core.route(self.work.on_stored(sender, stored, self.core.now))

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
            self.core.route(self.work.resend_to(peer, self.core.now))

    def advance(self) -> None:
        """Give compute what it can do, and tell the leader when all is done."""
        core, work, begin = self.core, self.work, self.begin
        if work is None or begin is None or core.view is None or not self.compute_ready:
            return
        if work.can_advance:
            idle = not work.busy
            core.route(work.advance(core.now, begin.view == core.view.number))
            if idle and work.busy:
                self._task_since = core.now
        if begin.view == core.view.number and work.complete:
            self._send_ready(work, self._ready_results)

    def _send_ready(self, work: StepWork, told: int = -1) -> None:
        """Unless it says no more than the last one, which told of so many stages."""
        ready = work.ready()
        if len(ready.results) > told and self.core.view is not None:
            self._ready_sent, self._ready_results = self.core.now, len(ready.results)
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
        self.made_in.clear()
        self.retired.drop()
        self.installs.lost()
        self._early.drop(None)
        self._keep_told()
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
        self.resigning.start(stages, reason, leaving)

    def beat(self) -> None:
        """Resend Status, Ready and tensors; retry installs; notice a task that does not end."""
        core, now, settings = self.core, self.core.now, self.core.settings
        if self.learning and not core.member and core.now - self.named_at > 2 * settings.lease_seconds:
            self._stop_learning()
        if not (core.member or self.learning) or core.view is None:
            return
        self.resigning.say()
        if core.member and (self.begin is None or self.begin.view != core.view.number):
            self.send_status()
        if self._give_up_hung_install():
            return
        if (work := self.work) is None:
            return
        if self._ready_sent >= 0 and now - self._ready_sent >= settings.resend_seconds and work.complete:
            self._send_ready(work)
        core.route(work.beat(now))
        for kept in work.outbox.stalled(now, settings.stall_seconds):
            where = f"microbatch {kept.boundary.microbatch} at visit {kept.boundary.visit} is not acknowledged"
            core.watch.suspect(kept.to, "stalled", where)
        self.installs.beat()
        stuck = work.groups.stuck(now - settings.sum_seconds, core.liveness.grace)
        if stuck is not None and work.poison is None:
            work.give_up(f"the reduction of stage {stuck} does not end", stuck)
        if work.poison is not None:
            core.send(core.view.leader, work.poison)
        if self.busy_seconds() > settings.task_seconds:
            reason = f"a task has been running for {self.busy_seconds():.0f} s"
            core.emit(RestartCompute(reason))
            self.on_compute_lost(reason, -1)

    def _stop_learning(self) -> None:
        """The leader names us no longer."""
        self._stop_work()
        for stage in self.learning:
            if stage in self.versions:
                self.forget(stage)
        self.learning = ()
        self.installs.keep_only(())

    def _give_up_hung_install(self) -> bool:
        """Whoever rebuilds for too long lets another try (invariant I8); compute may be what hangs."""
        hung = self.installs.hung()
        if hung is None:
            return False
        reason = f"the rebuild of stage {hung} takes longer than {self.core.settings.install_seconds:.0f} s"
        self.core.emit(RestartCompute(reason))
        self.on_compute_lost(reason, -1)
        return True
