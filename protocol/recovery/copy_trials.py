"""What the only holder of a stage passes on, tried on the copy that it lends (rule 53).

Nobody else holds such a stage, so nobody can check its holder as those of a group check each other. But who keeps a
shadow of it has the weights of one step. While that step is computed the keeper asks those beside the holder for the
tensors of some of its visits, as their makers signed them. When the copy is whole, and compute has nothing else to do,
the visits are done again on it, some steps later where the line is thin.

    copy of the base → some visits of that step → tensors of those beside → the copy is whole → Recount of each

What these visits give to the gradient then tells how the holder trained the stage in that step (step_trace.py), and
with the next copy that is tried, whether the weights went against it since. For that the holder is asked for nothing.
So that it does not know in which step to train rightly, some visits of a later step are done again on the same copy,
which is as good for this: a late trial.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from ftnode.protocol.recovery.copies import OwnCopies, every
from ftnode.protocol.recovery.step_trace import (
    COURSE_STEPS_MAX,
    StepTrace,
    enough,
    grown,
    grown_by_course,
    spoken,
)
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.step.check import TRIAL_BLOCKS, Check, Lot
from ftnode.protocol.step.doubts import Doubts
from ftnode.protocol.step.routes import route_of, stages_beside
from ftnode.protocol.step.tensor_holds import Holds
from ftnode.protocol.wire.admission import REASON_MAX
from ftnode.protocol.words.effects import NOT_DONE, Backward, Compute, Course, Effect, Recount, Release, Retrace, Sample
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
LATE_STEPS: Final = 5
"""After the one that a copy is of, visits of a late trial are at most of that step."""
LATE_BLOCKS: Final = 1
"""Visits of it, so that all trials are at most half as many again."""
LATE_CHANCE: Final = 1 / 2
"""Of each of these, to be the one."""
WAITS_STEPS: Final = LATE_STEPS + 1
"""Of a holder that trains rightly when it is asked for copies, one that is not due comes so many steps after the last,
so that there is time for a late trial between them."""


class Refuted(NamedTuple):
    """What a holder passed on is not what its visits give, or its step not what they give to the gradient."""

    stage: int
    holder: Peer
    reason: str
    distance: float


class _Trial:
    """Of one copy."""

    def __init__(
        self, me: Peer, lot: Lot, version: Version, work: StepWork, settings: Settings, trace: StepTrace,
        course: Course | None = None,
    ) -> None:  # fmt: skip
        self.stage, self.of, self.version = lot.learnt[0], lot.of, version
        self.course = course
        """From the last copy that was tried to this one, until it is looked at."""
        self.late = work.begin.base != lot.copy
        self.blocks = LATE_BLOCKS if self.late else TRIAL_BLOCKS
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
        self.running: Recount | Retrace | Course | None = None
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
        goes_on = self.done_again and (self.trace.goes_on or self.course is not None)
        return not (self.collects or self.due or self.running or goes_on)


@dataclass(slots=True)
class _Known:
    """Of a stage's only holder: what its steps speak against it, and the way of its weights. They add up apart, since
    each sees what the other one does not."""

    steps: float = 0.0
    course: float = 0.0
    last: Version | None = None
    """The newest copy on which some of its visits were done again."""
    late: bool = False
    """Visits of a later step were drawn, too."""
    adapts: bool = False
    """Its weights went the right way when a copy was fetched that was not due, and had not before."""
    fetch_from: int = 0
    """The step from which on a copy that is not due is fetched, where something speaks against it."""
    pause: int = 1
    """So many steps later the next one, if nothing comes of that."""

    @property
    def doubted(self) -> bool:
        return max(self.steps, self.course) > 0.0

    def learnt(self) -> None:
        """Something came of a copy."""
        self.fetch_from, self.pause = 0, 1


class CopyTrials:
    """Of one keeper, one copy at a time."""

    def __init__(self) -> None:
        self._trial: _Trial | None = None
        self._drawn: dict[int, Version] = {}
        """Stage → the copy of which it was drawn last whether it is tried."""
        self._known: dict[tuple[int, Peer], _Known] = {}
        """By stage and only holder."""
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
        if begin.skip:
            for known in self._known.values():
                known.last = None  # weights that were to stay went nowhere
        if self.refuted is not None and (self.refuted.stage, s.me) not in begin.keepers:
            self.refuted = None
        member = view is not None and s.member and begin.attempt.view == view.number
        tries = member and begin.training and not begin.skip and s.settings.checks
        if view is None or not tries:
            return out
        kept = [stage for stage, keeper in begin.keepers if keeper == s.me]
        blocks = sorted(stage for stage in kept if stage != HEAD)
        # There are copies of the head more often, so that a trial of it gives way to others. So does a late one.
        trial = self._trial
        gives_way = trial is None or trial.stage == HEAD
        if (gives_way or (trial is not None and trial.late)) and any(
            self._begins(s, out, view, work, copies, doubts, stage) for stage in blocks
        ):
            return out
        if gives_way and self._begin_late(s, out, view, work, copies, blocks):
            return out
        if self._trial is None and HEAD in kept:
            self._begins(s, out, view, work, copies, doubts, HEAD)
        return out

    def _begins(
        self, s: Situation, out: Outcome, view: View, work: StepWork, copies: OwnCopies, doubts: Doubts, stage: int
    ) -> bool:
        """A trial of the copy of this stage of the Begin's base, if there is one, and it is drawn."""
        begin = work.begin
        of, here = _holder_that_is_seen(s, view, stage), copies.keeps(stage, begin.base)
        if of is None or self._drawn.get(stage) == begin.base or not (here or copies.may_fetch(stage)):
            return False
        if here and copies.lent_by(stage, begin.base) != of:
            return False  # of who held the stage before: ours is not what this one has made of others
        doubted = doubts.choose(begin.step, [of], s.chance) is not None
        doubted = doubted or self._hastens(stage, of, begin.step, here)
        if not (here or doubted):
            return False
        if not here:
            out.append(copies.fetch(s, begin, stage))
        self._drawn[stage] = begin.base
        if not doubted and s.chance.random() >= _chance(stage, s.settings):
            return False
        self._end(out)
        lot = Lot(of, 0.0, s.chance.getrandbits(32), (stage,), copy=begin.base)
        donor = Donor(stage, of, s.contacts.get(of, ()))
        trace = StepTrace(donor, begin.base, begin.attempt, s.chance.getrandbits(32))
        course = self._course(stage, of, begin.base)
        self._trial, self.refuted = _Trial(s.me, lot, begin.base, work, s.settings, trace, course), None
        if stage == HEAD:
            trace.end()  # microbatches train embeddings of other words each, so that a few say nothing of all
        else:
            out.append(Compute(trace.begin()))
        return True

    def _begin_late(
        self, s: Situation, out: Outcome, view: View, work: StepWork, copies: OwnCopies, stages: Sequence[int]
    ) -> bool:
        """On the last copy that was tried, some visits of the step that begins. Nobody asks the holder about these. So
        they only count where it passed on about what they give."""
        begin = work.begin
        for stage in stages:
            of = _holder_that_is_seen(s, view, stage)
            known = self._of(stage, of) if of is not None else _Known()
            if of is None or known.last is None or known.late or not copies.has(stage, known.last):
                continue
            if not 0 < begin.base.step - known.last.step <= LATE_STEPS or s.chance.random() >= LATE_CHANCE:
                continue
            self._end(out)
            known.late, lot = True, Lot(of, 0.0, s.chance.getrandbits(32), (stage,), copy=known.last)
            trace = StepTrace(Donor(stage, of, ()), known.last, begin.attempt, 0)
            trace.end()
            self._trial = _Trial(s.me, lot, known.last, work, s.settings, trace)
            return True
        return False

    def _course(self, stage: int, of: Peer, base: Version) -> Course | None:
        """From the last copy of that holder on."""
        before = self._of(stage, of).last
        near = before is not None and 0 < base.step - before.step <= COURSE_STEPS_MAX
        return Course(stage, before, base) if before is not None and near and stage != HEAD else None

    def _hastens(self, stage: int, of: Peer, step: int, here: bool) -> bool:
        """Something speaks against the holder. A copy that is not due is fetched for that, but not in each step, where
        nothing comes of them: it may lend no samples."""
        known = self._of(stage, of)
        waits = known.adapts and known.last is not None and not known.steps and step <= known.last.step + WAITS_STEPS
        if not known.doubted or (not here and (waits or step < known.fetch_from)):
            return False
        if not here:
            known.fetch_from, known.pause = step + known.pause, 2 * known.pause
        return True

    def _of(self, stage: int, holder: Peer) -> _Known:
        return self._known.setdefault((stage, holder), _Known())

    def on_view(self, s: Situation, copies: OwnCopies) -> Outcome:
        """What others show is of an attempt in one view."""
        out = Outcome()
        self._collects_no_more(out)
        self._let_go(s, out, copies)
        self._known = {whose: known for whose, known in self._known.items() if _holds_alone(s, *whose)}
        if self.refuted is not None and not _holds_alone(s, self.refuted.stage, self.refuted.holder):
            self.refuted = None
        return out

    def drop(self) -> Outcome:
        """Compute is lost."""
        out = Outcome()
        self._end(out)
        for known in self._known.values():
            known.last = None
        return out

    def forget(self) -> Outcome:
        """The lineage is another one."""
        self.refuted = None
        self._known.clear()
        return self.drop()

    def met(self, s: Situation, done: Done) -> Outcome:
        """A task of our own is done. Of a microbatch that came back to us the only holder has most behind it."""
        out, trial, task = Outcome(), self._trial, done.task
        if trial is None or not trial.collects or done.fault:
            return out
        if isinstance(task, Backward) and task.microbatch not in trial.met:
            left = max(1.0, _expected(s, trial.check.view) - len(trial.met))
            trial.met.add(task.microbatch)
            if s.chance.random() * left < trial.blocks - trial.chosen:
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
            question = trial.check.asking_whether_given(task) if not trial.late else None
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
        if trial.done_again and trial.course is not None:
            trial.running, trial.course = trial.course, None
        elif not trial.due and not trial.collects and trial.done_again:
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

    def on_done(self, s: Situation, done: Done) -> Outcome:
        """It is known what a visit gives on the copy, how the holder trained its stage in the step, or which way the
        weights went."""
        out, trial, task = Outcome(), self._trial, done.task
        if trial is None or task != trial.running:
            return out
        trial.running = None
        if isinstance(task, Recount):
            self._on_recount(s, out, trial, task, done)
        elif isinstance(task, Course):
            self._on_course(out, trial, task, done)
        elif isinstance(task, Retrace):
            self._on_retrace(s, out, trial, task, done)
        return out

    def _on_retrace(self, s: Situation, out: Outcome, trial: _Trial, task: Retrace, done: Done) -> None:
        if not done.fault and done.value:
            known = self._of(trial.stage, trial.of)
            known.learnt()
            known.steps = grown(known.steps, done.value, trial.done_again, s.settings.microbatches)
            if enough(known.steps, done.value):
                reason = f"it does not train with what its microbatches give: in step {task.step} {spoken(done.value)}"
                self._refute(out, trial, reason, done.value, task.step)
        self._end(out)

    def _on_course(self, out: Outcome, trial: _Trial, task: Course, done: Done) -> None:
        if not done.fault:
            known = self._of(trial.stage, trial.of)
            if not known.steps:
                known.learnt()
            before, known.course = known.course, grown_by_course(known.course, done.value)
            known.adapts = known.adapts or known.course < before
            if enough(known.course):
                reason = (
                    f"its weights do not go the way of its microbatches: from step {task.before.step} to {task.step} "
                    f"by {done.value:.2g} standard deviations more than by chance"
                )
                self._refute(out, trial, reason, 1.0, task.step)
                self._end(out)

    def _on_recount(self, s: Situation, out: Outcome, trial: _Trial, task: Recount, done: Done) -> None:
        self._release(out, trial.check.done(task, s.now))
        if done.value == NOT_DONE or trial.late:
            return  # how far a late one is away says nothing
        if not done.fault and done.value <= COPIES_ROUND * s.settings.tensor_tolerance:
            trial.done_again += 1
            known = self._of(trial.stage, trial.of)
            known.late = known.late and known.last == trial.version
            known.last = trial.version
            return
        away = done.fault or f"{done.value:.2g} of its size away from what its visit gives"
        reason = f"what it passed on of microbatch {task.microbatch} in step {task.step} is {away}, on the copy it lent"
        self._refute(out, trial, reason, 1.0 if done.fault else done.value, task.step)
        self._end(out)

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
