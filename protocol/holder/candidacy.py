"""The standby's side of an offer: dial the stage's neighbours, then accept or decline (rule 10)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ftnode.protocol.situation import ClearTimer, Outcome, Remember, Situation
from ftnode.protocol.wire.admission import REASON_MAX
from ftnode.protocol.words.effects import Dial
from ftnode.protocol.words.messages import Answer, Offer
from ftnode.protocol.words.types import HEAD, Peer

DIALLED_MAX: Final = 16
"""Neighbours whom an offer makes us dial that comes from none of our view: it may be by a leader that we have not heard
of yet, or by anybody."""


class Candidacy:
    """At most one candidacy at a time. A newer offer replaces an older one, but no stranger's that of a member: who
    accepted both would follow one, and the other would wait for it."""

    def __init__(self) -> None:
        self.offer: Offer | None = None
        """What we have not answered yet."""
        self.leader: Peer | None = None
        """Who asked us last, unless we declined."""
        self.missing: set[Peer] = set()
        self._open_until = float("-inf")
        """The leader waits so long for our answer and those of others, and the next view comes."""

    def on_offer(self, s: Situation, sender: Peer, offer: Offer) -> Outcome:
        out = Outcome()
        over = s.view is not None and sender != s.view.leader and offer.view <= s.view.number
        if over and not _restarts(s, offer):
            return out  # the leader of a view that is over, or nobody
        if self._is_bound(s) and sender not in s.members:
            _say(s, out, sender, offer, False, f"I am a candidate of {self.leader}, whom I know")
            return out
        if offer.learn:  # of several that others leave it takes those that it has room for
            room = max(1, s.room - len(s.own.learning))
            offer = replace(offer, stages=offer.stages[:room])
        self.offer, self.leader, self._open_until = offer, sender, s.now + s.settings.offer_seconds
        refusal = _refusal(s, sender, offer)
        if refusal:
            self._answer(s, out, False, refusal)
            return out
        self.missing = set()
        trusted = sender in s.members
        for contact in offer.neighbours if trusted else offer.neighbours[:DIALLED_MAX]:
            if trusted or contact.peer not in s.contacts:
                out.append(Remember(contact.peer, contact.addresses))
            if contact.peer not in (s.me, sender) and contact.peer not in s.liveness.up:
                self.missing.add(contact.peer)
                out.append(Dial(contact.peer))
        out.set_timer("candidacy", s.now + 0.8 * s.settings.offer_seconds)
        self._accept_when_linked(s, out)
        return out

    def _is_bound(self, s: Situation) -> bool:
        """A member of our view has asked us, and we have not declined."""
        return self.leader in s.members and s.now < self._open_until

    def _accept_when_linked(self, s: Situation, out: Outcome) -> None:
        if self.offer is not None and not self.missing:
            self._answer(s, out, True, "the neighbours answer")

    def _answer(self, s: Situation, out: Outcome, accepted: bool, reason: str) -> None:
        assert self.offer is not None and self.leader is not None
        _say(s, out, self.leader, self.offer, accepted, reason)
        self.offer = None
        if not accepted:
            self.leader = None
        self.missing.clear()
        out.append(ClearTimer("candidacy"))

    def on_link_up(self, s: Situation, peer: Peer) -> Outcome:
        out = Outcome()
        if peer in self.missing:
            self.missing.discard(peer)
            self._accept_when_linked(s, out)
        return out

    def on_link_down(self, s: Situation, peer: Peer, reason: str) -> Outcome:
        out = Outcome()
        if self.offer is not None and peer in self.missing:
            self._answer(s, out, False, f"cannot reach {peer}: {reason}")
        return out

    def expire(self, s: Situation) -> Outcome:
        out = Outcome()
        if self.offer is not None:
            names = ", ".join(str(peer) for peer in sorted(self.missing))
            self._answer(s, out, False, f"no answer from {names} in time")
        return out


def _say(s: Situation, out: Outcome, leader: Peer, offer: Offer, accepted: bool, reason: str) -> None:
    """With the stages of which we have the very weights."""
    have = s.own.exact(offer.lineage)
    exact = tuple(stage for stage in offer.stages if (stage, offer.base) in have)
    reason = reason[:REASON_MAX]
    out.send(leader, Answer(offer.lineage, offer.view, offer.stages, accepted, exact, reason, offer.learn))


def _restarts(s: Situation, offer: Offer) -> bool:
    """We still look for a swarm that was switched off, and another begins: who is asked first has the stage on its
    disk, so that a silence would send it through the network."""
    elsewhere = s.view is not None and s.view.lineage.id != offer.lineage
    return elsewhere and not s.quorate and bool(s.own.snapshots_told())


def _refusal(s: Situation, sender: Peer, offer: Offer) -> str:
    """Why we decline; empty if we do not."""
    view = s.view
    foreign = view is not None and view.lineage.id != offer.lineage
    if s.member and foreign:
        return "I am a member of another branch of the run"
    if s.member and view is not None and (sender != view.leader or view.number != offer.view):
        return "I know of another change of who holds what"
    if s.leaving:
        return "I am leaving"
    if not s.own.compute_ready:
        return "my compute process is not ready"
    if {*offer.stages} & {*s.mine}:
        return "I hold it and give it up"
    if offer.learn and {*offer.stages} & {*s.own.learning}:
        return "I learn it already"
    spare = not offer.learn and len(offer.stages) == 1 and _is_spare(s)
    room = s.room - len(s.own.learning) if offer.learn else s.room
    if len(offer.stages) > room and not spare:
        return f"I have room for {room} more stages"
    if (stage := _needed_at(s, offer)) is not None:
        return f"I have the weights of stage {stage}, which nobody holds"
    if HEAD in offer.stages and not s.own.may_head:
        return "I do not have the run's corpus"
    failed = s.own.refuses.intersection(offer.stages)
    if failed:
        return f"I could not take stage {min(failed)} before"
    return ""


def _needed_at(s: Situation, offer: Offer) -> int | None:
    """A stage without holders that we could not take any more, for one of which we have nothing. Its weights may be
    nowhere else; the leader, who has not heard of them yet, soon does. The view that the offer is about may not be here
    yet: then what we have counts by the one before, and a stage that was filled meanwhile costs the leader one answer.
    """
    view = s.view
    if offer.learn or view is None or view.lineage.id != offer.lineage:
        return None
    base = offer.base
    unknown = not base.commit  # the leader does not know yet where the swarm stands: what is newest may be needed
    exact = s.own.exact(offer.lineage)
    have = {stage for stage, version in exact if version == base or (unknown and version.step >= base.step)}
    if have.intersection(offer.stages) or len(offer.stages) < s.room:
        return None
    return next((stage for stage in sorted(have) if not view.holders[stage]), None)


def _is_spare(s: Situation) -> bool:
    """Others hold a stage that we hold, so that the next view may have us elsewhere."""
    return s.view is not None and any(len(s.view.holders[stage]) > 1 for stage in s.mine)
