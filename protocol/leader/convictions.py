"""Who was found to lie by more than one other, and the signed words for it (rule 51).

An accusation and what others say of it are signed. So the leader shows them to all members when it lets somebody go,
and each checks them by itself: the signatures, that all who signed held the stage, and that most say the same. It keeps
them, also on its disk, and whoever leads later asks the liar for nothing. Who was not there cannot tell who held a
stage. A leader like that goes by them when so many of the voters show the same that they are a quorum. Who has signed
two different tensors for one place (rule 42) is convicted by these alone, whoever shows them.
"""

from __future__ import annotations

from collections.abc import Iterable

from ftnode.protocol.leader.leader_memory import CONVICTED_MAX, LeaderMemory
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.effects import KeepConvicted
from ftnode.protocol.words.events import Directory
from ftnode.protocol.words.messages import Certificate, Convicted, Judge, Message, Offer, SealedTensor, Share
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View


def liar_of(case: Convicted) -> Peer | None:
    """Whom the words convict: who has signed two tensors for one place; or as most of those say who did it again. None:
    they convict nobody, or do not belong together."""
    if case.proof:
        return case.accusation.giver if is_proof(case.proof) and case.proof[0].maker == case.accusation.giver else None
    accuser, accused = case.accuser, accused_in(case)
    judges, words = {judge for judge, _ in case.verdicts}, [verdict for _, verdict in case.verdicts]
    concerned = {accuser, accused, case.accusation.giver}
    if accused is None or len(judges) < len(words) or judges & concerned or accuser == accused:
        return None
    claim = _claim_in(case)
    about = Judge.of(accuser, case.accusation, accused, claim)
    unclaimed = case.accusation.beside >= 0 and claim is None
    if unclaimed or not case.accusation.distance or any(word.about != about for word in words):
        return None
    guilty = sum(word.guilty is True for word in words) - sum(word.guilty is False for word in words)
    if case.accusation.hides:
        return accused if guilty > 0 else None  # it may be shown nothing for a broken line
    return accused if guilty > 0 else accuser if guilty < 0 else None


def accused_in(case: Convicted) -> Peer | None:
    """Of whom it is. Who is not shown the tensors of a visit does not know whose it is: those know who were asked."""
    if case.accusation.beside < 0 or case.proof:
        return case.accusation.giver
    return case.verdicts[0][1].about.accused if case.verdicts else None


def _claim_in(case: Convicted) -> Share | None:
    """The word of the accused that it did the visit, which all were shown."""
    said, claim = case.accusation, case.verdicts[0][1].about.claim if case.verdicts else None
    if claim is None or said.beside < 0 or (said.microbatch, said.beside) not in claim.visits:
        return None
    same = (claim.lineage, claim.view, claim.step, claim.attempt) == (said.lineage, said.view, said.step, said.attempt)
    return claim if same else None


def against(case: Convicted) -> list[Peer]:
    """Who has signed that the liar is one, the accuser first where it is right."""
    right = liar_of(case) not in (None, case.accuser)
    return [*([case.accuser] if right else []), *(judge for judge, word in case.verdicts if word.guilty is right)]


def newest_of(cases: Iterable[Convicted]) -> tuple[Convicted, ...]:
    """As many as are kept: one for each liar, the first."""
    found: dict[str, Convicted] = {}
    for case in cases:
        if (liar := liar_of(case)) is not None:
            found.setdefault(liar.id, case)
    return tuple(found.values())[-CONVICTED_MAX:]


def of_view(case: Convicted, view: View) -> bool:
    """All who signed held the stage in this view; or, where the tensors of a visit beside are not shown, that of this
    one, which the accused held."""
    said, judges = case.accusation, [judge for judge, _ in case.verdicts]
    if (said.lineage, said.view) != (view.lineage.id, view.number) or not 0 <= said.stage < len(view.holders):
        return False
    group, claim = {*view.holders[said.stage]}, _claim_in(case)
    if said.beside < 0:
        return {case.accuser, said.giver, *judges} <= group
    if claim is None or not 0 <= claim.stage < len(view.holders):
        return False
    others = {*view.holders[claim.stage]}
    return accused_in(case) in others and {case.accuser, said.giver} <= group and {*judges} <= group | others


def is_proof(sealed: tuple[SealedTensor, ...]) -> bool:
    """One peer has signed these two, and they are of one place and not the same."""
    if len(sealed) != 2:
        return False
    (*first, one), (*second, other) = (
        (each.microbatch, each.visit, each.direction, each.maker, each.seal.digest) for each in sealed
    )
    return first == second and one != other


def signed_twice(proof: tuple[SealedTensor, ...]) -> str:
    """What it proves, in words."""
    if proof[0].of_path:
        return "it has admitted one microbatch on two paths"
    return "it has signed two different tensors for one place"


def _committed(s: Situation, view: View) -> int:
    """The newest committed step; -1 where no step of our lineage tells us, as when we have just come."""
    begin = s.own.begin
    return s.highest_step if s.member and begin is not None and begin.lineage == view.lineage.id else -1


class Convictions:
    """What one peer has seen, and shows to its leader."""

    def __init__(self, memory: LeaderMemory) -> None:
        self._memory = memory

    def remember(self, cases: Iterable[Convicted]) -> Outcome:
        """What we were convinced of in an earlier life, by our own disk: we were there, or a quorum showed it."""
        out = Outcome()
        for case in newest_of(cases):
            liar = liar_of(case)
            assert liar is not None
            self._memory.convict(liar.id, case)
            out.note("convicted", f"{liar} lied before: this node keeps what others have signed of it", peer=liar.id)
        return out

    def shuns(self, view: View | None, sender: Peer, message: Message) -> bool:
        """It offers us something and is no member of our view, or it leads the lineage that is shown to us. Who lied
        would lead those who keep it out."""
        if isinstance(message, Offer):
            return sender.id in self._memory.convicted and (view is None or sender not in view.members())
        return isinstance(message, Certificate) and self._leads(view, message.view)

    def without(self, view: View | None, found: Directory) -> Directory:
        """What the directory says of others: a liar is no founder that one waits for, nor is its lineage followed."""
        if not self._memory.convicted:
            return found
        presences = tuple(each for each in found.presences if each.peer.id not in self._memory.convicted)
        certificates = tuple(each for each in found.certificates if not self._leads(view, each))
        return Directory(presences, certificates)

    def _leads(self, ours: View | None, theirs: View) -> bool:
        """A lineage that is not ours, by somebody who was convicted."""
        stranger = ours is None or ours.lineage.id != theirs.lineage.id
        return stranger and theirs.leader.id in self._memory.convicted

    def on_convicted(self, s: Situation, sender: Peer, case: Convicted) -> Outcome:
        """From the leader, of our view; or, when we lead, from a voter that was there. A proof counts from anybody."""
        out, liar, known = Outcome(), liar_of(case), self._memory.convicted
        if liar is None or s.view is None:
            return out
        if case.proof:
            if sender in s.members and liar in s.members:
                self._believe(s, out, liar, case)
        elif sender == s.view.leader and of_view(case, s.view):
            self._believe(s, out, liar, case)
        elif s.led is not None and sender in s.view.voters and liar.id not in known:
            told = self._memory.showing(liar.id, sender)
            if s.view.is_quorum(told & {*s.view.voters}):
                self._believe(s, out, liar, case)
        return out

    def _believe(self, s: Situation, out: Outcome, liar: Peer, case: Convicted) -> None:
        if not self._memory.convict(liar.id, case):
            return
        assert s.view is not None
        out.append(KeepConvicted(case, _committed(s, s.view), s.view.lineage.order))
        said = case.accusation
        names = ", ".join(str(judge) for judge, _ in case.verdicts)
        text = f"{liar} lied in step {said.step}: {case.accuser} and {names} have signed what they saw ({said.reason})"
        if case.proof:
            text = f"{liar} lied in step {said.step}: {said.reason}, as {case.accuser} shows"
        out.note("convicted", text, peer=liar.id, step=str(said.step))

    def beat(self, s: Situation) -> Outcome:
        """Show the leader what we have against a member that it took in; and all others what proves that the leader has
        lied, since they choose another one."""
        out = Outcome()
        if s.view is None or not s.member:
            return out
        for liar in self._memory.convicts(s.members - {s.me, s.view.leader}):
            out.send(s.view.leader, self._memory.convicted[liar.id])
        if s.leader_lied and s.me != s.view.leader:
            for peer in sorted(s.members - {s.me, s.view.leader}):
                out.send(peer, self._memory.convicted[s.view.leader.id])
        return out
