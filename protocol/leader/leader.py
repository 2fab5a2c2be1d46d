"""What the leader of a view does: gather Statuses, begin and commit steps, and say when another view is due.

A role, made anew with each view this peer leads; only `LeaderMemory` outlives one. No tensor passes through it.
`Losses` and `Recruiting` say who goes and who comes, and `NextView` proposes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.leader.cases import Cases
from ftnode.protocol.leader.claims import tells_all
from ftnode.protocol.leader.disputes import Suspects
from ftnode.protocol.leader.duty import Duty
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.leader.leavers import Leavers
from ftnode.protocol.leader.lenders import REFUTED_BY, lent, uncounted
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.next_view import NextView
from ftnode.protocol.leader.omissions import Omissions
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.rebuilt_again import made_again
from ftnode.protocol.leader.recruiting import Recruiting
from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.leader.restart import Restart
from ftnode.protocol.leader.roll_call import RollCall
from ftnode.protocol.leader.spoilt_steps import odd_ones
from ftnode.protocol.leader.undoing import Undoing
from ftnode.protocol.recovery.copies import in_words, keepers
from ftnode.protocol.recovery.install_plans import Hopeless, plan_installs, usable_copies
from ftnode.protocol.recovery.standing import DONE_AGAIN, Standing, agree, standing, summarise
from ftnode.protocol.situation import GoOnFromDisks, Outcome, ShowView, Situation
from ftnode.protocol.step.credit import given_by
from ftnode.protocol.step.work_split import Paths, Shares, divide, paths_differ, repair
from ftnode.protocol.views.ballot import Balloting
from ftnode.protocol.views.lineage_rank import ABOUT
from ftnode.protocol.words.effects import Committed
from ftnode.protocol.words.messages import (
    HALTED,
    NOT_LENT,
    Answer,
    Begin,
    Commit,
    Heartbeat,
    Plan,
    Poisoned,
    PollReply,
    Ready,
    Resign,
    Rolled,
    Saved,
    Status,
    Suspect,
    Verdict,
    Waits,
    bare,
)
from ftnode.protocol.words.types import HEAD, Attempt, Credit, LentCopy, Peer, Version, next_version, spoken_stage
from ftnode.protocol.words.view import View

TRIES = 2
"""A step whose numbers are spoilt so often is skipped (rule 25)."""
SKIPS = 2
"""Of a step that is skipped so many more attempts begin when somebody cannot finish the first; then whoever is not
Ready owes its Ready."""


class Leader:
    """The leader's state in one view. It writes the chronicle; `balloting` chooses the next view, and `memory` is what
    it keeps from view to view."""

    def __init__(
        self, s: Situation, view: View, memory: LeaderMemory, chronicle: Chronicle, balloting: Balloting
    ) -> None:
        self.view, self.memory, self.chronicle, self.balloting = view, memory, chronicle, balloting
        self.progress = ViewProgress()
        self.rolls = RollCall(view)
        self._first_base: int | None = None
        """The step of the base with which the view began; totals are told along with it."""
        self._copied: tuple[tuple[int, Peer], ...] | None = None
        """Who keeps copies of what."""
        self._all_heard: set[LentCopy] = set()
        """Of copies that were lent: what all members have heard from us."""
        self._begun: set[Peer] = set()
        """Members that have said that they work on the step of the Begin."""
        self._vacant = bool(view.vacancies())
        self._founded_at = s.now if not view.previous and len(view.members()) == 1 else float("-inf")
        """When we began a run, alone; nobody has joined since."""
        progress = self.progress
        self.losses = Losses(view, memory, progress, s.settings)
        self.cases = Cases(view, memory, self.losses)
        self.duty = Duty(s, view, memory, progress, self.losses)
        self.moves = ReplicaMoves(view, memory, self.losses, s.now)
        self.learners = Learners(s, view, memory, progress, self.losses, self.moves)
        self.leavers = Leavers(view, memory, progress, self.losses, self.learners, self.moves)
        self.restart = Restart(view, memory, progress, self.losses)
        self.undoing = Undoing(view, self.restart)
        self.recruiting = Recruiting(view, memory, progress, self.losses, self.moves, self.restart)
        self.omissions = Omissions(view, memory, progress, self.recruiting)
        self.next = NextView(
            view, memory, self.losses, self.moves, self.learners, self.leavers, self.recruiting, balloting
        )
        before = memory.members if memory.led == (view.lineage.id, view.number - 1) else s.members
        memory.newcomers = (memory.newcomers | (s.members - before)) & s.members
        memory.came_and_went(s.members, before, s.crowds.networks, s.now, s.settings.lease_seconds)
        memory.led, memory.members = (view.lineage.id, view.number), s.members

    # -- questions

    @property
    def finished(self) -> bool:
        """All steps are committed."""
        return self.progress.finished

    @property
    def base(self) -> Version | None:
        """Where the swarm stands; None until all members have said it."""
        return self.progress.base

    @property
    def unsettled(self) -> bool:
        """There are losses or vacancies, which `advance` moves forward."""
        return bool(self._vacant or self.losses) and not self.progress.finished

    @property
    def order_trouble(self) -> str:
        """Why nothing has come of the author's order to roll back so far, in words."""
        return self.undoing.trouble

    def wanting(self, s: Situation) -> bool:
        """Is somebody looked for?"""
        return bool(self.recruiting.open_stages() or self.leavers.wanting(s) or self.restart.waiting)

    def hopeful(self, s: Situation) -> bool:
        """Somebody who is no member learns something, or could."""
        return self.learners.hopeful(s)

    def waiting(self, s: Situation) -> str:
        """What the run waits for, in words; empty while it trains."""
        progress = self.progress
        if progress.finished:
            return ""
        if progress.halted:
            return progress.halted
        needed = self.recruiting.needed()
        if needed:
            listed = ", ".join(map(spoken_stage, needed))
            return f"a volunteer for {listed}"
        if self.restart.waiting:
            return self.restart.waiting
        if progress.begin is None:
            missing = ", ".join(str(peer) for peer in sorted(s.members - progress.statuses.keys()))
            return f"word from {missing or 'its members'} of how far they are"
        return ""

    def told_step(self, s: Situation) -> int:
        """What we say in a certificate: when it is known where the swarm stands, the newest committed step, and before
        that the step of the weights that we have; without the weights for it, the step that disks make possible.
        Nobody else's word is asked for."""
        if self.restart.waiting or self.progress.halted:
            return self.restart.prospect(s)
        if self.progress.base is not None:
            return self._step(s)
        return self._as_it_waits(max((version.step for version in s.own.ours.values()), default=0))

    def worth(self, s: Situation) -> int:
        """The step that would be lost if our lineage yielded: 0 where nobody can go on with it."""
        if not (self.restart.waiting or self.progress.halted):
            return self.told_step(s) if self.recruiting.needed() else self._step(s)
        since, base, prospect = self.memory.stuck_since, self.progress.base, self.restart.prospect(s)
        lately = since is None or s.now - since < s.settings.restart_wait_seconds
        somebody = base is not None and base.step > 0
        return max(prospect, s.highest_step) if somebody and lately else prospect

    def _step(self, s: Situation) -> int:
        """Of a lineage that does not halt. One that has not begun yet, say for want of a volunteer, may have disks.

        What somebody alone has done since it found nobody and began a run is worth nothing for as long as anybody looks
        for others.
        """
        base, start = self.progress.base, self.view.lineage.start
        idle = self.progress.begin is None and base is not None and (base.step == 0 or base == start)
        done = s.highest_step if s.now - self._founded_at > s.settings.look_for_seconds else 0
        return self._as_it_waits(max(done, self.restart.prospect(s) if idle else 0))

    def _as_it_waits(self, step: int) -> int:
        """A lineage that cannot go on without a volunteer counts less than one that trains and is about as far."""
        return max(step - ABOUT, min(step, 1)) if self.recruiting.needed() else step

    # -- steps

    def on_blocked(self) -> None:
        """We were suspended, and others may have gone on without us since they said where they stand. Those who have
        not say it again."""
        if self.progress.begin is None:
            self.progress.statuses.clear()

    def on_status(self, s: Situation, sender: Peer, status: Status) -> Outcome:
        """Rule 17: decide when all members have answered. What waited while we were suspended is no answer."""
        out, begin = Outcome(), self.progress.begin
        if s.liveness.stale(s.now) and sender != s.me:
            return out
        if sender in s.members and s.to_roll_back:
            self.restart.told_again(sender, status.snapshots)
            self.undoing.told.add(sender)
        if begin is not None:
            if sender in s.members and not (s.to_roll_back and status.attempt == begin.attempt):
                self._answer_late(s, out, sender, status, begin)
            return out
        if sender in s.members:
            self.progress.statuses[sender] = status
            for commit in status.commits:
                self.chronicle.commit(bare(commit), s.now)
            for step, loss in status.evaluated:
                if step not in self.chronicle.validation:
                    self.chronicle.evaluate(step, loss)
        self._decide(s, out)
        return out

    def _answer_late(self, s: Situation, out: Outcome, sender: Peer, status: Status, begin: Begin) -> None:
        """A Status after the Begin: the sender has not got it, or it has been away in another lineage and dropped its
        work on this attempt, and with it tensors that it had acknowledged: then nobody can finish the attempt."""
        if begin.training and status.attempt is None and sender in self._begun:
            out.note("stand", f"{sender} has dropped its work: step {begin.step} {DONE_AGAIN}")
            self._begin(s, out, begin.base, begin.skipped, begin.installs, None, begin.skip)
        else:
            out.send(sender, begin)

    def on_heartbeat(self, s: Situation, sender: Peer, heartbeat: Heartbeat) -> Outcome:
        """Note who has got the Begin, and how far the learners are."""
        out, begin = Outcome(), self.progress.begin
        self.learners.on_heartbeat(sender, heartbeat)
        here = (heartbeat.lineage, heartbeat.view) == (self.view.lineage.id, self.view.number)
        if here and begin is not None and heartbeat.step == begin.step:
            self._begun.add(sender)
        return out

    def _decide(self, s: Situation, out: Outcome, exhausted: bool = False) -> None:
        """Rule 18, once every member has reported and every stage has a holder; a run whose steps are all committed
        goes without one when nobody can be found (`exhausted`)."""
        progress, settings = self.progress, s.settings
        if progress.begin is not None or not progress.statuses.keys() >= s.members:
            return
        where = standing(self.view, {peer: progress.statuses[peer] for peer in s.members})
        if where.behind:
            self.losses.expel(s, out, where.behind, where.base)
            return
        self.restart.listen(s)
        restarts = self.restart.concerns(s, where)
        if where.base.step == 0 < s.highest_step and not restarts:
            progress.halted = f"{HALTED}steps up to {s.highest_step} are done and nobody has their weights"
            out.note("halt", progress.halted)
            return
        progress.base, progress.empty = where.base, where.vacuous(self.view)
        over = where.base.step >= settings.steps
        if self._vacant and not (over and exhausted):
            return
        if restarts:
            out.extend(self.restart.look(s))
            return
        progress.halted = self.restart.waiting = ""
        told = {peer: status.copies for peer, status in progress.statuses.items()}
        copies = usable_copies(lent(s, self.memory, self.view.lineage.id, told), where.base)
        disks = self.restart.kept(s, where.base)
        plans: tuple[Plan, ...] | Hopeless = ()
        for least in (1, REFUTED_BY):
            refuted = self.memory.not_believed(least)
            plans = plan_installs(self.view, where, settings, s.contacts, copies, disks, self.memory.lent, refuted)
            if not (isinstance(plans, Hopeless) and refuted):
                break
        if doubtful := uncounted(self.memory, told, progress.empty):
            out.note("copy", f"does not count on copies of {doubtful}: nobody has told of them who held the stage")
        if isinstance(plans, Hopeless):
            if not over:
                self._give_up(out, plans)
                return
            plans = ()
        self._learn_givers(s, where.base.step - (where.commits_now is not None))
        if where.commits_now is not None:
            # also of members that gave their stage away since, and of those who left: what they did counts
            here = [(peer, said.ready) for peer, said in progress.statuses.items() if said.ready is not None]
            gone = [(peer, ready) for peer, ready in self.memory.settled.items() if peer not in s.members]
            readies = [(peer, ready) for peer, ready in (*here, *gone) if ready.attempt == where.base.attempt]
            self._note_commit(s, out, where.base, where.skipped, readies)
        out.note("stand", where.reason, base=str(where.base.step), view=str(self.view.number))
        spoilt = self.memory.poisonings(where.base.step + 1) >= TRIES
        skip = where.skip or self._count_losses(out, where, plans) or spoilt
        if where.continues is not None:
            self._continue(s, out, where)
        else:
            self._begin(s, out, where.base, where.skipped, plans, None, skip)

    def _continue(self, s: Situation, out: Outcome, where: Standing) -> None:
        """Rule 18 iii: the attempt goes on, and survivors take over the visits of the dead. A validation under way
        is put off."""
        begun, work = s.own.begin, s.own.work
        same = begun is not None and (begun.lineage, begun.attempt) == (self.view.lineage.id, where.continues)
        # Nobody has a share of a step that is held.
        if begun is None or work is None or not same or not begun.shares or self._forked(s, out, begun):
            self._begin(s, out, where.base, where.skipped, (), None, where.skip)
            return
        shares, paths = repair(self.view, begun, self.progress.statuses, s.settings)
        learners = tuple((stage, peer) for stage, peer in begun.learners if peer not in self.view.holders[stage])
        evaluate = where.evaluate and set(work.view.members()) <= s.members
        going_on = shares, paths, learners
        self._begin(s, out, where.base, where.skipped, (), where.continues, where.skip, evaluate, going_on)

    def _forked(self, s: Situation, out: Outcome, begun: Begin) -> bool:
        """A microbatch goes by two paths. What both gave to their stages cannot be told apart any more."""
        forked = paths_differ(self.progress.statuses[peer] for peer in sorted(s.members))
        if forked is not None:
            out.note("stand", f"microbatch {forked} goes by two paths: step {begun.step} {DONE_AGAIN}")
        return forked is not None

    def _give_up(self, out: Outcome, hopeless: Hopeless) -> None:
        """Nobody can fill these stages now: vacate them, and wait for a candidate that has their weights."""
        for stage, peer in zip(hopeless.stages, hopeless.holders):
            self.losses.vacate(stage, peer, hopeless.reason)
        out.note("halt", hopeless.reason, stages=",".join(map(str, hopeless.stages)))

    def _count_losses(self, out: Outcome, where: Standing, plans: tuple[Plan, ...]) -> bool:
        """Rule 25: two losses of one stage in one step are retried, one more and the step is skipped."""
        step = where.base.step + 1
        lost = [(plan.stage, plan.peer) for plan in plans] if where.base.step else []
        worst = self.memory.count_losses(step, lost)
        if worst > 2:
            out.note("skip", f"step {step} is skipped: a stage was lost {worst} times in it", step=str(step))
        return worst > 2

    def _begin(
        self,
        s: Situation,
        out: Outcome,
        base: Version,
        skipped: bool,
        installs: tuple[Plan, ...],
        attempt: Attempt | None,
        skip: bool,
        evaluate: bool = False,
        going_on: tuple[Shares, Paths, tuple[tuple[int, Peer], ...]] | None = None,
    ) -> None:
        """`attempt`: the one that goes on, validating if it did (`evaluate`), with its shares, paths and learners;
        None: a new one."""
        settings, chronicle, progress = s.settings, self.chronicle, self.progress
        training = base.step < settings.steps
        missing = self.view.vacancies()  # when the run is over, nobody is sought for them
        if attempt is None:
            self.memory.attempts += 1
            attempt = Attempt(self.view.number, self.memory.attempts)
            last = not training and base.step != chronicle.unscored
            evaluate = last or chronicle.owes_validation(base.step, settings.evaluate_every)
        if self.leavers.held_since is not None:  # nobody has a share of it, so that all stay at its base
            skip, going_on = False, ((), (), ())
        elif going_on is None:
            head = self.view.holders[HEAD] if training else ()
            learners = self.learners.named() if training and not skip else ()
            going_on = divide(head, settings.microbatches, s.paces()), (), learners
        shares, paths, learners = going_on
        begin = Begin(
            lineage=self.view.lineage.id,
            view=self.view.number,
            step=base.step + 1,
            attempt=attempt,
            base=base,
            skipped=skipped,
            skip=skip and training,
            training=training,
            evaluate=settings.evaluation_microbatches > 0 and evaluate and not missing,
            window=settings.window,
            shares=shares,
            paths=paths,
            installs=installs,
            commits=chronicle.newest_commits(),
            learners=learners,
            credits=self._totals(base.step),
            keepers=self._keepers(s, out) if training else (),
            lent=tuple(copy for copy in self._lent() if copy not in self._all_heard),
        )
        progress.begin, progress.base, progress.ready, self._begun = begin, base, {}, set()
        self.memory.name_lenders(installs)
        self.duty.on_begin(s, begin)
        if not self.recruiting.borrows(s, installs):
            self.memory.unstick()
        self.learners.waits_no_longer(out)
        for _, peer in learners:
            out.append(ShowView(peer))
        for peer in self._told(s, begin):
            out.send(peer, begin)

    def _learn_givers(self, s: Situation, step: int) -> None:
        """Who did the steps up to the base of which the leader before us did not tell us: what most members say."""
        told = Counter(
            commit
            for status in self.progress.statuses.values()
            for commit in status.commits
            if commit.given and self.chronicle.credit.step < commit.step <= step
        )
        words: dict[int, Commit] = {}
        for commit, _ in told.most_common():
            words.setdefault(commit.step, commit)
        for _, commit in sorted(words.items()):
            self.chronicle.commit(commit, s.now)

    def _totals(self, step: int) -> tuple[Credit, ...]:
        """What each gave to the run up to `step`: for newcomers, so at the beginning of a view."""
        if self._first_base is None:
            self._first_base = step
        return self.chronicle.credit.rows() if step == self._first_base else ()

    def _keepers(self, s: Situation, out: Outcome) -> tuple[tuple[int, Peer], ...]:
        """Chosen once, by where the members say that they are, and what they keep."""
        if self._copied is None:
            sites = {peer: status.site for peer, status in self.progress.statuses.items() if status.site}
            kept = {peer for peer, status in self.progress.statuses.items() if HEAD in dict(status.copies)}
            self._copied = keepers(self.view, s.settings, sites, kept)
            if sites and self._copied:
                out.note("copies", in_words(self.view, self._copied, sites))
        return self._copied

    def _lent(self) -> tuple[LentCopy, ...]:
        lent = self.memory.lent
        return lent.newest(lent.stages())

    def _told(self, s: Situation, begin: Begin) -> list[Peer]:
        """Who gets the Begin: members and learners."""
        return sorted({*s.members, *(peer for _, peer in begin.learners)})

    def on_ready(self, s: Situation, sender: Peer, ready: Ready) -> Outcome:
        """Rule 24: all members Ready commit the step."""
        out, begin = Outcome(), self.progress.begin
        if begin is None or (ready.step, ready.attempt) != (begin.step, begin.attempt):
            return out
        theirs = {*self.view.stages_of(sender), *(stage for stage, peer in begin.learners if peer == sender)}
        told = sender in self._told(s, begin)
        if not told or not theirs.issuperset(result.stage for result in ready.results):
            return out
        if not tells_all(self.view, s.settings, begin, sender, ready):
            return out
        self.progress.ready[sender] = ready
        self.cases.look_for_claims(s, out)
        if ready.validation is not None and sender == self.view.holders[HEAD][0]:  # nobody else has all of it
            self.chronicle.evaluate(begin.base.step, ready.validation)
            again = made_again(s, out, self.view, self.memory, self.chronicle, begin, ready.validation)
            if again:
                self._begin(s, out, begin.base, begin.skipped, again, None, False)
                return out
        if self._all_ready(s):
            self.duty.done(s)
            self._finish(s, out, begin)
        return out

    def _finish(self, s: Situation, out: Outcome, begin: Begin) -> None:
        """All are Ready: commit the step, unless it waits for a learner."""
        if self._may_commit(s, begin) and not (begin.training and self.learners.wait(s, out, begin.base.step)):
            self._commit(s, out, begin)

    def join_due(self, s: Situation) -> Outcome:
        """The learner is late; it may join after another step."""
        out, begin = Outcome(), self.progress.begin
        self.learners.late(s, out, begin.base.step if begin is not None else 0)
        if begin is not None and self._may_commit(s, begin):
            self._commit(s, out, begin)
        return out

    def _all_ready(self, s: Situation) -> bool:
        return self.progress.ready.keys() >= s.members

    def _may_commit(self, s: Situation, begin: Begin) -> bool:
        """All are Ready, and nobody is asked to do again what somebody did in the step: what went into it is gone when
        it is committed (rule 50)."""
        return self._all_ready(s) and not self.cases.about(begin.attempt)

    def _commit(self, s: Situation, out: Outcome, begin: Begin) -> None:
        progress = self.progress
        self.next.were_ready(progress.ready.keys() & s.members)
        if not begin.training:
            if not progress.finished:
                progress.finished = True
                out.note("finished", f"all {begin.base.step} steps are done", step=str(begin.base.step))
            return
        told = [(peer, ready) for peer, ready in progress.ready.items() if peer in s.members]
        readies = tuple(ready for _, ready in told)
        if not agree(readies):
            self.memory.spoilt.differ(begin.step, odd_ones(told))
            self._again(s, out, begin, "the replicas of a stage have different gradients")
            return
        if self.next.settle(s, out, progress.ready):
            return
        base = next_version(begin.base, self.view.lineage.id, begin.attempt, begin.skip)
        self._all_heard = {*self._lent()} & {*self._all_heard, *begin.lent}
        self._note_commit(s, out, base, begin.skip, told)
        self._begin(s, out, base, begin.skip, (), None, False)

    def _note_commit(
        self, s: Situation, out: Outcome, base: Version, skipped: bool, told: Sequence[tuple[Peer, Ready]]
    ) -> None:
        memory = self.memory
        since = s.now - memory.committed_at if memory.committed_at is not None else 0.0
        memory.committed_at = s.now
        memory.broken.clear()
        memory.forgave = 0
        self._lose_spoilers(s, out, base.step, skipped)
        back = self.chronicle.recovered(base.step, s.now)
        given = given_by(told, self.chronicle.rebuilders(base.step), s.settings)
        readies = tuple(ready for _, ready in told)
        commit = replace(summarise(base.step, since, skipped, readies, back, s.settings), given=given)
        self.chronicle.commit(commit, s.now)
        out.append(Committed(self.view.lineage.id, base, skipped, commit))

    def _lose_spoilers(self, s: Situation, out: Outcome, step: int, skipped: bool) -> None:
        """A stage gets another holder once; when that one spoils the next steps as well, holders are not to blame, but
        for those who were at odds with one before, or went for it. We ourselves stay, without our stages."""
        spoilt, disputes, reason = self.memory.spoilt, self.memory.disputes, "its numbers spoilt two steps in a row"
        for suspects in spoilt.committed(step, skipped):
            if not suspects.among <= s.members or suspects.among & self.losses.gone.keys():
                continue  # one of them has gone, and works on until somebody takes its place
            peer = disputes.choose(self.view, suspects)
            stages = self.view.stages_of(peer)
            before = peer in disputes.marked or peer.id in disputes.spoilers
            if spoilt.replaced & {*stages} and not before:
                continue
            spoilt.replaced |= {*stages}
            self.losses.let_go(s, out, peer, suspects, reason)
            if peer != s.me:
                disputes.spoils(peer, s.now, s.settings.lease_seconds)

    def on_poisoned(self, s: Situation, sender: Peer, poisoned: Poisoned) -> Outcome:
        """Rule 25: one retry under a new attempt, then the step is skipped. A validation has no score then."""
        out, begin = Outcome(), self.progress.begin
        scored = poisoned.microbatch >= s.settings.microbatches
        wrong = begin is None or poisoned.attempt != begin.attempt or (scored and not begin.evaluate)
        if begin is None or wrong or sender not in s.members:
            return out
        if scored:
            self.chronicle.unscored = begin.base.step
            out.note("poisoned", f"no validation of step {begin.base.step}: {poisoned.reason}")
            self._begin(s, out, begin.base, begin.skipped, begin.installs, None, begin.skip)
        elif poisoned.hides:
            self._accuse(s, out, sender, poisoned, begin)
        elif poisoned.distance and (
            self._refuted(out, sender, poisoned) or self._accuse(s, out, sender, poisoned, begin)
        ):
            pass
        elif begin.training and self.memory.poisonings(begin.step) < TRIES + SKIPS:
            self.memory.spoilt.name(begin.step, self._suspects(s, sender, poisoned))
            why = f"stage {poisoned.stage}, microbatch {poisoned.microbatch}: {poisoned.reason}"
            self._again(s, out, begin, why)
        return out

    def _accuse(self, s: Situation, out: Outcome, sender: Peer, poisoned: Poisoned, begin: Begin) -> bool:
        group = self.view.holders[poisoned.stage]
        place = poisoned.stage, sender
        keeps = len(group) == 1 and place in begin.keepers
        outside = sender not in group and (keeps or place in self.learners.named())
        if sender not in group and not outside:
            return True  # it keeps or learns the stage no more, and could not tell
        if keeps and poisoned.giver == s.me:
            return True  # the others see to it
        return self.cases.accuse(s, out, sender, poisoned, begin, outside)

    def on_verdict(self, s: Situation, sender: Peer, verdict: Verdict) -> Outcome:
        out = self.cases.on_verdict(s, sender, verdict)
        self._go_on(s, out)
        return out

    def _go_on(self, s: Situation, out: Outcome) -> None:
        """A case may be over that a step waited for. Where somebody goes for it the next view commits the step."""
        begin = self.progress.begin
        if begin is not None and not (self.losses or self.balloting.proposing):
            self._finish(s, out, begin)

    def _refuted(self, out: Outcome, sender: Peer, poisoned: Poisoned) -> bool:
        """Rule 48: who has made a stage of others' weights says that one of these lent it something else than it works
        with. That one stays, since its stage would be lost as well, and lends nothing more for this."""
        donor, group = poisoned.giver, self.view.holders[poisoned.stage]
        if donor is None or (sender, poisoned.stage, donor) not in self.memory.lenders_named:
            return False  # it was not asked to
        concerned = {*group, *(peer for stage, peer in self.learners.named() if stage == poisoned.stage)}
        if donor not in group or sender in concerned or poisoned.microbatch >= 0:
            return False
        if self.memory.refute(poisoned.stage, donor, sender):
            out.note("liar", f"{sender} says: {poisoned.reason}", peer=donor.id, step=str(poisoned.step))
        return True

    def _suspects(self, s: Situation, sender: Peer, poisoned: Poisoned) -> Suspects:
        """Who may be to blame: who names it, and who gave it the numbers, by its word; of a sum the whole group, or who
        added up a piece that was refused. Rather who names it, as that one computes with them, but for such a piece:
        nobody has computed with that."""
        group, of_sum = self.view.holders[poisoned.stage], poisoned.microbatch < 0
        if of_sum and sender in group and poisoned.giver not in group:
            return Suspects(frozenset(group), frozenset({sender}))
        givers = {poisoned.giver} if poisoned.giver in s.members else set()
        return Suspects(frozenset({sender, *givers}), frozenset() if of_sum and givers else frozenset({sender}))

    def _again(self, s: Situation, out: Outcome, begin: Begin, why: str) -> None:
        again = self.memory.poisoned(begin.step) < TRIES
        what = "is tried once more" if again else "is skipped"
        out.note("poisoned", f"step {begin.step} {what}: {why}", step=str(begin.step))
        self._begin(s, out, begin.base, begin.skipped, begin.installs, None, not again)

    # -- rolls

    def on_saved(self, s: Situation, sender: Peer, saved: Saved) -> Outcome:
        return self.rolls.on_saved(s, sender, saved, self.progress.base)

    def on_rolled(self, s: Situation, sender: Peer, rolled: Rolled) -> Outcome:
        """A signature, or what a member's disk keeps."""
        if not rolled.whole:
            return self.rolls.on_rolled(s, sender, rolled.roll)
        if sender in s.members and sender != s.me:
            self.memory.hear_roll(sender, rolled.roll)
        return Outcome()

    # -- who goes and who comes

    def on_waits(self, s: Situation, sender: Peer, waits: Waits) -> Outcome:
        self.duty.on_waits(s, sender, waits)
        return Outcome()

    def on_suspect(self, s: Situation, sender: Peer, suspect: Suspect) -> Outcome:
        return self.losses.on_suspect(s, sender, suspect)

    def on_poll_reply(self, s: Situation, sender: Peer, reply: PollReply) -> Outcome:
        return self.losses.on_poll_reply(s, sender, reply)

    def poll_due(self, s: Situation) -> Outcome:
        return self.losses.conclude_inquiries(s)

    def on_resign(self, s: Situation, sender: Peer, resign: Resign) -> Outcome:
        """Somebody gives stages up, or goes as a whole, at once or when others have what it holds."""
        out = Outcome()
        if sender not in s.members or self.progress.finished:
            return out
        if resign.leaving and resign.hand_over:
            if sender != s.me or s.leaving:  # else we stay after all
                self.leavers.announce(s, out, sender, resign.seconds, resign.bytes_per_second)
        elif resign.leaving and sender != s.me:
            self.losses.lose(s, out, sender, resign.reason)
        else:
            for stage in resign.stages:
                news = self.losses.keeps(stage, sender)
                self.recruiting.on_given_up(s, sender, stage, news and resign.reason.startswith(NOT_LENT))
                if news:
                    self.losses.give_up(s, out, stage, sender, resign.reason)
        return out

    def on_answer(self, s: Situation, sender: Peer, answer: Answer) -> Outcome:
        return self.learners.on_answer(s, sender, answer) if answer.learn else self.recruiting.on_answer(sender, answer)

    def offer_due(self, s: Situation) -> Outcome:
        return self.recruiting.expire_offers(s)

    def on_candidate_lost(self, peer: Peer) -> None:
        """The candidate cannot be reached; ask the next one."""
        self.recruiting.on_candidate_lost(peer)

    def on_directory(self) -> None:
        """The directory has been read again: everybody may be asked once more."""
        self.recruiting.forget_tries()

    # -- the next view

    def advance(self, s: Situation) -> Outcome:
        """Move losses and vacancies forward: offers first, then one view that settles all of them (rules 10, 11)."""
        out, progress, recruiting = Outcome(), self.progress, self.recruiting
        if not self.unsettled or self.balloting.proposing:
            return out
        stages = recruiting.needed()
        self.restart.listen(s)
        rungs = recruiting.rungs(s, stages)
        progress.halted = recruiting.halt_reason(s, rungs)
        self.memory.plan = recruiting.weighed(s, stages)
        recruiting.close(recruiting.open_stages())
        if s.me not in progress.statuses:  # offers name the base, so that who has exactly that is asked first
            return out
        if stages and s.highest_step and self.memory.plan != self.memory.plan_said:
            self.memory.plan_said = self.memory.plan
            out.note("plan", self.memory.plan)
        out.extend(recruiting.offer(s, stages, rungs))
        if recruiting.pending:
            return out
        fills = recruiting.fills if stages else {}  # a step that only lost a replica goes on
        if (fills or self.losses) and self.losses.may_settle():
            self.next.propose(s, out, fills)
        elif found := self.omissions.due(s, rungs):
            self.next.leave_out(s, out, fills, *found)
        elif progress.begin is None and progress.base is not None and progress.base.step >= s.settings.steps:
            self._decide(s, out, exhausted=True)
        return out

    def _seek_left_out(self, s: Situation) -> Outcome:
        """Offer stages that routes leave out, while the others go on. Who accepts one comes in between two steps."""
        stages, begin = list(self.view.omitted), self.progress.begin
        if not stages or begin is None or self.unsettled or self.balloting.proposing:
            return Outcome()
        return self.recruiting.offer(s, stages, self.recruiting.rungs(s, stages))

    # -- housekeeping

    def beat(self, s: Situation) -> Outcome:
        """Every heartbeat: resend what is unanswered, look at broken links, hung computes and stalled ballots."""
        out, progress, balloting = Outcome(), self.progress, self.balloting
        self.memory.watch(s.now, len(s.members), s.settings.lease_seconds)
        if progress.begin is not None and not self._all_ready(s):
            for peer in self._told(s, progress.begin):
                if peer != s.me and peer not in progress.ready:
                    out.send(peer, progress.begin)
        if not progress.finished:
            out.extend(self.losses.beat(s))
            waited = bool(self.cases)
            out.extend(self.cases.beat(s))
            if waited:
                self._go_on(s, out)
            if self.leavers.held_since is None and not (self._vacant or balloting.proposing or self.cases):
                out.extend(self.duty.beat(s))
            held = self.leavers.held_since
            out.extend(self.leavers.beat(s))
            if held is None and self.leavers.held_since is not None and (begin := progress.begin) is not None:
                out.note("leaver", f"step {begin.step} is put off: a stage would go with those who leave")
                self._begin(s, out, begin.base, begin.skipped, begin.installs, None, False)
                out.extend(self.rolls.call(s, begin.base) if s.settings.snapshot_every else ())
            out.extend(self.rolls.beat(s))
            out.extend(self.learners.beat(s))
            out.extend(self._seek_left_out(s))
        out.extend(self.next.beat(s))
        trains = progress.base is not None and progress.base.step > 0 and not progress.finished
        if s.to_roll_back and trains and not balloting.proposing:
            out.extend(self.undoing.beat(s))
            if any(isinstance(each, GoOnFromDisks) for each in out):
                return out
        anew, looked = self.restart.beat(s, bool(self.recruiting.pending or self.recruiting.fills))
        out.extend(looked)
        if anew:
            self._decide(s, out)
        return out
