"""The standby's side of an offer: dial the stage's neighbours, then accept or decline (rule 10)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftnode.protocol.effects import Dial
from ftnode.protocol.messages import Answer, Offer
from ftnode.protocol.types import HEAD, Peer

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant


DIALLED_MAX: Final = 16
"""Neighbours whom an offer makes us dial that comes from none of our view: it may be by a leader that we have not heard
of yet, or by anybody."""


class Candidate:
    """At most one candidacy at a time; a newer offer replaces an older one."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self.offer: Offer | None = None
        self.leader: Peer | None = None
        self.missing: set[Peer] = set()

    def on_offer(self, sender: Peer, offer: Offer) -> None:
        core = self.core
        over = core.view is not None and sender != core.view.leader and offer.view <= core.view.number
        if over and not self._restarts(offer):
            return  # the leader of a view that is over, or nobody
        self.offer, self.leader = offer, sender
        refusal = self._refusal(sender, offer)
        if refusal:
            self._answer(False, refusal)
            return
        self.missing = set()
        trusted = sender in core.members
        for contact in offer.neighbours if trusted else offer.neighbours[:DIALLED_MAX]:
            if trusted or contact.peer not in core.contacts:
                core.know(contact.peer, contact.addresses)
            if contact.peer not in (core.me, sender) and contact.peer not in core.liveness.up:
                self.missing.add(contact.peer)
                core.emit(Dial(contact.peer))
        core.timers.set("candidacy", core.now + 0.8 * core.settings.offer_seconds)
        self._accept_when_linked()

    def _restarts(self, offer: Offer) -> bool:
        """We still look for a swarm that was switched off, and another begins: who is asked first has the stage on its
        disk, so that a silence would send it through the network."""
        core = self.core
        elsewhere = core.view is not None and core.view.lineage.id != offer.lineage
        return elsewhere and not core.follow.quorate and bool(core.disk)

    def _refusal(self, sender: Peer, offer: Offer) -> str:
        core = self.core
        view = core.view
        foreign = view is not None and view.lineage.id != offer.lineage
        if core.member and foreign:
            return "I am a member of another lineage"
        if core.member and view is not None and (sender != view.leader or view.number != offer.view):
            return "I know another view"
        if core.leaving:
            return "I am leaving"
        if not core.holder.compute_ready:
            return "my compute process is not ready"
        if offer.learn and core.holder.learning:
            return "I learn one already"
        if set(offer.stages) & set(core.mine):
            return "I hold it and give it up"
        spare = not offer.learn and len(offer.stages) == 1 and self._is_spare()
        if len(offer.stages) > core.room and not spare:
            return f"I have room for {core.room} more stages"
        if (stage := self._needed_at(offer)) is not None:
            return f"I have the weights of stage {stage}, which nobody holds"
        if HEAD in offer.stages and not core.holder.may_head:
            return "I do not have the run's corpus"
        failed = core.holder.refuses.intersection(offer.stages)
        if failed:
            return f"I ran out of memory on stage {min(failed)} before"
        return ""

    def _needed_at(self, offer: Offer) -> int | None:
        """A stage without holders that we could not take any more, for one of which we have nothing. Its weights may be
        nowhere else; the leader, who has not heard of them yet, soon does."""
        core, view = self.core, self.core.view
        if offer.learn or view is None or (view.lineage.id, view.number) != (offer.lineage, offer.view):
            return None
        have = {stage for stage, version in core.holder.exact(offer.lineage) if version == offer.base}
        if have.intersection(offer.stages) or len(offer.stages) < core.room:
            return None
        return next((stage for stage in sorted(have) if not view.holders[stage]), None)

    def _is_spare(self) -> bool:
        """Others hold the one stage that we hold, so that the next view may have us elsewhere."""
        core = self.core
        return core.view is not None and len(core.mine) == 1 and len(core.view.holders[core.mine[0]]) > 1

    def _accept_when_linked(self) -> None:
        if self.offer is not None and not self.missing:
            self._answer(True, "the neighbours answer")

    def _answer(self, accepted: bool, reason: str) -> None:
        assert self.offer is not None and self.leader is not None
        offer, have = self.offer, self.core.holder.exact(self.offer.lineage)
        exact = tuple(stage for stage in offer.stages if (stage, offer.base) in have)
        answer = Answer(offer.lineage, offer.view, offer.stages, accepted, exact, reason)
        self.core.send(self.leader, answer)
        self.offer = self.leader = None
        self.missing.clear()
        self.core.timers.clear("candidacy")

    def on_link_up(self, peer: Peer) -> None:
        if peer in self.missing:
            self.missing.discard(peer)
            self._accept_when_linked()

    def on_link_down(self, peer: Peer, reason: str) -> None:
        if self.offer is not None and peer in self.missing:
            self._answer(False, f"cannot reach {peer}: {reason}")

    def expire(self) -> None:
        if self.offer is not None:
            names = ", ".join(str(peer) for peer in sorted(self.missing))
            self._answer(False, f"no answer from {names} in time")
