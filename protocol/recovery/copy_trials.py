"""What the only holder of a stage passes on, tried on the copy that it lends (rule 53).

Nobody else holds such a stage, so nobody can check its holder as those of a group check each other. But who keeps a
shadow of it has the weights of one step. While that step is computed the keeper asks those beside the holder for the
tensors of some of its visits, as their makers signed them. When the copy is whole, and compute has nothing else to do,
the visits are done again on it, some steps later where the line is thin.

    copy of the base → some visits of that step → tensors of those beside → the copy is whole → Recount of each

What these visits give to the gradient then tells how the holder trained the stage in that step (step_trace.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from ftnode.protocol.recovery.copies import OwnCopies, every
from ftnode.protocol.recovery.step_trace import StepTrace, enough, grown, spoken
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.check import TRIAL_BLOCKS, Check, Lot
from ftnode.protocol.step.doubts import Doubts
from ftnode.protocol.step.routes import route_of, stages_beside
from ftnode.protocol.step.tensor_holds import Holds
from ftnode.protocol.wire.admission import REASON_MAX
from ftnode.protocol.words.effects import NOT_DONE, Backward, Compute, Effect, Recount, Release, Retrace, Sample
from ftnode.protocol.words.events import Done
from ftnode.protocol.words.messages import Boundary, Donor, SealedTensor, WasGiven
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Handle, Peer, Version, spoken_stage
from ftnode.protocol.words.view import View

ASKS_A_BEAT: Final = 8
"""A tensor that had not been made is asked for again after such a part of a heartbeat."""
COPIES_ROUND: Final = 2.0
"""What an honest holder passed on is at most so many times as far off on a copy as on its weights: the copy's encoding
rounds as well (docs/reference/liars.md has figures)."""


class Refuted(NamedTuple):
    """What a holder passed on is not what its visits give, or its step not what they give to the gradient."""

    stage: int
    holder: Peer
    reason: str
    distance: float


class _Trial:
    """Of one copy."""

    def __init__(
        self, me: Peer, lot: Lot, version: Version, work: StepWork, settings: Settings, trace: StepTrace
    ) -> None:  # fmt: skip
        self.stage, self.of, self.version = lot.learnt[0], lot.of, version
        self.trace, self._showing = trace, work.showing
        self.holds = Holds(beside=work.holds)
        view, begin = work.view, work.begin
        self.check = Check(me, lot, view, begin, settings, self.holds)
        self.collects = True
        """The step is under way whose visits they are."""
        self.met = set[int]()
        """Microbatches of which it was drawn whether they are looked at."""
        self.chosen = 0
        self.due: deque[Recount] = deque()
        """Of which all is here."""
        self.done_again = 0
        """Visits, and what the holder passed on is what they give."""
        self.running: Recount | Retrace | None = None
        self._asks_at, self._pause = 0.0, 0.0

    def asks_again(self, s: Situation) -> list[Effect]:
        """For what had not been made when we asked, with pauses that double up to a heartbeat."""
        if not self.collects or s.now < self._asks_at:
            return []
        self.asked(s.now + self._pause, min(2 * self._pause, s.settings.heartbeat_seconds))
        return self.check.ask_again()

    def asked(self, at: float, pause: float) -> None:
        """The next time is not before `at`, and the one after that `pause` later."""
        self._asks_at, self._pause = at, pause

    def seen_by_us(self) -> list[tuple[Boundary, Handle]]:
        """What passed between the holder and us, of what is wanted: nobody else has to show us that."""
        found = [self._showing.own(key) for key in self.check.lacking()] if self.collects else []
        return [each for each in found if each is not None]

    @property
    def over(self) -> bool:
        traces = self.done_again and self.trace.goes_on
        return not (self.collects or self.due or self.running or traces)


class CopyTrials:
    """Of one keeper, one copy at a time."""

    def __init__(self) -> None:
        self._trial: _Trial | None = None
        self._drawn: dict[int, Version] = {}
        """Stage → the copy of which it was drawn last whether it is tried."""
        self._against: dict[tuple[int, Peer], float] = {}
        """What speaks against the training of stages' only holders; nothing where they are not here."""
        self._fetches: dict[tuple[int, Peer], tuple[int, int]] = {}
        """For those: the step from which on a copy that is not due is fetched for it, and how many steps later the next
        one if nothing comes of that."""
        self.refuted: Refuted | None = None
        """What the leader is told until the stage has others, or another copy is tried."""

    @property
    def handles(self) -> frozenset[Handle]:
        """Of the tensors that are held here, of which the attempt may hold some, too."""
        return self._trial.holds.handles if self._trial is not None else frozenset()

    # -- whose visits, and which

    def begin(self, s: Situation, work: StepWork, copies: OwnCopies, doubts: Doubts) -> Outcome:
        """Another attempt: of what was made in the one before nobody shows anything any more."""
        out, view, begin = Outcome(), s.view, work.begin
        self._collects_no_more(out)
        if self._trial is not None and (sample := self._trial.trace.on_begin(begin)) is not None:
            out.append(Compute(sample))
        self._let_go(s, out, copies)
        if self.refuted is not None and (self.refuted.stage, s.me) not in begin.keepers:
            self.refuted = None
        member = view is not None and s.member and begin.attempt.view == view.number
        tries = member and begin.training and not begin.skip and s.settings.checks
        if view is None or not tries:
            return out
        kept = sorted((stage for stage, keeper in begin.keepers if keeper == s.me), key=lambda stage: stage == HEAD)
        for stage in kept:  # there are copies of the head more often, so that a trial of it gives way to others
            if self._trial is not None and (stage == HEAD or self._trial.stage != HEAD):
                break
            of, here = _holder_that_is_seen(s, view, stage), copies.keeps(stage, begin.base)
            if of is None or self._drawn.get(stage) == begin.base or not (here or copies.may_fetch(stage)):
                continue
            if here and copies.lent_by(stage, begin.base) != of:
                continue  # of who held the stage before: ours is not what this one has made of others
            doubted = doubts.choose(begin.step, [of], s.chance) is not None
            doubted = doubted or self._hastens(stage, of, begin.step, here)
            if not (here or doubted):
                continue
            if not here:
                out.append(copies.fetch(s, begin, stage))
            self._drawn[stage] = begin.base
            if doubted or s.chance.random() < _chance(stage, s.settings):
                self._end(out)
                lot = Lot(of, 0.0, s.chance.getrandbits(32), (stage,), copy=begin.base)
                donor = Donor(stage, of, s.contacts.get(of, ()))
                trace = StepTrace(donor, begin.base, begin.attempt, s.chance.getrandbits(32))
                self._trial, self.refuted = _Trial(s.me, lot, begin.base, work, s.settings, trace), None
                if stage == HEAD:
                    trace.end()  # microbatches train embeddings of other words each, so that a few say nothing of all
                else:
                    out.append(Compute(trace.begin()))
                break
        return out

    def _hastens(self, stage: int, of: Peer, step: int, here: bool) -> bool:
        """Something speaks against the holder. A copy that is not due is fetched for that, but not in each step, where
        nothing comes of them: it may lend no samples."""
        if not self._against.get((stage, of), 0.0):
            return False
        if not here:
            first, pause = self._fetches.get((stage, of), (step, 1))
            if step < first:
                return False
            self._fetches[stage, of] = step + pause, 2 * pause
        return True

    def on_view(self, s: Situation, copies: OwnCopies) -> Outcome:
        """What others show is of an attempt in one view."""
        out = Outcome()
        self._collects_no_more(out)
        self._let_go(s, out, copies)
        self._against = {whose: found for whose, found in self._against.items() if _holds_alone(s, *whose)}
        self._fetches = {whose: at for whose, at in self._fetches.items() if whose in self._against}
        if self.refuted is not None and not _holds_alone(s, self.refuted.stage, self.refuted.holder):
            self.refuted = None
        return out

    def drop(self) -> Outcome:
        """Compute is lost."""
        out = Outcome()
        self._end(out)
        return out

    def forget(self) -> Outcome:
        """The lineage is another one."""
        self.refuted = None
        self._against.clear()
        self._fetches.clear()
        return self.drop()

    def met(self, s: Situation, done: Done) -> Outcome:
        """A task of our own is done. Of a microbatch that came back to us the only holder has most behind it."""
        out, trial, task = Outcome(), self._trial, done.task
        if trial is None or not trial.collects or done.fault:
            return out
        if isinstance(task, Backward) and task.microbatch not in trial.met:
            trial.met.add(task.microbatch)
            if trial.chosen < TRIAL_BLOCKS and s.chance.random() * _expected(s, trial.check.view) < TRIAL_BLOCKS:
                visits = _visits(trial.stage, task.microbatch, trial.check.view, s.settings)
                trial.chosen += 1
                trial.check.told(trial.stage, visits, s.now)
                asked = trial.check.ask()
                if asked is None:
                    self._end(out)
                    return out
                out.extend(asked[0])
                pause = s.settings.heartbeat_seconds / ASKS_A_BEAT
                trial.asked(s.now + pause, pause)
        for boundary, handle in trial.seen_by_us():
            out.extend(self.show(boundary, handle))
        return out.extended(trial.asks_again(s))

    def beat(self, s: Situation) -> Sequence[Effect]:
        """Also while no task of ours is done."""
        return self._trial.asks_again(s) if self._trial is not None else []

    # -- what others show

    def wants(self, sender: Peer, boundary: Boundary) -> bool:
        trial = self._trial
        return trial is not None and trial.collects and sender != trial.of and trial.check.wants(sender, boundary)

    def show(self, boundary: Boundary, handle: Handle) -> Outcome:
        """It is one that we asked for. Where all is here of what a visit was given, the holder is asked at once whether
        it was given that: it forgets it with the step."""
        out, trial = Outcome(), self._trial
        assert trial is not None
        for task in trial.check.show(boundary, handle):
            assert isinstance(task, Recount)
            trial.due.append(replace(task, key=trial.trace.key if trial.trace.goes_on else -1))
            question = trial.check.asking_whether_given(task)
            out.extend([question] if question is not None else [])
        return out

    def on_given(self, s: Situation, sender: Peer, given: WasGiven) -> tuple[Outcome, tuple[SealedTensor, ...]]:
        """The holder was given another tensor than we were shown. The two that somebody signed for one place."""
        out, trial = Outcome(), self._trial
        if trial is None or sender != trial.of:
            return out, ()
        check = trial.check
        place = check.view.number, check.begin.step, check.begin.attempt
        proof = check.shown.contradiction(given.other) if place == (given.view, given.step, given.attempt) else ()
        if proof:
            self._end(out)
        return out, proof

    # -- done again

    def go_on(self, s: Situation, work: StepWork | None, copies: OwnCopies) -> Outcome:
        """Where compute has nothing else to do."""
        out, trial = Outcome(), self._trial
        self._let_go(s, out, copies)
        idle = work is None or not (work.busy or work.can_advance)
        if trial is None or trial is not self._trial or trial.running is not None or not idle:
            return out
        if not trial.due and not trial.collects and trial.done_again:
            trial.running = trial.trace.due()
        elif trial.due and copies.has(trial.stage, trial.version):
            trial.running = trial.due.popleft()
        if trial.running is not None:
            out.append(Compute(trial.running))
        return out

    def on_sample(self, done: Done) -> None:
        """Of the holder's state, or why there is none."""
        trial, task = self._trial, done.task
        if trial is not None and isinstance(task, Sample) and task.donor.peer == trial.of:
            trial.trace.on_sample(task, done.fault)

    def on_retraced(self, s: Situation, done: Done) -> Outcome:
        """It is known how the holder trained its stage in the step."""
        out, trial, task = Outcome(), self._trial, done.task
        if trial is None or not isinstance(task, Retrace) or task != trial.running:
            return out
        if not done.fault and done.value:
            whose = trial.stage, trial.of
            before = self._against.get(whose, 0.0)
            now = grown(before, done.value, trial.done_again, s.settings.microbatches)
            self._against[whose] = now
            self._fetches.pop(whose, None)
            if enough(now, done.value):
                reason = f"it does not train with what its microbatches give: in step {task.step} {spoken(done.value)}"
                self._refute(out, trial, reason, done.value, task.step)
        self._end(out)
        return out

    def on_done(self, s: Situation, done: Done) -> Outcome:
        """A visit is done again on the copy."""
        out, trial, task = Outcome(), self._trial, done.task
        if trial is None or not isinstance(task, Recount) or task != trial.running:
            return out
        trial.running = None
        self._release(out, trial.check.done(task, s.now))
        if done.value == NOT_DONE:
            return out
        if not done.fault and done.value <= COPIES_ROUND * s.settings.tensor_tolerance:
            trial.done_again += 1
            return out
        away = done.fault or f"{done.value:.2g} of its size away from what its visit gives"
        reason = f"what it passed on of microbatch {task.microbatch} in step {task.step} is {away}, on the copy it lent"
        self._refute(out, trial, reason, 1.0 if done.fault else done.value, task.step)
        self._end(out)
        return out

    def _refute(self, out: Outcome, trial: _Trial, reason: str, distance: float, step: int) -> None:
        self.refuted = Refuted(trial.stage, trial.of, reason[:REASON_MAX], distance)
        out.note("doubt", f"{trial.of}, the only holder of {spoken_stage(trial.stage)}: {reason}", peer=trial.of.id,
                 stage=str(trial.stage), step=str(step))  # fmt: skip

    # -- its end

    def _collects_no_more(self, out: Outcome) -> None:
        trial = self._trial
        if trial is not None and trial.collects:
            trial.collects = False
            self._release(out, trial.check.forget_unshown())

    def _let_go(self, s: Situation, out: Outcome, copies: OwnCopies) -> None:
        """Of a trial that is over, whose copy will not be whole, or of a holder that others hold the stage with."""
        trial = self._trial
        if trial is None:
            return
        if trial.over or not copies.keeps(trial.stage, trial.version) or not _holds_alone(s, trial.stage, trial.of):
            self._end(out)

    def _end(self, out: Outcome) -> None:
        if self._trial is not None:
            self._release(out, self._trial.holds.let_go_of_all())
            self._trial = None

    def _release(self, out: Outcome, handles: tuple[Handle, ...]) -> None:
        if handles:
            out.append(Release(handles))


def _holds_alone(s: Situation, stage: int, holder: Peer) -> bool:
    return s.view is not None and s.view.holders[stage] == (holder,)


def _holder_that_is_seen(s: Situation, view: View, stage: int) -> Peer | None:
    """The only holder of a stage, if it holds none beside: others know what passed (check.shown_of). The head's visits
    are done again by who has the text."""
    if len(view.holders[stage]) != 1 or (stage == HEAD and not s.own.may_head):
        return None
    (holder,) = view.holders[stage]
    beside = [view.holders[near] for near in stages_beside(view, stage, s.settings.swap)]
    seen = holder != s.me and all(group and holder not in group for group in beside)
    return holder if seen else None


def _chance(stage: int, settings: Settings) -> float:
    """So that the share `checks` of the holder's visits is done again."""
    return settings.checks * every(stage, settings) * settings.microbatches / TRIAL_BLOCKS


def _expected(s: Situation, view: View) -> float:
    """Microbatches that come to us in a step."""
    return s.settings.microbatches / max(1, min((len(view.holders[stage]) for stage in s.mine), default=1))


def _visits(stage: int, microbatch: int, view: View, settings: Settings) -> list[tuple[int, int]]:
    route = route_of(settings, microbatch, view)
    return [(microbatch, visit) for visit, at in enumerate(route) if at == stage]
