"""What a peer does with the stages it holds: what it says of them, and the attempt in progress.

view   what belongs to a role that we no longer have goes; Status to the leader (rules 15 and 17)
Begin  the stages come to its base (own_stages.py), then the attempt begins, or goes on (step/attempt.py)
event  of a tensor, a task, a message: to the attempt, if it is of it; what came early waits for its Begin
beat   what was said and not heard is said again; what does not end is given up
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence

from ftnode.protocol.holder.own_departure import OwnDeparture
from ftnode.protocol.holder.own_stages import OwnStages
from ftnode.protocol.holder.watching import Watching
from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.liveness.moves import Moves
from ftnode.protocol.recovery.copies import OwnCopies
from ftnode.protocol.recovery.copy_trials import CopyTrials
from ftnode.protocol.recovery.disk_versions import OwnDisk
from ftnode.protocol.recovery.lent_copies import LentCopies
from ftnode.protocol.recovery.rolls import OwnRolls
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.check import Check, draw
from ftnode.protocol.step.completed_attempt import CompletedAttempt, promised_by
from ftnode.protocol.step.doubts import Doubts
from ftnode.protocol.step.early_tensors import EarlyTensors
from ftnode.protocol.step.line_pace import LinePace
from ftnode.protocol.step.patience import most_tasks
from ftnode.protocol.step.task_order import LiveActivations, Pace
from ftnode.protocol.words.effects import (
    Course,
    Discard,
    Effect,
    Forget,
    PublishView,
    Recount,
    Release,
    RestartCompute,
    Retrace,
    Sample,
)
from ftnode.protocol.words.events import ComputeReady, Done, Installed, InstallFailed, Kept, StageLost, SumOwed
from ftnode.protocol.words.messages import (
    NOT_LENT,
    Answer,
    Begin,
    Boundary,
    Convicted,
    Donor,
    Doubted,
    Judge,
    Roll,
    Rolled,
    Share,
    Show,
    StageStatus,
    Status,
    Stored,
    Waits,
    WasGiven,
)
from ftnode.protocol.words.records import sensible
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Copied, Handle, Peer, Snapshot, Version, spoken_stage
from ftnode.protocol.words.view import Lineage, View

LEFT_KEPT = 16
"""Attempts that are remembered as left; a lineage that comes back goes on with its last one."""


class Holder:
    """Brings its weights to each commit, and works on one attempt."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._held_back: tuple[Begin, float] | None = None
        """A learner's Begin that waits for the sum of the step that it commits, and since when."""
        self.completed, self.pace, self.line = CompletedAttempt(), Pace(), LinePace()
        self.deadlines = Deadlines(settings.resend_seconds, settings.stall_seconds)
        self.doubts = Doubts()
        self._watching = Watching(self.doubts)
        self.work: StepWork | None = None
        self.begin: Begin | None = None
        self.compute_ready, self.may_head, self.capacity = False, False, 0
        self.tokens_per_second = 0.0
        self._no_memory: set[int] = set()
        """Stages for which there was no memory here."""
        self._live_activations = -1
        """What there is memory for; -1: for as many as the manifest says."""
        self._fits: int | None = None
        """More stages than this did not fit, whatever compute promises; None while that has not been met."""
        self.learning: tuple[int, ...] = ()
        """Stages that the last Begin lets us learn (rule 26)."""
        self.named_at = 0.0
        """When the leader last was at the step whose Begin lets us learn."""
        self._early = EarlyTensors(2 * settings.window)
        self._early_shares: dict[tuple[Peer, int], Share] = {}
        """The newest that came before their Begin, of each (holder, stage)."""
        self.copies, self.lent, self.copy_trials = OwnCopies(), LentCopies(), CopyTrials()
        self.disk, self.rolls, self.departure = OwnDisk(), OwnRolls(), OwnDeparture()
        self._own = own = OwnStages(self.completed, self.rolls, self.departure)
        self.weights, self.installs = own.weights, own.installs
        self.trials, self.donor_trials = own.trials, own.donor_trials
        self._ordered = 0, 0.0
        """Number of the author's newest order to roll back, and since when we know it."""
        self.told: tuple[Version, bool] | None = None
        """The base of the last Begin, and whether it was skipped: a member knows of it although its work is gone."""
        self._left: deque[Attempt] = deque(maxlen=LEFT_KEPT)
        """Attempts whose work we dropped: should one go on with us, nobody can finish it."""
        self._ready_sent, self._ready_results = -1.0, -1
        """When we said that we are Ready, and for how many stages: what we learn may be reduced later."""
        self._task_since = 0.0
        self.done = 0
        """Tasks of steps that compute has finished, and installs."""
        self.moves = Moves(most_tasks(settings))
        self._waited = False
        """The leader was told of waits at the last heartbeat."""

    # -- what others want to know

    @property
    def versions(self) -> dict[int, Version]:
        return self.weights.versions

    @property
    def ours(self) -> dict[int, Version]:
        return self.weights.ours

    @property
    def given_up(self) -> View | None:
        return self.weights.given_up

    @property
    def refuses(self) -> set[int]:
        """Stages for which there was no memory here, or that nobody lends us who is to be believed."""
        return self._no_memory | self.trials.refused

    def copies_told(self) -> tuple[Copied, ...]:
        return self.copies.told()

    def snapshots_told(self) -> tuple[Snapshot, ...]:
        """The newest on our disk that others believe in: what it is of, a leader has named."""
        return tuple(snapshot for snapshot in self.disk.told() if sensible(snapshot, self._settings))

    def rolls_kept(self) -> tuple[Roll, ...]:
        return self.rolls.kept

    def disbelieves(
        self, lineage: Lineage, shown: Roll | None, present: Collection[str], tellers: Collection[str]
    ) -> bool:
        """Whether a lineage may not go on from the snapshots that it goes on from, with the roll that is shown."""
        return self.rolls.doubts(lineage, shown, self.disk.told(), present, tellers)

    @property
    def tensors(self) -> int:
        """How many boundary tensors are here: of the attempt in work, and early ones."""
        of_attempt = self.work.holds.handles if self.work is not None else frozenset()
        return len(self._early) + len(self.copy_trials.handles | of_attempt)

    def pace_of(self, stage: int) -> float:
        """Seconds that a microbatch takes here, as StageReport.pace; 0 while nothing is known."""
        compute = self.pace.seconds(stage)
        return max(compute, self.line.seconds(stage)) if compute else 0.0

    @property
    def finished(self) -> bool:
        """All steps are committed."""
        return self.begin is not None and not self.begin.training

    def busy_seconds(self, s: Situation) -> float:
        """For how long compute has answered nothing, for each stage of the longest task that it has."""
        since = max(self._task_since, s.liveness.grace)  # a suspended node is not a hung compute
        return (s.now - since) / self.work.most_at_once if self.work is not None and self.work.busy else 0.0

    def exact(self, lineage: str, but: Collection[int] = ()) -> tuple[tuple[int, Version], ...]:
        """The versions that we have, or can make at once of what this attempt or a retired one reduced; not of the
        stages in `but`. Our Status tells of no more in a lineage that we go by."""
        versions = {stage: version for stage, version in self.weights.told_in(lineage).items() if stage not in but}
        if not versions:
            return ()
        at_work = self.work is not None and self.work.begin.training
        here = promised_by(self.work, versions, lineage) if at_work and self.work else ()
        return (*sorted(versions.items()), *self.completed.promised(versions, lineage), *here)

    def reduced(self, stage: int, lineage: str) -> Attempt | None:
        """The training attempt whose reduced gradient of the stage is here: that in work, or one that we left."""
        work = self.work if self.begin is not None else None
        if work is not None and work.begin.training and stage in work.stages and work.has_reduced(stage):
            return work.begin.attempt
        return self.completed.reduced(stage, lineage)

    def status(self, s: Situation, view: View) -> Status:
        """What this member tells the leader of a new view (rule 17)."""
        work, begin = self.work, self.begin
        training = begin is not None and work is not None and begin.training
        versions, working = self.ours, self._working() if training else []
        base, skipped = (begin.base, begin.skipped) if begin is not None else self.told or (None, False)
        return Status(
            lineage=view.lineage.id,
            view=view.number,
            attempt=begin.attempt if begin is not None and training else None,
            step=begin.step if begin is not None else 0,
            base=base,
            skipped=skipped,
            skip=begin.skip if begin is not None and work is not None else False,
            evaluate=begin is not None and begin.evaluate,
            stages=tuple(
                StageStatus(
                    stage,
                    versions.get(stage),
                    self.reduced(stage, view.lineage.id),
                    stage in working,
                )
                for stage in s.mine
            ),
            ready=work.ready() if work is not None and training and work.complete else None,
            evaluated=tuple(sorted(s.history.validation.items())[-4:]),
            commits=s.history.newest_commits(4),
            copies=self.copies.versions(),
            paths=work.paths() if work is not None and training else (),
            paths_view=begin.view if begin is not None and training else -1,
            snapshots=self.snapshots_told(),
            site=s.here,
        )

    def _working(self) -> list[int]:
        """The stages that work on the Begin: at its base, or on the way to it. One that a Begin left behind, without a
        plan to get there, is given up (rule 19)."""
        work, begin = self.work, self.begin
        if work is None or begin is None:
            return []
        here = [stage for stage, version in self.versions.items() if version == begin.base]
        return [stage for stage in work.stages if stage in here or stage in self.installs]

    # -- views

    def on_view(self, s: Situation, view: View, was: tuple[int, ...], forked: bool) -> Outcome:
        """Drop what belongs to a role we no longer have; report to the leader of the new view (rules 15, 17).

        `was`: the stages that we held before. `forked`: the view founds a lineage out of the one before, whose attempts
        it may commit (rules 16, 18 ii).
        """
        out, lineage = Outcome(), view.lineage
        self.moves.on_view(s.members, view.leader, s.now)
        elsewhere, first = self.weights.enter(lineage)
        if elsewhere and lineage.start is not None and s.member:  # from disks, with nothing of our memory (rule 36)
            out.extend(self.forget_all(s, but=self.ours))
        if forked:
            self.completed.forked(lineage.id)
        if first and not (forked and (was or view.leader == s.me)):  # a copy may be of another past
            out.extend(self._forget_copies(None))
        took_part = s.me in view.voters or self._joins(s, view)
        self.learning = tuple(stage for stage in self.learning if stage not in s.mine)
        self.trials.on_view(view)
        self.trials.keep_only(self.learning)
        self.donor_trials.keep_only(s.mine)
        out.extend(self.copy_trials.on_view(s, self.copies))
        if s.mine and not was and not took_part:  # what we did as a learner may be long over
            self._stop_work(s, out)
        if not (s.member or self.learning) or (set(was) - set(s.mine) and not self._handed_over(s, was)):
            self._stop_work(s, out)
        ours = {*s.mine, *was, *self.learning}
        given_up = self.given_up
        if s.mine or (given_up is not None and given_up.lineage.id == lineage.id):  # we go by it again, further on
            out.extend(map(Forget, self.weights.forget_given_up()))
        if s.mine:
            # what nobody holds may be needed exactly, and is in nobody's way
            for stage in [stage for stage in self.versions if stage not in ours and view.holders[stage]]:
                self._own.forget(out, stage)
        self._own.break_off(out, ours)
        if not s.member or (not was and not took_part):
            self.told = None
        self.deadlines.keep_only(s.members)
        self.line.keep_only(s.members)
        if s.member:
            self._tell_leader(s, out, view)
        return out

    def _joins(self, s: Situation, view: View) -> bool:
        """The view takes us in beside others, as a learner that was Ready for the commit that it settles. Who joins
        without a vote (rule 44) has nothing else to know it by. Who fills an empty stage is alone in it at first."""
        begin, work = self.begin, self.work
        if begin is None or work is None or not work.complete:
            return False
        before = (begin.lineage, begin.view) == (view.lineage.id, view.number - 1)
        beside = all(view.epochs[stage] < view.number for stage in s.mine)
        return before and beside and {*s.mine} <= {*self.learning}

    def _tell_leader(self, s: Situation, out: Outcome, view: View) -> None:
        """Where we stand, and before anything has begun here which rolls we have."""
        if self.begin is None and s.settings.snapshot_every:
            for roll in self.rolls.told():
                out.send(view.leader, Rolled(view.lineage.id, view.number, roll, True))
        out.send(view.leader, self.status(s, view))

    def tell_disk(self, s: Situation) -> Outcome:
        """The author orders to roll back, and whoever leads has to know what is on disks (rule 47)."""
        out, settings = Outcome(), s.settings
        if s.order.number > self._ordered[0]:
            self._ordered = s.order.number, s.now
        late = s.now - self._ordered[1] > settings.restart_wait_seconds + 2 * settings.lease_seconds
        if s.view is not None and s.member and s.me != s.view.leader and s.to_roll_back and not late:
            out.send(s.view.leader, self.status(s, s.view))
        return out

    def _handed_over(self, s: Situation, was: tuple[int, ...]) -> bool:
        """We hold less than before, and the step is done: its last word on what was given up is still ours."""
        return s.member and self.work is not None and self.work.complete and set(was) <= set(self.work.stages)

    def forget_all(self, s: Situation, but: Collection[int] = ()) -> Outcome:
        """A new run begins: nothing of an earlier one may get into it."""
        out = Outcome()
        self._stop_work(s, out)
        self.told = None
        self._drop_retired(out)
        self._own.break_off(out, ())
        out.extend(self._forget_copies(None))
        out.extend(map(Forget, self.weights.forget_given_up()))
        for stage in [stage for stage in self.versions if stage not in but]:
            self._own.forget(out, stage)
        return out

    def abandon(self, s: Situation) -> Outcome:
        """The view is given up, and what is learnt or fetched for it with it; what we held before stays."""
        out = Outcome()
        self._stop_learning(s, out)
        self.told = None
        return out

    def yield_to(self, s: Situation, winner: Lineage) -> Outcome:
        """Our lineage loses: what it made must not mix with the winner's (rule 16); what is older is the winner's."""
        assert s.view is not None
        out = Outcome()
        self._stop_work(s, out)
        self.told = None
        if self.completed.work_in(winner.id) is None:
            self._drop_retired(out)
        self._own.break_off(out, ())
        lost, forgotten = self.weights.yield_to(s.view, winner)
        out.extend(self._forget_copies(lost))
        return out.extended(map(Forget, forgotten))

    def _forget_copies(self, lineages: list[str] | None) -> Outcome:
        """That these lineages made (None: all), and what we know of who lent them."""
        return self.copy_trials.forget().extended(self.copies.forget(lineages))

    def _stop_work(self, s: Situation, out: Outcome) -> None:
        """Leave the attempt. One that is complete here is kept, since the others may commit it without us."""
        self._keep_told(s)
        self._held_back = None
        work, self.work, self.begin = self.work, None, None
        if work is not None and work.begin.training:
            self._left.append(work.begin.attempt)
        _release(out, self._early.drop(None))
        if work is not None:
            out.extend(work.let_go())
        if work is not None and work.complete and work.begin.training:
            self.completed.keep(work)
            out.append(Discard(work.begin.attempt))
        elif work is not None or not self.completed:
            self.completed.drop()
            out.append(Discard(None))

    def _keep_told(self, s: Situation) -> None:
        if self.begin is not None and s.member:
            self.told = self.begin.base, self.begin.skipped

    def _drop_retired(self, out: Outcome) -> None:
        if self.completed.drop():
            out.append(Discard(None))

    # -- a Begin

    def on_begin(self, s: Situation, begin: Begin) -> Outcome:
        """Rule 19: commit base, install what is missing, then work on the attempt."""
        out, old = Outcome(), self.begin
        if not self.compute_ready:
            return out  # what it was given is gone, and the leader hears of that
        if old is not None and begin.view == old.view and (begin.step, begin.attempt) <= (old.step, old.attempt):
            return out
        if old is not None and begin.base.step < old.base.step:
            return out
        held = self._held_back
        since = held[1] if held is not None and held[0].attempt == begin.attempt else s.now
        if s.now - since <= s.settings.join_seconds_max and self._waits_for_sum(s, begin):
            self._held_back, self.named_at = (begin, since), s.now
            return out
        self._held_back = None
        named = (stage for stage, peer in begin.learners if peer == s.me and stage not in {*s.mine, *self.refuses})
        self.learning, self.named_at = tuple(named), s.now
        if self.learning:
            out.extend(map(Forget, self.weights.forget_given_up()))
        self._own.break_off(out, {*s.mine, *self.learning})
        goes_on = self.work is not None and old is not None and old.attempt == begin.attempt and old.step == begin.step
        self._own.commit_base(s, out, begin, self.learning, self.work, goes_on)
        assert s.view is not None
        self._ready_sent, self._ready_results = -1.0, -1
        self.begin, self.told = begin, None
        if any(self.versions.get(stage) == begin.base for stage in s.mine):
            self.rolls.committed(begin.base, s.settings.snapshot_every)
        self.moves.begin(s.view.leader, s.now)
        self.completed.begun(begin.lineage, goes_on)
        self._watching.begin(s, begin)
        self.donor_trials.begin(s.view, begin)
        if goes_on and self.work is not None:
            out.extend(self.work.continue_in(s.view, begin, s.now))
            if self.donor_trials.stages:  # who is gone may have made what would have to be shown
                self.work.give_up("what its donors lent has not been tried")
        else:
            _release(out, self._early.drop(begin.attempt))
            if self.work is not None:
                out.extend(self.work.let_go())
                self._left.append(self.work.begin.attempt)
            out.append(Discard(begin.attempt))
            limit, own = s.settings.live_activations, self._live_activations
            live = LiveActivations(limit if own < 0 else min(limit, own))
            lot = self.trials.draw(s, begin, self._own.usable(s, self.learning, begin.base))
            lot = lot or draw(s.chance, s.view, s.me, s.settings, begin, self.doubts, s.new(s.members))
            self.work = StepWork(
                s.me, s.view, begin, s.settings, self.pace, self.line, s.paces(), self.deadlines, live, lot,
                self._own.untried,
            )  # fmt: skip
            self._task_since = s.now
            if begin.attempt in self._left:
                self.work.give_up("its work on this attempt was dropped")
        self.work.installed(self._own.usable(s, self.learning, begin.base))
        out.extend(self.copies.on_begin(s, begin))
        out.extend(self.copy_trials.begin(s, self.work, self.copies, self.doubts))
        for sender, boundary, handle, relay in self._early.take():
            out.extend(self.on_boundary(s, sender, boundary, handle, relay))
        early, self._early_shares = self._early_shares, {}
        for (sender, _), share in early.items():
            out.extend(self.on_share(s, sender, share))
        return out

    def _waits_for_sum(self, s: Situation, begin: Begin) -> bool:
        """Is the sum of the step that the Begin commits still to come? No step waits for a learner that fetches, so
        the sum may reach it after the Begin; and who misses one sum fetches everything anew."""
        work, named = self.work, any(peer == s.me for _, peer in begin.learners)
        if s.member or not named or work is None or work.begin.skip:
            return False
        if (work.begin.attempt, work.begin.step) != (begin.base.attempt, begin.base.step):
            return False
        fetched = [stage for stage in self.learning if self.installs.becomes(stage) == work.begin.base]
        return not all(map(work.has_reduced, fetched))

    def _held_begin(self, s: Situation) -> Outcome:
        """Look again whether it still waits."""
        if self._held_back is None:
            return Outcome()
        begin, _ = self._held_back
        if s.of_view(begin.lineage, begin.view):
            return self.on_begin(s, begin)
        self._held_back = None
        return Outcome()

    # -- installs

    def on_installed(self, s: Situation, event: Installed) -> Outcome:
        version, out = self._own.on_installed(s, event, self.learning)
        if version is None:
            return out
        assert s.view is not None
        if self.work is not None and event.stage in self._own.untried:
            self.work.untried.add(event.stage)
        self._has_done(s)
        if self.work is not None and self.begin is not None:
            usable = self._own.usable(s, self.learning, self.begin.base)
            self.work.installed(usable)
            if self.work.may_check:
                lot = self.trials.draw(s, self.begin, usable)
                out.extend(self.work.try_out(lot, s.now) if lot is not None else ())
                self._still_untried(self.work)
        if event.stage in self.learning:
            out.beat(False, s.view.leader)
        return out

    def on_install_failed(self, s: Situation, event: InstallFailed) -> Outcome:
        waited, out = self.installs.on_failed(s, event)
        if not waited:
            out.extend(self.departure.give_up(s, (event.stage,), f"{NOT_LENT}: {event.reason}"))
        return out

    # -- tensors and tasks

    def on_boundary(
        self, s: Situation, sender: Peer, boundary: Boundary, handle: Handle, relay: str = ""
    ) -> Sequence[Effect]:
        known = sender in s.members and s.view is not None and boundary.lineage == s.view.lineage.id
        if not (s.member or self.trials.stages) or s.view is None or not known:
            return [Release((handle,))]
        begin, number = self.begin, s.view.number
        now_at = (number, begin.attempt if begin is not None else Attempt(-1, 0))
        begun = begin is not None and begin.view == number
        if begun and (boundary.view, boundary.attempt) == now_at and self.work is not None:
            if self.copy_trials.wants(sender, boundary) and not self.work.wants_to_see(sender, boundary):
                return [*self.copy_trials.show(boundary, handle)]
            return self.work.on_boundary(sender, boundary, handle, relay)
        if not s.member:
            return [Release((handle,))]
        if (boundary.view, boundary.attempt) > now_at or (boundary.view == number and not begun):
            released = self._early.keep(sender, boundary, handle, relay)
            return [Release(released)] if released else []
        return [Release((handle,))]

    def on_share(self, s: Situation, sender: Peer, share: Share) -> Sequence[Effect]:
        begin = self.begin
        if s.view is None or share.lineage != s.view.lineage.id or sender not in s.members:
            return []
        now_at = (begin.view, begin.attempt) if begin is not None else (-1, Attempt(-1, 0))
        if self.work is not None and (share.view, share.attempt) == now_at:
            return self.work.on_share(sender, share, s.now)
        if (share.view, share.attempt) > now_at:
            self._early_shares[(sender, share.stage)] = share
        return []

    def on_show(self, s: Situation, sender: Peer, show: Show) -> Sequence[Effect]:
        named = self.begin is not None and any(peer == sender for _, peer in self.begin.learners)
        here = self.work is not None and s.of_view(show.lineage, show.view) and (sender in s.members or named)
        return self.work.showing.on_show(sender, show) if here and self.work is not None else []

    def on_given(self, s: Situation, sender: Peer, given: WasGiven) -> Outcome:
        """Whom we check says what it was given."""
        out = Outcome()
        if self.work is not None and s.of_view(given.lineage, given.view) and sender in s.members:
            ended, proof = self.copy_trials.on_given(s, sender, given)
            out.extend(ended)
            out.extend(self.work.convict_of_tensor(proof) if proof else ())
            out.extend(self.work.on_given(sender, given))
            self._look_at_trial(s, out, self.work)
        return out

    def on_convicted(self, convicted: Mapping[str, Convicted], case: Convicted) -> None:
        """Somebody has been: what it showed us tells nothing about others."""
        liar = case.accusation.giver
        if case.proof and liar is not None and liar.id in convicted and self.work is not None:
            self.work.disbelieve(liar)

    def on_judge(self, s: Situation, sender: Peer, judge: Judge) -> Sequence[Effect]:
        """Rule 50, from our leader."""
        if s.view is None or sender != s.view.leader or not s.of_view(judge.lineage, judge.view):
            return []
        able = judge.stage in s.mine or judge.beside >= 0
        here = s.member and self.work is not None and able and judge.accused in s.members
        return self.work.judge(judge, s.now) if here and self.work is not None else []

    def on_doubted(self, s: Situation, sender: Peer, doubted: Doubted) -> Outcome:
        return self._watching.on_doubted(s, sender, doubted, self.begin)

    def on_stored(self, s: Situation, sender: Peer, stored: Stored) -> Sequence[Effect]:
        return self.work.on_stored(sender, stored, s.now) if self.work is not None else []

    def on_done(self, s: Situation, done: Done) -> Outcome:
        if isinstance(done.task, Sample):
            self.copy_trials.on_sample(done)
            return self.copy_trials.go_on(s, self.work, self.copies)
        of_copy = isinstance(done.task, Recount) and done.task.copy is not None
        if of_copy or isinstance(done.task, Retrace | Course):
            out = self.copy_trials.on_done(s, done)
            self._say_what_is_refuted(s, out)
            return out.extended(self.copy_trials.go_on(s, self.work, self.copies))
        self._task_since = s.now
        if self.work is None or s.view is None or done.task.attempt != self.work.begin.attempt:
            return Outcome([Release((done.output,))] if done.output is not None else [])
        self._has_done(s)
        out = Outcome(self.work.on_done(done, s.now, s.view.leader))
        self._look_at_parts(out, done)
        out.extend(self._watching.on_done(s, self.work, done))
        self._look_at_trial(s, out, self.work)
        out.extend(self.copy_trials.met(s, done))
        out.extend(self.copy_trials.go_on(s, self.work, self.copies))
        return out.extended(self._held_begin(s))

    def _look_at_parts(self, out: Outcome, done: Done) -> None:
        """Of a sum, what others gave to our piece of it, and made of theirs."""
        stage, step = done.task.stage, done.task.step
        seen = [("gave to", doubt) for doubt in self.doubts.see(stage, step, done.parts)]
        seen += [("made of its piece of", doubt) for doubt in self.doubts.see_sums(stage, step, done.sums)]
        for did, doubt in seen:
            about = f"what {doubt.peer} {did} the sum of stage {stage} in step {step} is {doubt.reason}"
            out.note("doubt", about, peer=doubt.peer.id, stage=str(stage), step=str(step))

    def _look_at_trial(self, s: Situation, out: Outcome, work: StepWork) -> None:
        """Of what was lent to us. Weights that are not to be believed are dropped; with nobody else to lend the stage,
        we do not learn it."""
        if work.trial is not None and work.trial.rebuilt >= 0:
            self._refuse_donor(s, out, work, work.trial, self.donor_trials.judge(work.trial, out))
        if (lot := self.donor_trials.draw(s, work)) is not None:
            out.extend(work.try_out(lot, s.now))
        self._still_untried(work)
        if work.trial is None or work.trial.rebuilt >= 0 or s.view is None:
            return
        refuted = self.trials.judge(s, work.trial, out)
        self._still_untried(work)
        for stage in refuted:
            work.lose(stage)
            self._own.forget(out, stage)
        if refuted and s.member and (refuted[0], work.trial.of) in self.trials.refuted:
            trial = work.trial
            out.send(s.view.leader, work.accuse(refuted[0], trial.of, trial.refuted, trial.distance))
        given_up = tuple(stage for stage in refuted if stage in self.trials.refused)
        if given_up:
            self.learning = tuple(stage for stage in self.learning if stage not in given_up)
            reason = f"it was lent other weights than {work.trial.of} works with"
            lineage, number = s.view.lineage.id, s.view.number
            out.send(s.view.leader, Answer(lineage, number, given_up, False, (), reason, True))

    def _still_untried(self, work: StepWork) -> None:
        work.untried.intersection_update(self._own.untried)

    def _refuse_donor(self, s: Situation, out: Outcome, work: StepWork, trial: Check, donor: Donor | None) -> None:
        """The stage that we have made of what this one lent goes, and somebody makes it anew without."""
        if donor is None or s.view is None:
            return
        work.give_up(trial.refuted, donor.stage, -1, donor.peer, trial.distance)
        assert work.poison is not None
        out.send(s.view.leader, work.poison)
        work.lose(trial.rebuilt)
        self._own.forget(out, trial.rebuilt)
        reason = f"{NOT_LENT}: {donor.peer} lent other weights of stage {donor.stage} for it"
        out.extend(self.departure.give_up(s, (trial.rebuilt,), reason))

    def on_kept(self, s: Situation, event: Kept) -> Outcome:
        """A copy is whole."""
        out = self.copies.on_kept(event)
        return out.extended(self.copy_trials.go_on(s, self.work, self.copies))

    def _say_what_is_refuted(self, s: Situation, out: Outcome) -> None:
        """Of a stage's only holder, to the leader; of the leader, to all others and us, who choose another one (53)."""
        refuted, work = self.copy_trials.refuted, self.work
        if refuted is not None and work is not None and s.view is not None and work.view == s.view:
            said = work.accuse(refuted.stage, refuted.holder, refuted.reason, refuted.distance)
            leads = refuted.holder == s.view.leader
            for peer in sorted(s.members - {refuted.holder}) if leads else [s.view.leader]:
                out.send(peer, said)

    def _has_done(self, s: Situation) -> None:
        self.done += 1
        self.moves.told(s.me, self.done, s.now)

    def on_sum_owed(self, event: SumOwed) -> None:
        if self.work is not None:
            self.work.groups.on_sum_owed(event)

    def on_link_up(self, s: Situation, peer: Peer) -> Sequence[Effect]:
        return self.work.resend_to(peer, s.now) if self.work is not None else []

    def on_leader_at(self, step: int, now: float) -> None:
        """The leader is at this step."""
        if self.begin is not None and step == self.begin.step:
            self.named_at = now

    @property
    def unsettled(self) -> bool:
        """Compute may take more, or the leader is not told of all that is done. Asked at every event."""
        work = self.work
        if work is None:
            return False
        return work.can_advance or (work.complete and not work.checking and work.ready_stages > self._ready_results)

    def advance(self, s: Situation) -> Outcome:
        """Give compute what it can do, and tell the leader when all is done."""
        out, work, begin = Outcome(), self.work, self.begin
        if work is None or begin is None or s.view is None or not self.compute_ready:
            return out
        here = begin.view == s.view.number
        if work.can_advance:
            idle = not work.busy
            out.extend(work.advance(s.now, here))
            if idle and work.busy:
                self._task_since = s.now
        if here and work.complete and not work.checking:
            self._say_ready(s, s.view, out, work, self._ready_results)
        return out

    def _say_ready(self, s: Situation, view: View, out: Outcome, work: StepWork, told: int = -1) -> None:
        """Unless it says no more than the last one, which told of so many stages."""
        if work.ready_stages > told:
            self._ready_sent, self._ready_results = s.now, work.ready_stages
            out.send(view.leader, work.ready())

    # -- trouble and time

    def on_compute_ready(self, event: ComputeReady) -> None:
        self.compute_ready = True
        self.capacity = event.capacity if self._fits is None else min(event.capacity, self._fits)
        self.may_head = event.head
        self.tokens_per_second = event.tokens_per_second
        self._live_activations = event.live_activations

    def on_stage_lost(self, s: Situation, lost: StageLost) -> Outcome:
        """What we had of one stage is gone: give it up, and go on with the others. A step that the stage has a part in
        cannot be finished here, unless it is complete already. Who has met its limit does not claim as much again."""
        out, stage, reason = Outcome(), lost.stage, lost.reason
        held = {*self.weights.in_memory, *self.installs.stages, stage}
        said = f"{spoken_stage(stage)} is lost here, and no other: {reason}"
        if lost.out_of_memory:
            self._no_memory.add(stage)
            self._fits = len(held) - 1 if self._fits is None else min(len(held) - 1, self._fits)
            self.capacity = min(self.capacity, self._fits)
            said += f"; from now on this node holds {self._fits} stages at most"
        if self.work is not None and stage in self.work.stages:
            self._stop_work(s, out)
        self.completed.lose(stage)
        self.weights.lose_given_up(stage)
        self.installs.drop(stage)
        self.learning = tuple(learnt for learnt in self.learning if learnt != stage)
        self._own.forget(out, stage)
        out.note("compute", said, stages=str(stage))
        if stage in s.mine:
            out.extend(self.departure.give_up(s, (stage,), reason))
        return out

    def on_compute_lost(self, s: Situation, reason: str) -> Outcome:
        """All weights and tensors are gone: withdraw at once, and be a standby when compute is back. Nothing is begun
        or learnt before."""
        out = Outcome()
        self.compute_ready = False
        self._held_back, self.learning = None, ()
        self._own.lose_all()
        self.completed.drop()
        out.extend(self.copy_trials.drop())
        _release(out, self._early.drop(None))
        self._keep_told(s)
        if self.work is not None:
            out.extend(self.work.let_go())
            if self.work.begin.training:
                self._left.append(self.work.begin.attempt)
        self.work = self.begin = None
        out.append(Discard(None))
        out.note("compute", f"compute is lost: {reason}")
        out.append(PublishView(None))
        if s.mine:
            out.extend(self.departure.give_up(s, s.mine, "compute is lost"))
        return out

    def _restart_compute(self, s: Situation, out: Outcome, reason: str) -> None:
        out.append(RestartCompute(reason))
        out.extend(self.on_compute_lost(s, reason))

    def beat(self, s: Situation) -> Outcome:
        """Resend Status, Ready and tensors; retry installs; notice a task that does not end."""
        out, settings = Outcome(), s.settings
        out.extend(self._held_begin(s))
        if self.learning and not s.member and s.now - self.named_at > 2 * settings.lease_seconds:
            self._stop_learning(s, out)
        if not (s.member or self.learning) or s.view is None:
            return out
        out.extend(self.departure.say(s))
        if s.member and (self.begin is None or self.begin.view != s.view.number):
            self._tell_leader(s, out, s.view)
        out.extend(self.tell_disk(s))
        out.extend(self.rolls.say(s, self.disk.told()))
        hung = self.installs.hung(s)
        if hung is not None:  # another may try (invariant I8); compute may be what hangs
            reason = f"the rebuild of stage {hung} takes longer than {settings.install_seconds:.0f} s"
            self._restart_compute(s, out, reason)
            return out
        if self.work is not None:
            self._beat_at_work(s, s.view, out, self.work)
        return out

    def _beat_at_work(self, s: Situation, view: View, out: Outcome, work: StepWork) -> None:
        settings = s.settings
        if self._ready_sent >= 0 and s.now - self._ready_sent >= settings.resend_seconds and work.complete:
            self._say_ready(s, view, out, work)
        out.extend(work.beat(s.now, s.liveness.up))
        self._look_at_trial(s, out, work)
        self._say_what_is_refuted(s, out)
        out.extend(self.copy_trials.beat(s))
        out.extend(self.copy_trials.go_on(s, work, self.copies))
        self._say_waits(s, view, out, work)
        begin = work.begin  # weights that are fetched may fill a line for long
        least = settings.stall_seconds if begin.installs or begin.learners else settings.lease_seconds
        for kept in work.outbox.stalled(s.now, settings.stall_seconds, least):
            where = f"microbatch {kept.boundary.microbatch} at visit {kept.boundary.visit} is not acknowledged"
            out.suspect(s, kept.to, "stalled", where)
        for stage in self.installs.too_late(s):
            if self.installs.drop(stage):
                self._own.forget(out, stage)
        out.extend(self.installs.beat(s))
        stuck = work.groups.stuck(s.now - settings.sum_seconds, s.liveness.grace)
        if stuck is not None and work.poison is None:
            work.give_up(f"the reduction of stage {stuck} does not end", stuck)
        if work.poison is not None:
            out.send(view.leader, work.poison)
        if self.busy_seconds(s) > settings.task_seconds:
            self._restart_compute(s, out, f"a task has been running for {self.busy_seconds(s):.0f} s")

    def _say_waits(self, s: Situation, view: View, out: Outcome, work: StepWork) -> None:
        """Rule 38: whom our work on the step waits for, and once that it does so no longer; nothing in a step that goes
        as usual."""
        before, begin = s.now - 2 * s.settings.heartbeat_seconds, work.begin
        still = self._task_since < before and not work.complete
        waits = work.waits(before, still) if s.member and begin.view == view.number else ()
        if waits or self._waited:
            out.send(view.leader, Waits(begin.lineage, view.number, begin.step, begin.attempt, waits))
        self._waited = bool(waits)

    def _stop_learning(self, s: Situation, out: Outcome) -> None:
        """The leader names us no longer."""
        self._stop_work(s, out)
        for stage in self.learning:
            if stage in self.versions:
                self._own.forget(out, stage)
        self.learning = ()
        self._own.break_off(out, ())


def _release(out: Outcome, handles: tuple[Handle, ...]) -> None:
    if handles:
        out.append(Release(handles))
