"""Filling vacancies: which stages are open, what can be done about each, whom to ask (rule 10)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from ftnode.protocol.leader.knocking import Knocking
from ftnode.protocol.leader.leader_memory import FAILURES_MAX, LeaderMemory
from ftnode.protocol.leader.lenders import REFUTED_BY, lent, refuted
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.outlook import paces_of
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.leader.restart import Restart
from ftnode.protocol.recovery.candidate_order import Offering, assign, has_state
from ftnode.protocol.recovery.learning_cost import OMITTED, rebuilt_lately, steps_lost
from ftnode.protocol.recovery.rungs import Available, Choice, filled_from, how_to_go_on
from ftnode.protocol.situation import MakeOffer, Outcome, Remember, Situation
from ftnode.protocol.step.routes import neighbours
from ftnode.protocol.words.messages import HALTED, Answer, Offer, Plan
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import HEAD, Attempt, Peer, Rung, Version, names_of, spoken_stage, steps_of
from ftnode.protocol.words.view import View


def offer_to(
    out: Outcome, view: View, presence: Presence, stages: tuple[int, ...], base: Version, near: Collection[Peer],
    learn: bool,
) -> None:  # fmt: skip
    """With the addresses of those that it will have to dial."""
    out.append(Remember(presence.peer, presence.addresses))
    offer = Offer(view.lineage.id, view.number, stages, base, (), learn)
    out.append(MakeOffer(presence.peer, offer, tuple(sorted(near))))


class Recruiting:
    """The leader's offers in one view."""

    def __init__(
        self,
        view: View,
        memory: LeaderMemory,
        progress: ViewProgress,
        losses: Losses,
        moves: ReplicaMoves,
        restart: Restart,
    ) -> None:
        self.view, self.memory, self.progress = view, memory, progress
        self.losses, self.moves, self.restart = losses, moves, restart
        self.knocking = Knocking()
        self.offerings: dict[int, Offering] = {}
        self._only_exact: frozenset[int] = frozenset()
        """Stages that only somebody can fill who has their weights."""

    @property
    def pending(self) -> bool:
        """Somebody has been asked for a stage that is needed, and has time left to answer."""
        needed = self.needed()
        return any(
            offering.asked and offering.accepted is None and offering.stage in needed
            for offering in self.offerings.values()
        )

    @property
    def fills(self) -> dict[int, Peer]:
        """Stage → who accepted it."""
        return {stage: offering.accepted for stage, offering in self.offerings.items() if offering.accepted is not None}

    def close(self, stages: list[int]) -> None:
        """Forget offers of stages that are not open any more."""
        for stage in [stage for stage in self.offerings if stage not in stages]:
            del self.offerings[stage]

    def open_stages(self) -> list[int]:
        """Stages that will have no holder in the next view unless one is found; also those that routes leave out."""
        return [stage for stage in range(len(self.view.holders)) if not self.losses.staying(stage)]

    def needed(self) -> list[int]:
        """Those without which nothing goes on."""
        return [stage for stage in self.open_stages() if stage not in self.view.omitted]

    def rungs(self, s: Situation, stages: list[int]) -> Mapping[int, tuple[bool, str]]:
        """For each open stage: can it be filled without its weights, and why not."""
        choices = self._choices(s, stages, self._available(s, stages))
        return {stage: (rung is not None, reason) for stage, (rung, _, reason) in choices.items()}

    def weighed(self, s: Situation, stages: Sequence[int]) -> str:
        """What can be done about stages that nobody holds, and about how many steps of learning each way costs."""
        if not stages:
            return "others hold all that was lost, and go on"
        before, available = rebuilt_lately(s.history.rebuilt_at(), s.highest_step), self._available(s, stages)
        told = []
        for stage, (rung, _, reason) in self._choices(s, stages, available).items():
            age = available.step - available.copied.get(stage, available.step)
            steps = steps_lost(stage, rung, s.settings, age, before)
            told.append(f"{spoken_stage(stage)}: {rung or 'wait'}, {steps:.3g} ({reason})")
        if s.settings.may_leave_out({*self.view.omitted, *stages}):
            told.append(f"to leave out, {OMITTED:g} more")
        return f"without a holder, steps of learning: {'; '.join(told)}; to wait, one for each step's time"

    def _available(self, s: Situation, stages: Sequence[int]) -> Available:
        """What there is to fill `stages` from, which nobody holds."""
        known, start = self.progress.base, self.view.lineage.start
        if known is None and start is not None and start.step >= s.highest_step:
            known = start  # as good as committed, though nobody has it yet (rule 36)
        base = known.step if known is not None else s.highest_step
        held = frozenset(range(len(self.view.holders))) - {*stages, *self.view.omitted} - self.progress.empty
        stored = self.restart.kept(s, known) if known is not None else {}
        return Available(base, held, self._copied(s, base), stored)

    def _choices(self, s: Situation, stages: Sequence[int], available: Available) -> dict[int, Choice]:
        choices = dict[int, Choice]()
        for least in (1, REFUTED_BY):
            barred = refuted(self.memory, self.view, least) - {*stages}
            believed = available.without(barred)
            choices = {stage: filled_from(stage, believed, s.settings) for stage in stages}
            if all(rung is not None for rung, _, _ in choices.values()):
                break
        return choices

    def _copied(self, s: Situation, base: int) -> dict[int, int]:
        """Stage → step of the newest copy of it, not later than `base`, that somebody lends: a member which stays, or
        a peer outside the view."""
        broken, doubted = self.memory.broken, self.memory.doubted()
        failed = {(name, stage, version.step) for (name, stage, version), n in broken.items() if n >= FAILURES_MAX}
        told = {peer: report.copies for peer, report in s.reports.items() if peer not in self.losses.gone}
        told[s.me] = s.own.copies_told()
        every = [
            (copy.stage, copy.step)
            for peer, copies in told.items()
            for copy in copies
            if peer.id not in doubted and (peer.id, copy.stage, copy.step) not in failed
            if self.memory.lent.counts_of_step(peer, copy.stage, copy.step)
        ]
        every += (entry for kept in lent(s, self.memory, self.view.lineage.id, {}).values() for entry in steps_of(kept))
        return dict(sorted((stage, step) for stage, step in every if step <= base))

    def borrows(self, s: Situation, installs: Sequence[Plan]) -> bool:
        """Whether these need copies from outside the view, of which nobody knows yet that they are lent."""
        copied = (Rung.HEAD, Rung.SHADOW)
        return any(donor.peer not in s.members for plan in installs if plan.rung in copied for donor in plan.donors)

    def on_given_up(self, s: Situation, peer: Peer, stage: int, not_lent: bool) -> None:
        """Whoever was to rebuild a stage did not: peers outside the view that were to lend a copy may be gone, which
        nobody else would notice. They are asked again when they are heard, and what they tell of is counted on until it
        was not lent FAILURES_MAX times. `not_lent`: nobody gave it."""
        begin = self.progress.begin
        for plan in begin.installs if begin is not None else ():
            if (plan.stage, plan.peer) == (stage, peer):
                outside = [donor.peer for donor in plan.donors if donor.peer not in s.members]
                self.memory.not_heard(outside, s.presences, s.now)
                if plan.copy is not None and not_lent:
                    self.memory.not_lent((donor.peer for donor in plan.donors), stage, plan.copy, s.now)

    def halt_reason(self, s: Situation, rungs: Mapping[int, tuple[bool, str]]) -> str:
        stuck = {stage: why for stage, (possible, why) in rungs.items() if not possible}
        if not stuck:
            return ""
        hint = self.restart.hint(s)
        return f"{HALTED}{'; '.join(sorted(set(stuck.values())))}; {how_to_go_on(sorted(stuck))}{hint}"

    def offer(self, s: Situation, stages: list[int], rungs: Mapping[int, tuple[bool, str]]) -> Outcome:
        """Ask the next candidates for the stages that nobody has been asked for, or has accepted."""
        out = Outcome()
        if not stages:
            return out
        self._only_exact = frozenset(stage for stage, (possible, _) in rungs.items() if not possible)
        for stage in self._only_exact & self.offerings.keys():
            if not self.offerings[stage].exact:  # accepted while other stages were there to rebuild it from
                self.offerings[stage].accepted = None
        self.knocking.knock(s, out, [stage for stage in stages if not self._taken(stage)])
        awaited = self.knocking.awaited(s)
        while wanting := [stage for stage in stages if self._wants(stage) and not self._waits(s, stage, awaited)]:
            candidates = self._candidates(s, wanting)
            if not candidates:
                break
            self._ask(s, out, candidates)
        return out

    def _ask(self, s: Situation, out: Outcome, candidates: Mapping[Peer, Sequence[int]]) -> None:
        """Each of these for its stages, with the addresses of those that it will have to dial."""
        settings, base = s.settings, self.progress.base
        for peer, offered in candidates.items():
            for stage in offered:
                offering = self.offerings.setdefault(stage, Offering(stage))
                stateful = offering.counts_on(s.presences[peer], base)
                offering.ask(peer, stateful, s.now, settings.offer_seconds, settings.second_offer_seconds)
            out.set_timer("offer", s.now + settings.second_offer_seconds, keep=True)
            around = {near for stage in offered for near in neighbours(self.view, stage, s.settings.swap)}
            near = around - set(self.losses.gone) - {peer}
            listed = ", ".join(map(str, offered))
            out.note("offer", f"asks {peer} to take {names_of(offered)}", peer=peer.id, stages=listed)
            stands = base or Version(s.highest_step, "", Attempt(-1, 0))
            offer_to(out, self.view, s.presences[peer], tuple(offered), stands, near, False)

    def _candidates(self, s: Situation, wanting: list[int]) -> dict[Peer, list[int]]:
        """Whom to ask, for which stages: those who are heard and have room, else replicas of other stages. Nobody is
        asked anything else before it has answered."""
        asked = {peer for offering in self.offerings.values() for peer in offering.asked}
        presences = {
            peer: presence
            for peer, presence in s.presences.items()
            if s.hears(peer) and peer not in self.losses.gone and peer not in asked
            and self.memory.barred_until(peer) <= s.now
            and not any(member.id == peer.id and member != peer for member in s.members)
        }  # fmt: skip
        chosen = assign(
            wanting,
            presences,
            self.offerings,
            self.view.number,
            self.progress.base,
            self.memory.failures,
            self._only_exact,
            s.members,
            HEAD in wanting or self._all_leave(HEAD),
            self._load(s, presences),
            s.new(presences),
        )
        for stage in set(wanting) - {stage for stage, _ in chosen} - self._only_exact:
            offering = self.offerings.get(stage, Offering(stage))
            taken = {peer for _, peer in chosen}.union(*(each.busy() for each in self.offerings.values()))
            spare = self.moves.spare(s, stage, offering.tried, taken) if not offering.asked else None
            if spare is not None:
                chosen.append((stage, spare))
        by_peer: dict[Peer, list[int]] = {}
        for stage, peer in chosen:
            by_peer.setdefault(peer, []).append(stage)
        return by_peer

    def _load(self, s: Situation, presences: Mapping[Peer, Presence]) -> Callable[[Peer, Sequence[int]], float]:
        """Seconds of a peer for a microbatch in all that it holds and in some more stages."""
        held = {peer: self.view.stages_of(peer) for peer in s.members}
        paces = paces_of(s, held, presences, self.memory.measured)

        def busy(peer: Peer, more: Sequence[int]) -> float:
            block, head = paces[peer]
            return sum(block if stage else head for stage in (*held.get(peer, ()), *more))

        return busy

    def _all_leave(self, stage: int) -> bool:
        """The stage has holders, and each of them has said that it leaves."""
        staying = set(self.losses.staying(stage))
        return bool(staying) and staying <= self.memory.leavers.keys()

    def _taken(self, stage: int) -> bool:
        offering = self.offerings.get(stage)
        return offering is not None and offering.accepted is not None

    def _waits(self, s: Situation, stage: int, awaited: Sequence[Presence]) -> bool:
        """Others were asked for a sign of life a moment ago, and the stage is better offered when they have answered:
        nothing is committed yet, so that all stages are dealt out at once, or one of them alone says that it has the
        state of the stage."""
        base = self.progress.base
        if base is None or base.step == 0:
            return bool(awaited)
        if not any(has_state(presence, stage, base) for presence in awaited):
            return False
        return not any(has_state(presence, stage, base) and s.hears(peer) for peer, presence in s.presences.items())

    def _wants(self, stage: int) -> bool:
        """Somebody more may be asked for the stage now."""
        offering = self.offerings.get(stage)
        return offering is None or (offering.accepted is None and len(offering.asked) < offering.width)

    def on_answer(self, sender: Peer, answer: Answer) -> Outcome:
        out = Outcome()
        if not any(sender in offering.asked for offering in self.offerings.values()):
            return out
        for stage in answer.stages:
            offering = self.offerings.get(stage)
            if offering is None or offering.asked.pop(sender, None) is None:
                continue
            # Who had the weights when it said so in the directory may have them no longer.
            if answer.accepted and (stage in answer.exact or stage not in self._only_exact):
                offering.settle(sender, stage in answer.exact)
        listed = ", ".join(map(str, answer.stages))
        verb = "accepts" if answer.accepted else "declines"
        text = f"{sender} {verb} {names_of(answer.stages)}: {answer.reason}"
        out.note("answer", text, peer=sender.id, stages=listed)
        return out

    def on_candidate_lost(self, peer: Peer) -> None:
        """The candidate cannot be reached; ask the next one."""
        for offering in self.offerings.values():
            offering.asked.pop(peer, None)
            if offering.accepted == peer:
                offering.accepted = None

    def expire_offers(self, s: Situation) -> Outcome:
        """Who has had the time to answer is not waited for; where nobody answers, more may be asked."""
        out = Outcome()
        for offering in self.offerings.values():
            offering.widen(s.now, s.settings.second_offer_seconds)
            for peer in offering.expire(s.now):
                out.note("answer", f"{peer} did not answer in time", stages=str(offering.stage))
                self.memory.failed(peer, offering.stage, s.now)
        due = min((offering.due for offering in self.offerings.values()), default=float("inf"))
        due = min(due, self.knocking.next if self.knocking.next > s.now else float("inf"))
        if due < float("inf"):
            out.set_timer("offer", due)
        return out

    def forget_tries(self) -> None:
        """The directory has been read again: everybody may be asked once more."""
        for offering in self.offerings.values():
            offering.tried = offering.busy()
