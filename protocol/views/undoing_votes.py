"""Members who vote to roll back, where the author is away or there is none (rule 47).

A node whose owner wants the run to roll back tells all members so, signed, again and again while the wish stands. Each
member counts for itself, so that a leader that lies has no part in it. More than half of the view's voters for one step
are an order. The signatures show it to peers that were not there, and go along with certificates, as a roll does. What
follows an order is the same, be it of members or of the author.

Peers believe an order if more than half of the voters of the view by which they go have signed it. All others believe
it together with a lineage that follows it, where they yield to that one, and for as long as they go by it. The order is
a reason to yield only where most of their own voters have signed it. Else a peer that was alone for a while, and
ordered itself to roll back, would undo the work of all.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ftnode.protocol.situation import OrderChanged, Outcome, Situation
from ftnode.protocol.views.proofs import Proofs, most
from ftnode.protocol.words.effects import KeepOrder
from ftnode.protocol.words.messages import NO_STEP, Certificate, MembersOrder, Signed, UndoVote
from ftnode.protocol.words.types import NO_ORDER, Peer, RollbackOrder
from ftnode.protocol.words.view import majority

WISH_SECONDS: Final = 3600.0
"""An owner's wish that has not become an order by then is over."""
SAID_LEASES: Final = 3
"""A vote that has not been said again for so many leases is over."""


def counts(order: MembersOrder) -> bool:
    """More than half of the voters of its own view have signed it."""
    return len(order.signers() & {*order.view.voters}) >= majority(len(order.view.voters))


def next_number(newest: RollbackOrder) -> int:
    """Of an order of members. Theirs are odd and the author's even, so that two orders that are given at the same
    moment are not taken for one."""
    return newest.number + 1 | 1


class UndoingVotes:
    """Our owner's wish, the votes of the view that we go by, and the newest order that came of any."""

    def __init__(self) -> None:
        self.order: MembersOrder | None = None
        self._sure = False
        """It is believed whatever lineage we go by."""
        self._wish: tuple[int, float] | None = None
        """The step, and until when it is wanted."""
        self._votes: dict[Peer, tuple[UndoVote, float]] = {}
        """Of each voter of our view the newest, and when it came."""
        self._said_at = float("-inf")
        self._wishes = 0

    # -- questions

    @property
    def given(self) -> RollbackOrder:
        """The newest order of members that we believe."""
        return _given_by(self.order)

    def wants(self) -> int | None:
        """The step that our owner wants the run to roll back to."""
        return self._wish[0] if self._wish is not None else None

    def in_force(self, order: RollbackOrder) -> MembersOrder | None:
        """The members' order, where that is the newest one."""
        return self.order if self.given == order else None

    def standing(self, s: Situation) -> dict[int, frozenset[Peer]]:
        """Step → the voters of our view who want to roll back to it now, ours among them."""
        if s.view is None:
            return {}
        fresh = s.now - SAID_LEASES * s.settings.lease_seconds
        wanted = {peer: vote.step for peer, (vote, at) in self._votes.items()
                  if at >= fresh and vote.number == next_number(s.order)}  # fmt: skip
        if self._wish is not None:
            wanted[s.me] = self._wish[0]
        voters = {*s.view.voters}
        return {
            step: frozenset(peer for peer in wanted if wanted[peer] == step and peer in voters)
            for step in sorted({*wanted.values()} - {NO_STEP})
        }

    # -- our owner, and others

    def wish(self, s: Situation, step: int) -> Outcome:
        """Our owner wants the run to roll back to that step; NO_STEP: no longer. Who wants what is ordered, and not
        done yet, does not want another order."""
        if s.to_roll_back and s.order.step == step:
            return Outcome()
        stands = self._wish is not None
        self._wishes += 1
        self._wish = (step, s.now + WISH_SECONDS) if step != NO_STEP else None
        if self._wish is None:
            return self._say(s, NO_STEP) if stands else Outcome()
        return self._say(s, step).extended(self._settle(s))

    def on_order(self) -> None:
        """What our owner wanted was about what this order undoes."""
        self._wish = None

    def on_vote(self, s: Situation, sender: Peer, vote: UndoVote) -> Outcome:
        view = s.view
        if view is None or not s.of_view(vote.lineage, vote.view) or vote.digest != view.digest():
            return Outcome()
        before = self._votes.get(sender)
        if sender not in view.voters or (before is not None and before[0].serial > vote.serial):
            return Outcome()
        self._votes[sender] = vote, s.now
        return self._settle(s)

    def on_view(self, s: Situation) -> Outcome:
        """What was signed is of the view before; and an order that we believed for a lineage's sake goes with it."""
        out = Outcome()
        self._votes.clear()
        self._said_at = float("-inf")
        if self.order is not None and not self._sure and not _is_followed(s, self.order):
            self.order = None
            out.append(OrderChanged())
        return out

    def beat(self, s: Situation, proofs: Proofs) -> Outcome:
        """What our owner wants is said again once a lease. A member of a swarm that has followed an order knows that it
        was one; and of one that trains on, and has not given it, that it was none here."""
        out = Outcome()
        if self._wish is not None and s.now > self._wish[1]:
            out.note("rollback", f"nobody else wants to roll back to step {self._wish[0]}: no longer votes for it")
            self._wish = None
        if self._wish is not None and s.now - self._said_at >= s.settings.lease_seconds:
            out.extend(self._say(s, self._wish[0]))
            out.extend(self._settle(s))
        if self.order is not None and not self._sure and s.member and s.quorate and _is_followed(s, self.order):
            self._sure = True
            out.append(KeepOrder(self.order))
        if self.order is not None and s.member and s.quorate and _is_foreign(s, self.order, proofs):
            out.note("rollback", f"too few voters here want to roll back to step {self.order.step}: no order any more")
            self.order = None
            out.append(KeepOrder(None))
            out.append(OrderChanged())
        return out

    def _say(self, s: Situation, step: int) -> Outcome:
        out, view = Outcome(), s.view
        if view is None or s.me not in view.voters:
            return out
        self._said_at = s.now
        vote = UndoVote(view.lineage.id, view.number, view.digest(), next_number(s.order), step, self._wishes)
        for peer in sorted(s.members - {s.me}):
            out.send(peer, vote)
        return out

    def _settle(self, s: Situation) -> Outcome:
        """More than half want the same."""
        view = s.view
        for step, peers in self.standing(s).items():
            if view is not None and len(peers) >= majority(len(view.voters)):
                signed = tuple(
                    Signed(peer, self._votes[peer][0].signature if peer != s.me else "") for peer in sorted(peers)
                )
                return self._believe(MembersOrder(view, next_number(s.order), step, signed), sure=True)
        return Outcome()

    # -- orders that others show

    def on_shown(self, s: Situation, shown: Certificate) -> Outcome:
        """An order comes with a certificate, and our own voters have signed it."""
        order = self._news(s, shown)
        return self._believe(order, sure=True) if order is not None and _signed_by_ours(s, order) else Outcome()

    def followed_by(self, s: Situation, shown: Certificate, proofs: Proofs) -> RollbackOrder:
        """The order that the shown lineage follows, which `taken_up` believes; NO_ORDER: nothing speaks for it. It
        binds us where most of those have signed it who vote with us, or did before we were cut off from the others."""
        order = self._news(s, shown)
        if order is None or shown.view.lineage.order != order.number:
            return NO_ORDER
        if s.view is None:
            return _given_by(order)
        if not (s.settings.listed or proofs.akin_to(order.signers())):
            return NO_ORDER
        return replace(_given_by(order), binds=proofs.by_most(order.signers(), s.view))

    def taken_up(self, shown: Certificate) -> Outcome:
        """We go by its lineage from now on."""
        assert shown.order is not None
        return self._believe(shown.order, sure=False)

    @staticmethod
    def _news(s: Situation, shown: Certificate) -> MembersOrder | None:
        order = shown.order
        later = order is not None and counts(order) and _given_by(order).rank > s.order.rank
        return order if later else None

    def on_kept(self, order: MembersOrder) -> Outcome:
        """From our own disk."""
        if not counts(order):
            return Outcome()
        self.order, self._sure = order, True
        return Outcome([OrderChanged()])

    def _believe(self, order: MembersOrder, sure: bool) -> Outcome:
        out = Outcome()
        self.order, self._sure = order, sure
        self._votes.clear()
        if sure:
            out.append(KeepOrder(order))
        out.append(OrderChanged())
        return out


def _given_by(order: MembersOrder | None) -> RollbackOrder:
    return RollbackOrder(order.number, order.step, members=True) if order is not None else NO_ORDER


def _signed_by_ours(s: Situation, order: MembersOrder) -> bool:
    """By more than half of those who vote in the view that we go by, in whatever life of theirs."""
    return s.view is not None and most(order.signers(), s.view)


def _is_foreign(s: Situation, order: MembersOrder, proofs: Proofs) -> bool:
    """It was given in another lineage than ours, which trains, and too few have signed it of those who vote here."""
    if s.view is None or s.highest_step == 0 or _is_followed(s, order) or proofs.by_most(order.signers(), s.view):
        return False
    return order.view.lineage.id != s.view.lineage.id and len(s.view.voters) >= len(order.signers())


def _is_followed(s: Situation, order: MembersOrder) -> bool:
    return s.view is not None and s.view.lineage.order >= order.number
