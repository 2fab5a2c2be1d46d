"""What the leader of a view does: gather Statuses, begin and commit steps, ask about suspects, offer vacancies.

A role, made anew with each view this peer leads; only `Memory` outlives one. No tensor passes through it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ftnode.protocol.barrier import Hopeless, Standing, plan_installs, standing, summarise
from ftnode.protocol.effects import Committed
from ftnode.protocol.liveness import BrokenLinks, Inquiry
from ftnode.protocol.messages import (
    Answer,
    Begin,
    Commit,
    Contact,
    Offer,
    Plan,
    Poisoned,
    Poll,
    PollReply,
    Ready,
    Resign,
    Status,
    Suspect,
)  # fmt: skip
from ftnode.protocol.paths import neighbours
from ftnode.protocol.recovery import choose_rung, how_to_go_on
from ftnode.protocol.succession import next_view
from ftnode.protocol.types import HEAD, Attempt, Peer, Version, next_version
from ftnode.protocol.vacancy import Offering, assign
from ftnode.protocol.view import View

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant


@dataclass(slots=True)
class Memory:
    """What a leader remembers from view to view; lost with it, and only speed or patience with it."""

    failures: dict[tuple[str, int], int] = field(default_factory=dict)
    """(PeerId, stage) → how often the peer failed on the stage."""
    troubles: dict[tuple[int, int], int] = field(default_factory=dict)
    """(step, stage) → losses, and (step, -1) → poisonings, of the step in progress (rule 25)."""
    committed_at: float | None = None


class Leader:
    """The leader's state in one view. `core` is the participant that leads; its `now` and outbox are used."""

    def __init__(self, core: Participant, view: View, memory: Memory) -> None:
        settings = core.settings
        self.core, self.view, self.memory = core, view, memory
        self.statuses: dict[Peer, Status] = {}
        self.begin: Begin | None = None
        self.ready: dict[Peer, Ready] = {}
        self.settled: set[Peer] = set()
        self.finished = False
        self.halted = ""
        self.base: Version | None = None
        self.gone: dict[Peer, str] = {}
        self.vacated: dict[tuple[int, Peer], str] = {}
        self.offerings: dict[int, Offering] = {}
        self._inquiries: dict[Peer, Inquiry] = {}
        self._inquiry_number = 0
        self._attempts = 0
        self._settling = False
        self._broken = BrokenLinks(settings.broken_link_seconds, 3 * settings.heartbeat_seconds)

    # -- steps

    def on_status(self, sender: Peer, status: Status) -> None:
        """Rule 17: decide when all members have answered."""
        if self.begin is not None:
            if sender in self.core.members:
                self.core.send(sender, self.begin)
            return
        if sender in self.core.members:
            self.statuses[sender] = status
            for commit in status.commits:
                self.core.remember(commit)
            for step, loss in status.evaluated:
                self.core.validation.setdefault(step, loss)
        self.decide()

    def decide(self) -> None:
        """Rule 18, once every member has reported and every stage has a holder."""
        core = self.core
        if self.begin is not None or not self.statuses.keys() >= core.members:
            return
        where = standing(self.view, {peer: self.statuses[peer] for peer in core.members})
        self.base = where.base
        over = where.base.step >= core.settings.steps
        if self.view.vacancies() and not over:
            return
        plans = plan_installs(self.view, where, core.settings, core.contacts)
        if isinstance(plans, Hopeless):
            if not over:
                self._give_up(plans)
                return
            plans = ()
        if where.commits_now is not None:
            self._note_commit(where.base, where.skipped, where.commits_now)
        core.note("stand", where.reason, base=str(where.base.step), view=str(self.view.number))
        skip = where.skip or self._count_losses(where, plans)
        self._begin(where.base, where.skipped, plans, where.continues, skip)

    def _give_up(self, hopeless: Hopeless) -> None:
        """Nobody can fill these stages now: vacate them, and wait for a candidate that has their weights."""
        for stage, peer in zip(hopeless.stages, hopeless.holders):
            self.vacated[(stage, peer)] = hopeless.reason
        self.core.note("halt", hopeless.reason, stages=",".join(map(str, hopeless.stages)))

    def _count_losses(self, where: Standing, plans: tuple[Plan, ...]) -> bool:
        """Rule 25: two losses of one stage in one step end in a skip."""
        step = where.base.step + 1
        self.memory.troubles = {key: count for key, count in self.memory.troubles.items() if key[0] == step}
        if where.base.step == 0:
            return False
        for plan in plans:
            self.memory.troubles[(step, plan.stage)] = self.memory.troubles.get((step, plan.stage), 0) + 1
        worst = max((self.memory.troubles[(step, plan.stage)] for plan in plans), default=0)
        if worst > 2:
            self.core.note("skip", f"step {step} is skipped: a stage was lost {worst} times in it", step=str(step))
        return worst > 2

    def _begin(
        self, base: Version, skipped: bool, installs: tuple[Plan, ...], attempt: Attempt | None, skip: bool
    ) -> None:
        core, settings = self.core, self.core.settings
        if attempt is None:
            self._attempts += 1
            attempt = Attempt(self.view.number, self._attempts)
        training = base.step < settings.steps
        periodic = settings.evaluate_every > 0 and base.step > 0 and base.step % settings.evaluate_every == 0
        head = self.view.holders[HEAD]
        shares = ((head[0], tuple(range(settings.microbatches))),) if training and head else ()
        self.begin = Begin(
            lineage=self.view.lineage.id,
            view=self.view.number,
            step=base.step + 1,
            attempt=attempt,
            base=base,
            skipped=skipped,
            skip=skip and training,
            training=training,
            evaluate=settings.evaluation_microbatches > 0 and (periodic or not training),
            window=settings.window,
            shares=shares,
            paths=(),
            installs=installs,
            commits=core.newest_commits(),
        )
        self.base, self.ready = base, {}
        for peer in sorted(core.members):
            core.send(peer, self.begin)

    def on_ready(self, sender: Peer, ready: Ready) -> None:
        """Rule 24: all members Ready commit the step."""
        begin = self.begin
        if (
            begin is None
            or (ready.step, ready.attempt) != (begin.step, begin.attempt)
            or sender not in self.core.members
        ):
            return
        self.ready[sender] = ready
        if ready.validation is not None:
            self.core.validation[begin.base.step] = ready.validation
        if self._all_ready():
            self._commit(begin)

    def _all_ready(self) -> bool:
        return self.ready.keys() >= self.core.members

    def _commit(self, begin: Begin) -> None:
        self.settled |= self.ready.keys()
        if not begin.training:
            if not self.finished:
                self.finished = True
                self.core.note("finished", f"all {begin.base.step} steps are committed", step=str(begin.base.step))
            return
        if self._settling or (self.core.members - set(self.view.voters) and self._settle()):
            return
        base = next_version(begin.base, self.view.lineage.id, begin.attempt, begin.skip)
        self._note_commit(base, begin.skip, tuple(self.ready.values()))
        self._begin(base, begin.skip, (), None, False)

    def _settle(self) -> bool:
        """Members that were Ready become voters, in a view of its own while nothing is in flight (rule 13).

        The step is committed by the Begin of that view (rule 18 ii).
        """
        if self.core.balloting.proposing or self.gone or self.vacated:
            return False
        self._settling = True
        names = ", ".join(str(peer) for peer in sorted(self.core.members - set(self.view.voters)))
        self._propose({}, f"{names} took part in a whole step and may vote from now on")
        return True

    def _note_commit(self, base: Version, skipped: bool, readies: tuple[Ready, ...]) -> None:
        core = self.core
        since = core.now - self.memory.committed_at if self.memory.committed_at is not None else 0.0
        self.memory.committed_at = core.now
        commit: Commit = summarise(base.step, since, skipped, readies, core.settings)
        core.remember(commit)
        core.emit(Committed(self.view.lineage.id, base, skipped, commit))

    def on_poisoned(self, sender: Peer, poisoned: Poisoned) -> None:
        """Rule 25: one retry under a new attempt, then the step is skipped."""
        begin = self.begin
        if begin is None or poisoned.attempt != begin.attempt or sender not in self.core.members or not begin.training:
            return
        key = (begin.step, -1)
        self.memory.troubles[key] = self.memory.troubles.get(key, 0) + 1
        again = self.memory.troubles[key] < 2
        what = "is tried once more" if again else "is skipped"
        where = f"stage {poisoned.stage}, microbatch {poisoned.microbatch}: {poisoned.reason}"
        self.core.note("poisoned", f"step {begin.step} {what}: {where}", step=str(begin.step))
        self._begin(begin.base, begin.skipped, begin.installs, None, not again)

    # -- suspects

    def on_suspect(self, sender: Peer, suspect: Suspect) -> None:
        peer = suspect.peer
        if (
            peer == self.core.me
            or peer not in self.core.members
            or peer in self.gone
            or sender not in self.core.members
        ):
            return
        if suspect.kind == "broken":
            self._broken.report(sender, peer, self.core.now)
            return
        if peer in self._inquiries:
            return
        self._inquiry_number += 1
        asked = frozenset(voter for voter in self.view.voters if voter != peer)
        deadline = self.core.now + 1.5 * self.core.settings.poll_seconds
        self._inquiries[peer] = Inquiry(
            self._inquiry_number, peer, suspect.kind, suspect.detail, self.core.now, deadline, asked
        )
        self.core.timers.set_if_clear("poll", deadline)
        poll = Poll(self.view.lineage.id, self.view.number, self._inquiry_number, peer)
        for voter in sorted(asked):
            self.core.send(voter, poll)

    def on_poll_reply(self, sender: Peer, reply: PollReply) -> None:
        inquiry = self._inquiries.get(reply.peer)
        if inquiry is None or reply.number != inquiry.number or sender not in inquiry.asked:
            return
        if reply.heard:
            del self._inquiries[reply.peer]
            self.core.note("void", f"{reply.peer} is alive: {sender} hears it", peer=reply.peer.id)
            return
        inquiry.silent.add(sender)
        self.conclude_inquiries()

    def conclude_inquiries(self) -> None:
        for inquiry in list(self._inquiries.values()):
            if inquiry.concluded(self.core.now):
                del self._inquiries[inquiry.peer]
                self.lose(inquiry.peer, f"{inquiry.kind}: {inquiry.detail}")
        if self._inquiries:
            self.core.timers.set("poll", min(inquiry.deadline for inquiry in self._inquiries.values()))

    def lose(self, peer: Peer, reason: str) -> None:
        """The peer will not be in the next view."""
        if peer in self.gone or peer not in self.core.members or self.finished:
            return
        self.gone[peer] = reason
        stages = self.view.stages_of(peer)
        for stage in stages:
            key = (peer.id, stage)
            self.memory.failures[key] = self.memory.failures.get(key, 0) + 1
        listed = ", ".join(map(str, stages))
        self.core.note("lost", f"{peer} with stage {listed} is lost ({reason})", peer=peer.id, stages=listed)

    def on_resign(self, sender: Peer, resign: Resign) -> None:
        if sender not in self.core.members or self.finished:
            return
        if resign.leaving and sender != self.core.me:
            self.lose(sender, resign.reason)
            return
        for stage in resign.stages:
            if sender in self.view.holders[stage] and (stage, sender) not in self.vacated:
                self.vacated[(stage, sender)] = resign.reason
                key = (sender.id, stage)
                self.memory.failures[key] = self.memory.failures.get(key, 0) + 1
                fields = {"peer": sender.id, "stages": str(stage)}
                self.core.note("lost", f"{sender} gives up stage {stage} ({resign.reason})", **fields)

    # -- vacancies

    def open_stages(self) -> list[int]:
        """Stages that will have no holder in the next view unless one is found."""
        return [
            stage
            for stage, group in enumerate(self.view.holders)
            if not any(peer not in self.gone and (stage, peer) not in self.vacated for peer in group)
        ]

    def advance(self) -> None:
        """Move losses and vacancies forward: offers first, then one view that settles all of them (rules 10, 11)."""
        if self._over() or self.core.balloting.proposing:
            return
        stages = self.open_stages()
        self.halted = self._halt_reason(stages)
        for stage in [stage for stage in self.offerings if stage not in stages]:
            del self.offerings[stage]
        self._offer(stages)
        if any(offering.asked for offering in self.offerings.values()):
            return
        fills = {stage: offering.accepted for stage, offering in self.offerings.items() if offering.accepted}
        if fills or self.gone or self.vacated:
            self._propose(fills, self._reasons(fills))

    def _over(self) -> bool:
        return self.finished or (self.begin is not None and not self.begin.training)

    def _rungs(self, stages: list[int]) -> Mapping[int, tuple[bool, str]]:
        """For each open stage: can it be filled without its weights, and why not."""
        base = self.base.step if self.base is not None else self.core.highest_step()
        alive = frozenset(range(len(self.view.holders))) - set(stages)
        found = {}
        for stage in stages:
            rung, _, reason = choose_rung(stage, alive, base, self.core.settings)
            found[stage] = (rung is not None, reason)
        return found

    def _halt_reason(self, stages: list[int]) -> str:
        stuck = {stage: why for stage, (possible, why) in self._rungs(stages).items() if not possible}
        if not stuck:
            return ""
        return f"halted: {'; '.join(sorted(set(stuck.values())))}; {how_to_go_on(sorted(stuck))}"

    def _offer(self, stages: list[int]) -> None:
        core, settings = self.core, self.core.settings
        if not stages:
            return
        wanting = [stage for stage in stages if not self._taken(stage)]
        only_exact = [stage for stage, (possible, _) in self._rungs(stages).items() if not possible]
        presences = {
            peer: presence
            for peer, presence in core.presences.items()
            if peer not in self.gone and peer not in core.liveness.refused
            and not any(member.id == peer.id and member != peer for member in core.members)
        }  # fmt: skip
        asked = assign(
            wanting,
            presences,
            self.offerings,
            self.view.number,
            self.base,
            self.memory.failures,
            only_exact,
            core.members,
        )
        by_peer: dict[Peer, list[int]] = {}
        for stage, peer in asked:
            by_peer.setdefault(peer, []).append(stage)
        for peer, offered in by_peer.items():
            for stage in offered:
                offering = self.offerings.setdefault(stage, Offering(stage))
                offering.asked, offering.deadline = peer, core.now + settings.offer_seconds
                offering.tried.add(peer)
            core.timers.set_if_clear("offer", core.now + settings.offer_seconds)
            around = {near for stage in offered for near in neighbours(self.view, stage)} - set(self.gone) - {peer}
            contacts = tuple(Contact(near, core.contacts.get(near, ())) for near in sorted(around))
            base = self.base or Version(core.highest_step(), "", Attempt(-1, 0))
            core.know(peer, core.presences[peer].addresses)
            listed = ", ".join(map(str, offered))
            core.note("offer", f"stage {listed} is offered to {peer}", peer=peer.id, stages=listed)
            core.send(peer, Offer(self.view.lineage.id, self.view.number, tuple(offered), base, contacts))

    def _taken(self, stage: int) -> bool:
        offering = self.offerings.get(stage)
        return offering is not None and (offering.asked is not None or offering.accepted is not None)

    def on_answer(self, sender: Peer, answer: Answer) -> None:
        for stage in answer.stages:
            offering = self.offerings.get(stage)
            if offering is None or offering.asked != sender:
                continue
            offering.asked = None
            if answer.accepted:
                offering.accepted = sender
        listed = ", ".join(map(str, answer.stages))
        verb = "accepts" if answer.accepted else "declines"
        self.core.note("answer", f"{sender} {verb} stage {listed}: {answer.reason}", peer=sender.id, stages=listed)

    def on_candidate_lost(self, peer: Peer) -> None:
        """The candidate cannot be reached; ask the next one."""
        for offering in self.offerings.values():
            if peer in (offering.asked, offering.accepted):
                offering.asked = offering.accepted = None

    def expire_offers(self) -> None:
        for offering in self.offerings.values():
            if offering.asked is not None and self.core.now >= offering.deadline:
                self.core.note("answer", f"{offering.asked} did not answer in time", stages=str(offering.stage))
                offering.asked = None
        pending = [offering.deadline for offering in self.offerings.values() if offering.asked is not None]
        if pending:
            self.core.timers.set("offer", min(pending))

    def forget_tries(self) -> None:
        """The directory has been read again: everybody may be asked once more."""
        for offering in self.offerings.values():
            offering.tried = {peer for peer in (offering.asked, offering.accepted) if peer is not None}

    def _reasons(self, fills: Mapping[int, Peer]) -> str:
        parts = [f"{peer} is gone ({why})" for peer, why in self.gone.items()]
        parts += [f"{peer} gave up stage {stage} ({why})" for (stage, peer), why in self.vacated.items()]
        parts += [f"{peer} takes stage {stage}" for stage, peer in sorted(fills.items())]
        return "; ".join(parts)[:2000]

    def _propose(self, fills: Mapping[int, Peer], reason: str) -> None:
        core = self.core
        settled = {peer for peer in self.settled if peer not in self.gone}
        view = next_view(self.view, core.me, self.gone, self.vacated, fills, settled, reason)
        core.route(core.balloting.propose(view, core.now))

    # -- housekeeping

    def beat(self) -> None:
        """Every heartbeat: resend what is unanswered, look at broken links, hung computes and stalled ballots."""
        core = self.core
        if self.begin is not None and not self._all_ready():
            for peer in sorted(core.members - self.ready.keys()):
                if peer != core.me:
                    core.send(peer, self.begin)
        victim = self._broken.victim(self.view, core.now)
        if victim is not None and not self.finished:
            self.lose(*victim)
        limit = 1.5 * core.settings.task_seconds
        for peer in sorted(core.members):
            report = core.reports.get(peer)
            if report is not None and report.view == self.view.number and report.busy_seconds > limit:
                self.lose(peer, f"its compute has been on one task for {report.busy_seconds:.0f} s")
        balloting = core.balloting
        if balloting.proposing:
            if core.now - balloting.since < core.settings.ballot_seconds:
                core.route(balloting.resend())
            else:
                self._settling = False
                fills = {stage: o.accepted for stage, o in self.offerings.items() if o.accepted}
                self._propose(fills, self._reasons(fills) or "another try")

    def waiting(self) -> str:
        """What the run waits for, in words; empty while it trains."""
        if self.finished:
            return ""
        if self.halted:
            return self.halted
        open_stages = self.open_stages()
        if open_stages:
            listed = ", ".join("the head" if stage == HEAD else str(stage) for stage in open_stages)
            return f"a volunteer for stage {listed}"
        if self.begin is None:
            missing = ", ".join(str(peer) for peer in sorted(self.core.members - self.statuses.keys()))
            return f"the status of {missing or 'its members'}"
        return ""
