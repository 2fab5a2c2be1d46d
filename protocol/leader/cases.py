"""Of two holders of a stage one says that the other lies: who goes (rules 42, 45, 50).

Where the stage has holders besides these two, they do the work again and say what they see, and whoever is in the wrong
by the word of most of them goes. Nobody is remembered then. Where there is no such third, nobody can tell which of the
two it is: the accused goes, unless the accuser was at odds with somebody before.

Who is shown nothing says so, too (rule 52). Others ask for the same, and who shows it to nobody goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from ftnode.protocol.leader.claims import stage_beside, who_did
from ftnode.protocol.leader.convictions import against, liar_of, signed_twice
from ftnode.protocol.leader.disputes import Suspects
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.step.check import checkable
from ftnode.protocol.step.doubts import HEARD_A_STEP, HEARD_MAX, Budget
from ftnode.protocol.wire.admission import JUDGES_MAX
from ftnode.protocol.words.effects import Expose
from ftnode.protocol.words.messages import Begin, Convicted, Judge, Poisoned, Share, Verdict
from ftnode.protocol.words.types import Attempt, Peer
from ftnode.protocol.words.view import View

Key = tuple[Peer, Peer, int, int]
"""Accuser and accused; where it is about what was not shown of a visit, its microbatch and place."""
UNSHOWN_MAX: Final = 64
"""Visits of which one member may say in an attempt that it is not shown their tensors."""
PATIENCE_LEASES: Final = 4.0
"""A judge that does not get on says so itself after half a lease. For so long one is waited for that says nothing."""


@dataclass(slots=True)
class Case:
    """What one says of another, until it is settled."""

    about: Judge
    accusation: Poisoned
    until: float
    judges: Collection[Peer]
    """Who was asked."""
    verdicts: dict[Peer, Verdict] = field(default_factory=dict)

    def hear(self, judge: Peer, verdict: Verdict) -> None:
        if judge in self.judges and verdict.about == self.about:
            self.verdicts[judge] = verdict

    def over(self, now: float, gone: Collection[Peer]) -> bool:
        """All have answered that are still there, or had the time for it."""
        return now >= self.until or {*self.judges} <= {*self.verdicts, *gone}

    @property
    def told(self) -> Convicted:
        """All words so far."""
        return Convicted(self.about.accuser, self.accusation, tuple(sorted(self.verdicts.items())))


def key_of(about: Judge) -> Key:
    place = (about.microbatch, about.beside) if about.beside >= 0 else (-1, -1)
    return about.accuser, about.accused, *place


class Cases:
    """Those of one view, at its leader."""

    def __init__(self, view: View, memory: LeaderMemory, losses: Losses) -> None:
        self.view, self.memory, self.losses = view, memory, losses
        self._open: dict[Key, Case] = {}
        self._in_vain: dict[tuple[Peer, Peer], Judge] = {}
        """Of (accuser, accused) the last of which others could see nothing, or as many saw one thing as the other."""
        self._unshown: dict[tuple[Peer, int, int], Poisoned] = {}
        """Who says of which visit that it is not shown its tensors, while nobody has said that it did that visit."""
        self._named = set[tuple[Peer, int, int]]()
        """All of these in the attempt."""
        self._heard_in: dict[Peer, Attempt] = {}
        """In which attempt somebody was heard who is not shown something."""

    def __bool__(self) -> bool:
        return bool(self._open)

    def about(self, attempt: Attempt) -> bool:
        """Somebody is asked about it, or will be."""
        asked = any(case.about.attempt == attempt for case in self._open.values())
        return asked or any(said.attempt == attempt for said in self._unshown.values())

    def accuse(self, s: Situation, out: Outcome, sender: Peer, poisoned: Poisoned, begin: Begin, outside: bool) -> bool:
        """One of a group has done again what another did; or one from `outside`, that learns the stage (rule 48) or
        keeps a copy of it (rule 53), was lent other weights than the other works with. False where a step is tried
        again for it: a newcomer says it of an older member, and nobody else can see it; or both are not there (any
        more)."""
        accused, group, new = poisoned.giver, self.view.holders[poisoned.stage], s.new(s.members)
        if outside:
            if accused not in group or sender in new:
                return True
            group = (*group, sender)
        if accused is None or accused == sender or not {accused, sender} <= s.members & {*group}:
            return False
        self._close_others(begin.attempt)
        asked = any(case.about.accused == accused and sender in case.judges for case in self._open.values())
        known = poisoned.beside < 0 and key_of(Judge.of(sender, poisoned, accused)) in self._open
        if self.losses.gone.keys() & {accused, sender} or known or asked:
            return True
        if any(self.memory.convicted[peer.id].proof for peer in self.memory.convicts(s.members - {s.me})):
            return True  # who shows other tensors than it gave goes first: what others found may be due to that
        if poisoned.beside >= 0:
            self._not_shown(s, out, sender, poisoned, begin)
            return True
        if poisoned.hides:
            self._accuse_of_hiding(s, out, sender, accused, poisoned, begin, new)
            return True
        vain = outside or self._in_vain.get((sender, accused)) == Judge.of(sender, poisoned, accused)
        judges = [] if vain else self._judges(s, sender, accused, poisoned.stage, begin, new)
        if judges:
            self._ask(s, out, Judge.of(sender, poisoned, accused), poisoned, judges)
            return True
        return self._on_its_word(s, out, sender, accused, poisoned)

    def _accuse_of_hiding(
        self, s: Situation, out: Outcome, sender: Peer, accused: Peer, poisoned: Poisoned, begin: Begin,
        new: Collection[Peer],
    ) -> None:  # fmt: skip
        """One is not shown what the other made its piece of a sum of. That line may be broken, so nothing follows where
        nobody else can ask; and each is heard only so often, since others work for it."""
        about = Judge.of(sender, poisoned, accused)
        judges = self._judges(s, sender, accused, poisoned.stage, begin, new)
        if judges and self._in_vain.get((sender, accused)) != about and self._is_heard(s, sender, begin):
            self._ask(s, out, about, poisoned, judges)

    def _is_heard(self, s: Situation, sender: Peer, begin: Begin) -> bool:
        """Who says that it is not shown something, in this attempt: others work for it, and it may have no reason."""
        if self._heard_in.get(sender) == begin.attempt:
            return True
        memory = self.memory
        memory.hidings = {peer: budget for peer, budget in memory.hidings.items() if peer in s.members}
        budget = memory.hidings.setdefault(sender, Budget(HEARD_MAX))
        budget.grow(begin.step, HEARD_A_STEP, HEARD_MAX)
        if not budget.spend():
            return False
        self._heard_in[sender] = begin.attempt
        return True

    def _not_shown(self, s: Situation, out: Outcome, sender: Peer, poisoned: Poisoned, begin: Begin) -> None:
        """Nobody beside the visits of another one shows one of its group what it gave to that one, or got of it. Who
        that is, its own signed word says."""
        near = stage_beside(self.view, s.settings, poisoned) is not None
        if not near or begin.attempt.view != self.view.number or sender not in self.view.holders[poisoned.stage]:
            return
        named = sender, poisoned.microbatch, poisoned.beside
        often = sum(peer == sender for peer, _, _ in self._named)
        if named in self._named or often >= UNSHOWN_MAX or not self._is_heard(s, sender, begin):
            return
        self._named.add(named)
        self._unshown[named] = poisoned
        self.look_for_claims(s, out)

    def look_for_claims(self, s: Situation, out: Outcome) -> None:
        """Where it is known by now who did a visit, others ask that one for its tensors."""
        begin, readies = self.losses.progress.begin, self.losses.progress.ready
        if begin is None or not self._unshown:
            return
        self._close_others(begin.attempt)
        for named, poisoned in list(self._unshown.items()):
            stage = stage_beside(self.view, s.settings, poisoned)
            assert stage is not None
            found = who_did(self.view, begin, readies, stage, named[1:])
            if found is None and not readies.keys() >= s.members:
                continue
            del self._unshown[named]
            if found is not None:
                self._ask_for_tensors(s, out, named[0], poisoned, *found)

    def _ask_for_tensors(
        self, s: Situation, out: Outcome, sender: Peer, poisoned: Poisoned, accused: Peer, claim: Share
    ) -> None:
        """Those who reach it by their stages, whether they can do the visits again or not."""
        concerned = {sender, accused, poisoned.giver}
        if len(concerned) < 3 or accused == s.me or {*self.losses.gone} & concerned:
            return  # we are not asked while we lead
        near, holders = {poisoned.stage, claim.stage}, self.view.holders
        if accused in holders[poisoned.stage]:
            near = {poisoned.stage}  # only its group knows that both visits are not its own
        able = {peer for stage in near for peer in holders[stage]} - concerned - {*self.losses.gone, *s.new(s.members)}
        if able:
            self._ask(s, out, Judge.of(sender, poisoned, accused, claim), poisoned, self._longest(able))

    def _close_others(self, attempt: Attempt) -> None:
        """What others look at ends with its attempt: they see nothing of it afterwards."""
        self._open = {key: case for key, case in self._open.items() if case.about.attempt == attempt}
        self._unshown = {named: said for named, said in self._unshown.items() if said.attempt == attempt}
        self._named = {named for named in self._named if self._heard_in.get(named[0]) == attempt}

    def on_verdict(self, s: Situation, sender: Peer, verdict: Verdict) -> Outcome:
        out, case = Outcome(), self._open.get(key_of(verdict.about))
        if case is not None:
            case.hear(sender, verdict)
            self._settle(s, out)
        return out

    def beat(self, s: Situation) -> Outcome:
        out = Outcome()
        self.look_for_claims(s, out)
        self._settle(s, out)
        for peer in self.memory.convicts(s.members - {s.me, *self.losses.gone}):
            proved = self.memory.convicted[peer.id].proof
            why = signed_twice(proved) if proved else "others have signed that it lied"
            self.losses.lose(s, out, peer, why)
            out += [Expose(peer)] if proved and peer.id in s.crowds.vouchers else []
        return out

    def _judges(
        self, s: Situation, accuser: Peer, accused: Peer, stage: int, begin: Begin, new: Collection[Peer]
    ) -> list[Peer]:
        """Those who can do the accused's visits again, and are not new; who voted longest first."""
        if begin.attempt.view != self.view.number:
            return []  # who made what the visits were given may be gone
        others = {*self.view.holders[stage]} - {accuser, accused, *new, *self.losses.gone}
        return self._longest(peer for peer in others if stage in checkable(self.view, peer, accused, s.settings))

    def _longest(self, able: Iterable[Peer]) -> list[Peer]:
        """As many as are asked, who voted longest first."""
        voters = {peer: place for place, peer in enumerate(self.view.voters)}
        return sorted(able, key=lambda peer: (voters.get(peer, len(voters)), peer))[:JUDGES_MAX]

    def _ask(self, s: Situation, out: Outcome, about: Judge, poisoned: Poisoned, judges: list[Peer]) -> None:
        until = s.now + PATIENCE_LEASES * s.settings.lease_seconds
        until += s.settings.shown_seconds if poisoned.hides else 0.0
        self._open[key_of(about)] = Case(about, poisoned, until, judges)
        names, what = ", ".join(map(str, judges)), f"see {about.accused}'s" if about.beside >= 0 else "do it again"
        text = f"{about.accuser} says: {poisoned.reason}; asked to {what}: {names}"
        out.note("case", text, peer=about.accused.id, step=str(poisoned.step))
        for peer in judges:
            out.send(peer, about)

    def _settle(self, s: Situation, out: Outcome) -> None:
        begin = self.losses.progress.begin
        if begin is not None:
            self._close_others(begin.attempt)
        for key, case in list(self._open.items()):
            gone = self.losses.gone
            if gone.keys() & {*key[:2]}:
                del self._open[key]
            elif case.over(s.now, gone):
                del self._open[key]
                self._judge(s, out, case)

    def _judge(self, s: Situation, out: Outcome, case: Case) -> None:
        """Most of those who could see it decide. Where as many are on either side it counts as if nobody could."""
        accuser, accused, told = case.about.accuser, case.about.accused, case.told
        liar, signers, said = liar_of(told), against(told), case.accusation.reason
        ours = self.view.lineage.id
        astray = case.accusation.hides and s.liveness.lineages.get(accused, ours) != ours  # rule 9
        if liar is None or astray:
            if case.about.beside < 0:
                self._in_vain[accuser, accused] = case.about  # it says so again at each heartbeat
            return
        names = ", ".join(str(peer) for peer in signers if peer != accuser)
        if liar == accused:
            reason = f"{accuser} says: {said}; {names} found the same"
        else:
            reason = f"it said of {accused}: {said}; {names} found nothing of it"
        out.note("liar", reason, peer=liar.id, step=str(case.about.step))
        self.losses.let_go(s, out, liar, Suspects(frozenset({liar})), reason)
        self._expose(s, out, liar, signers)
        for peer in sorted(s.members):
            out.send(peer, told)

    def _on_its_word(self, s: Situation, out: Outcome, sender: Peer, accused: Peer, poisoned: Poisoned) -> bool:
        """Nobody else can tell. Whoever is told to lie goes, unless the other one was at odds with somebody before.
        Between somebody new and an older one the older one's word counts, once without being remembered (rule 45).
        False where it is the new one that accuses."""
        new, disputes = s.new(s.members), self.memory.disputes
        if sender in new and accused not in new:
            out.note("doubt", f"{sender}, which is new, says: {poisoned.reason}", peer=sender.id)
            return False
        suspects = Suspects(frozenset({accused, sender}), frozenset({accused}))
        # What it says of this one is no news; and once it is believed of somebody new.
        again = disputes.exposed_by(accused, sender) or (
            accused in new and sender not in new and disputes.believe(sender)
        )
        peer = accused if again else disputes.choose(self.view, suspects)
        out.note("liar", f"{sender} says: {poisoned.reason}", peer=accused.id, step=str(poisoned.step))
        reason = f"it is at odds with another holder, who says: {poisoned.reason}"
        self.losses.let_go(s, out, peer, Suspects(frozenset({peer})) if again else suspects, reason)
        if peer == accused:
            self._expose(s, out, accused, [sender])
        return True

    def _expose(self, s: Situation, out: Outcome, liar: Peer, signers: Collection[Peer]) -> None:
        """It is not asked for anything, for a while on the word of one."""
        for peer in signers:
            self.memory.disputes.expose(liar, peer, s.now, s.settings.lease_seconds)
        out += [Expose(liar)] if liar.id in s.crowds.vouchers else []
