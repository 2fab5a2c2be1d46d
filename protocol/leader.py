"""What the leader of a view does: gather Statuses, begin and commit steps, and propose the view that follows.

A role, made anew with each view this peer leads; only `Memory` outlives one. No tensor passes through it.
`Losses` and `Recruiting` say who goes and who comes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ftnode.protocol.barrier import Hopeless, Standing, agree, plan_installs, standing, summarise, usable_copies
from ftnode.protocol.division import Paths, Shares, divide, repair
from ftnode.protocol.effects import Committed, Search
from ftnode.protocol.learning import Learning
from ftnode.protocol.leaving import Leavers
from ftnode.protocol.losses import Losses
from ftnode.protocol.memory import Memory
from ftnode.protocol.messages import Begin, Commit, Heartbeat, Plan, Poisoned, Ready, Status
from ftnode.protocol.moving import Moves
from ftnode.protocol.recruiting import Recruiting
from ftnode.protocol.restart import Restart
from ftnode.protocol.succession import next_view
from ftnode.protocol.types import HEAD, Attempt, Peer, Version, next_version, spoken_stage
from ftnode.protocol.view import View

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant


class Leader:
    """The leader's state in one view. `core` is the participant that leads; its `now` and outbox are used."""

    def __init__(self, core: Participant, view: View, memory: Memory) -> None:
        self.core, self.view, self.memory = core, view, memory
        self.statuses: dict[Peer, Status] = {}
        self.begin: Begin | None = None
        self._begun: set[Peer] = set()
        """Members that have said that they work on the step of `begin`."""
        self.ready: dict[Peer, Ready] = {}
        self.settled: set[Peer] = set()
        self.finished = False
        self.halted = ""
        self.base: Version | None = None
        self.empty: frozenset[int] = frozenset()
        """Stages that have holders, and none with the weights of `base`."""
        self._searched_at = float("-inf")
        self._settling = False
        self._joins: Sequence[tuple[int, Peer]] = ()
        """(stage, learner) that the next view takes in."""
        self._vacant = bool(view.vacancies())
        self.losses = Losses(self)
        self.leavers = Leavers(self)
        self.recruiting = Recruiting(self)
        self.learning = Learning(self)
        self.moves = Moves(self)
        self.restart = Restart(self)
        memory.led = view.lineage.id, view.number

    # -- steps

    def on_status(self, sender: Peer, status: Status) -> None:
        """Rule 17: decide when all members have answered."""
        if self.begin is not None:
            if sender in self.core.members:
                self._answer_late(sender, status, self.begin)
            return
        if sender in self.core.members:
            self.statuses[sender] = status
            for commit in status.commits:
                self.core.chronicle.commit(commit, self.core.now)
            for step, loss in status.evaluated:
                self.core.chronicle.evaluate(step, loss)
        self.decide()

    def _answer_late(self, sender: Peer, status: Status, begin: Begin) -> None:
        """A Status after the Begin: the sender has not got it, or it has been away in another lineage and dropped its
        work on this attempt, and with it tensors that it had acknowledged: then nobody can finish the attempt."""
        if begin.training and status.attempt is None and sender in self._begun:
            self.core.note("stand", f"{sender} has dropped its work: step {begin.step} is redone")
            self._begin(begin.base, begin.skipped, begin.installs, None, begin.skip)
        else:
            self.core.send(sender, begin)

    def on_heartbeat(self, sender: Peer, heartbeat: Heartbeat) -> None:
        """Note who has got the Begin, how far the learners are, and who has just come."""
        core = self.core
        self.learning.on_heartbeat(sender, heartbeat)
        stranger = sender not in core.members and sender not in core.presences
        if stranger and core.now - self._searched_at >= core.settings.search_seconds:
            self._searched_at = core.now
            core.emit(Search("a newcomer"))
        here = (heartbeat.lineage, heartbeat.view) == (self.view.lineage.id, self.view.number)
        if here and self.begin is not None and heartbeat.step == self.begin.step:
            self._begun.add(sender)

    def decide(self, exhausted: bool = False) -> None:
        """Rule 18, once every member has reported and every stage has a holder; a run whose steps are all committed
        goes without one when nobody can be found (`exhausted`)."""
        core = self.core
        if self.begin is not None or not self.statuses.keys() >= core.members:
            return
        where = standing(self.view, {peer: self.statuses[peer] for peer in core.members})
        if where.behind:
            self.losses.expel(where.behind, where.base)
            return
        restarts = self.restart.concerns(where)
        if where.base.step == 0 < core.highest_step() and not restarts:
            self.halted = f"halted: steps up to {core.highest_step()} are committed and nobody has their weights"
            core.note("halt", self.halted)
            return
        self.base, self.empty = where.base, where.vacuous(self.view)
        over = where.base.step >= core.settings.steps
        if self._vacant and not (over and exhausted):
            return
        if restarts:
            self.restart.look()
            return
        self.halted = self.restart.waiting = ""
        told = {peer: status.copies for peer, status in self.statuses.items()}
        copies = usable_copies(self.recruiting.lent(told), where.base)
        disks = self.restart.kept(where.base)
        plans = plan_installs(self.view, where, core.settings, core.contacts, copies, disks)
        if isinstance(plans, Hopeless):
            if not over:
                self._give_up(plans)
                return
            plans = ()
        if where.commits_now is not None:
            gone = [r for peer, r in self.memory.settled.items() if peer not in core.members]
            left = tuple(ready for ready in gone if ready.attempt == where.base.attempt)
            self._note_commit(where.base, where.skipped, (*where.commits_now, *left))
        core.note("stand", where.reason, base=str(where.base.step), view=str(self.view.number))
        skip = where.skip or self._count_losses(where, plans)
        if where.continues is not None:
            self._continue(where)
        else:
            self._begin(where.base, where.skipped, plans, None, skip)

    def _continue(self, where: Standing) -> None:
        """Rule 18 iii: the attempt goes on, and survivors take over the visits of the dead. A validation under way
        is put off."""
        begun, work = self.core.holder.begin, self.core.holder.work
        if begun is None or work is None or (begun.lineage, begun.attempt) != (self.view.lineage.id, where.continues):
            self._begin(where.base, where.skipped, (), None, where.skip)
            return
        shares, paths = repair(self.view, begun, self.statuses, self.core.settings)
        learners = tuple((stage, peer) for stage, peer in begun.learners if peer not in self.view.holders[stage])
        evaluate = where.evaluate and set(work.view.members()) <= self.core.members
        self._begin(where.base, where.skipped, (), where.continues, where.skip, evaluate, (shares, paths, learners))

    def _give_up(self, hopeless: Hopeless) -> None:
        """Nobody can fill these stages now: vacate them, and wait for a candidate that has their weights."""
        for stage, peer in zip(hopeless.stages, hopeless.holders):
            self.losses.vacate(stage, peer, hopeless.reason)
        self.core.note("halt", hopeless.reason, stages=",".join(map(str, hopeless.stages)))

    def _count_losses(self, where: Standing, plans: tuple[Plan, ...]) -> bool:
        """Rule 25: two losses of one stage in one step are retried, one more and the step is skipped."""
        step = where.base.step + 1
        lost = [(plan.stage, plan.peer) for plan in plans] if where.base.step else []
        worst = self.memory.count_losses(step, lost)
        if worst > 2:
            self.core.note("skip", f"step {step} is skipped: a stage was lost {worst} times in it", step=str(step))
        return worst > 2

    def _begin(
        self,
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
        core, settings = self.core, self.core.settings
        training = base.step < settings.steps
        missing = self.view.vacancies()  # when the run is over, nobody is sought for them
        if attempt is None:
            self.memory.attempts += 1
            attempt = Attempt(self.view.number, self.memory.attempts)
            last = not training and base.step != core.chronicle.unscored
            evaluate = last or core.chronicle.owes_validation(base.step, settings.evaluate_every)
        if going_on is None:
            head = self.view.holders[HEAD] if training else ()
            learners = self.learning.named() if training and not skip else ()
            going_on = divide(head, settings.microbatches, core.watch.paces()), (), learners
        shares, paths, learners = going_on
        self.begin = Begin(
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
            commits=core.chronicle.newest_commits(),
            learners=learners,
        )
        self.base, self.ready, self._begun = base, {}, set()
        if not self.recruiting.borrows(installs):
            self.memory.unstick()
        self.learning.waits_no_longer()
        for _, peer in learners:
            core.send(peer, core.certificate())
        for peer in self._told():
            core.send(peer, self.begin)

    def _told(self) -> list[Peer]:
        """Who gets the Begin: members and learners."""
        assert self.begin is not None
        return sorted({*self.core.members, *(peer for _, peer in self.begin.learners)})

    def on_ready(self, sender: Peer, ready: Ready) -> None:
        """Rule 24: all members Ready commit the step."""
        begin = self.begin
        if begin is None or (ready.step, ready.attempt) != (begin.step, begin.attempt) or sender not in self._told():
            return
        theirs = {*self.view.stages_of(sender), *(stage for stage, peer in begin.learners if peer == sender)}
        if not theirs.issuperset(result.stage for result in ready.results):
            return
        self.ready[sender] = ready
        if ready.validation is not None:
            self.core.chronicle.evaluate(begin.base.step, ready.validation)
        if self._all_ready() and not (begin.training and self.learning.wait(begin.base.step)):
            self._commit(begin)

    def join_due(self) -> None:
        """The learner is late; it may join after another step."""
        self.learning.late()
        if self.begin is not None and self._all_ready():
            self._commit(self.begin)

    def _all_ready(self) -> bool:
        return self.ready.keys() >= self.core.members

    def _commit(self, begin: Begin) -> None:
        self.settled |= self.ready.keys() & self.core.members
        if not begin.training:
            if not self.finished:
                self.finished = True
                self.core.note("finished", f"all {begin.base.step} steps are committed", step=str(begin.base.step))
            return
        readies = tuple(ready for peer, ready in self.ready.items() if peer in self.core.members)
        if not agree(readies):
            self._again(begin, "the replicas of a stage have different gradients")
            return
        if self._settling or self._settle():
            return
        base = next_version(begin.base, self.view.lineage.id, begin.attempt, begin.skip)
        self._note_commit(base, begin.skip, readies)
        self._begin(base, begin.skip, (), None, False)

    def _settle(self) -> bool:
        """Members that were Ready become voters, and learners that are Ready become holders, in a view of its own while
        nothing is in flight (rules 13, 26).

        The step is committed by the Begin of that view (rule 18 ii).
        """
        settled, joins = sorted(self.core.members - set(self.view.voters)), self.learning.ready()
        going = self.leavers.free(joins)
        if not (settled or joins or going) or self.core.balloting.proposing or self.losses:
            return False
        self._settling, self.memory.settled = True, dict(self.ready)
        reasons = [f"{peer} has learnt stage {stage}" for stage, peer in joins]
        leaves = [(stage, peer) for peer in going for stage in self.view.stages_of(peer)]
        for stage, giver in dict.fromkeys((*self.learning.given_up(joins), *leaves)):
            self.losses.vacate(stage, giver, "handed over")
            reasons.append(f"{giver} hands stage {stage} over")
        if settled:
            names = ", ".join(map(str, settled))
            reasons.append(f"{names} took part in a whole step and may vote from now on")
        self._joins = joins
        self._propose({}, "; ".join(reasons)[:2000])
        return True

    def _note_commit(self, base: Version, skipped: bool, readies: tuple[Ready, ...]) -> None:
        core = self.core
        since = core.now - self.memory.committed_at if self.memory.committed_at is not None else 0.0
        self.memory.committed_at = core.now
        self.memory.broken.clear()
        self.memory.forgave = 0
        back = core.chronicle.recovered(base.step, core.now)
        commit: Commit = summarise(base.step, since, skipped, readies, back, core.settings)
        core.chronicle.commit(commit, core.now)
        core.emit(Committed(self.view.lineage.id, base, skipped, commit))

    def on_poisoned(self, sender: Peer, poisoned: Poisoned) -> None:
        """Rule 25: one retry under a new attempt, then the step is skipped. A validation has no score then."""
        core, begin = self.core, self.begin
        if begin is None or poisoned.attempt != begin.attempt or sender not in core.members:
            return
        if poisoned.microbatch >= core.settings.microbatches:
            core.chronicle.unscored = begin.base.step
            core.note("poisoned", f"no validation of step {begin.base.step}: {poisoned.reason}")
            self._begin(begin.base, begin.skipped, begin.installs, None, begin.skip)
        elif begin.training:
            self._again(begin, f"stage {poisoned.stage}, microbatch {poisoned.microbatch}: {poisoned.reason}")

    def _again(self, begin: Begin, why: str) -> None:
        key = (begin.step, -1)
        self.memory.troubles[key] = self.memory.troubles.get(key, 0) + 1
        again = self.memory.troubles[key] < 2
        what = "is tried once more" if again else "is skipped"
        self.core.note("poisoned", f"step {begin.step} {what}: {why}", step=str(begin.step))
        self._begin(begin.base, begin.skipped, begin.installs, None, not again)

    # -- the next view

    def advance(self) -> None:
        """Move losses and vacancies forward: offers first, then one view that settles all of them (rules 10, 11)."""
        if not (self._vacant or self.losses) or self.finished or self.core.balloting.proposing:
            return
        stages = self.recruiting.open_stages()
        rungs = self.recruiting.rungs(stages)
        self.halted = self.recruiting.halt_reason(rungs)
        self.recruiting.close(stages)
        if self.core.me not in self.statuses:  # offers name the base, so that who has exactly that is asked first
            return
        self.recruiting.offer(stages, rungs)
        if self.recruiting.pending:
            return
        fills = self.recruiting.fills
        if (fills or self.losses) and self.losses.may_settle():
            self.moves.settle(fills)
            for peer in fills.values():
                self.learning.learners.pop(peer, None)
            self._propose(fills, self._reasons(fills))
        elif self.begin is None and self.base is not None and self.base.step >= self.core.settings.steps:
            self.decide(exhausted=True)

    def _reasons(self, fills: Mapping[int, Peer]) -> str:
        parts = [f"{peer} is gone ({why})" for peer, why in self.losses.gone.items()]
        parts += [f"{peer} gave up stage {stage} ({why})" for (stage, peer), why in self.losses.vacated.items()]
        parts += [f"{peer} takes stage {stage}" for stage, peer in sorted(fills.items())]
        return "; ".join(parts)[:2000]

    def _propose(self, fills: Mapping[int, Peer], reason: str) -> None:
        core, losses = self.core, self.losses
        settled = {peer for peer in self.settled if peer not in losses.gone}
        leader = self.leavers.successor(self._joins)
        view = next_view(self.view, leader, losses.gone, losses.vacated, fills, settled, reason, self._joins)
        core.route(core.balloting.propose(view, core.now))

    # -- housekeeping

    def beat(self) -> None:
        """Every heartbeat: resend what is unanswered, look at broken links, hung computes and stalled ballots."""
        core = self.core
        if self.begin is not None and not self._all_ready():
            for peer in self._told():
                if peer != core.me and peer not in self.ready:
                    core.send(peer, self.begin)
        if not self.finished:
            self.losses.beat()
            self.leavers.beat()
            self.learning.beat()
        balloting = core.balloting
        if balloting.proposing:
            if core.now - balloting.since < core.settings.ballot_seconds:
                core.route(balloting.resend())
            else:
                self._settling = False
                fills = self.recruiting.fills
                self._propose(fills, self._reasons(fills) or "another try")
        self.restart.beat()

    def wanting(self) -> bool:
        """Is somebody looked for?"""
        return bool(self.recruiting.open_stages() or self.leavers.wanting() or self.restart.waiting)

    def waiting(self) -> str:
        """What the run waits for, in words; empty while it trains."""
        if self.finished:
            return ""
        if self.halted:
            return self.halted
        open_stages = self.recruiting.open_stages()
        if open_stages:
            listed = ", ".join(map(spoken_stage, open_stages))
            return f"a volunteer for {listed}"
        if self.restart.waiting:
            return self.restart.waiting
        if self.begin is None:
            missing = ", ".join(str(peer) for peer in sorted(self.core.members - self.statuses.keys()))
            return f"the status of {missing or 'its members'}"
        return ""
