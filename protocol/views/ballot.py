"""Choosing view v+1 by a quorum of the voters of view v: single-decree Paxos, one instance a view (rules 11-13).

The leader of v may propose once at ballot 0 without asking (ballot 0 is its alone). Everybody else, and the leader
after that, first collects promises and adopts the accepted view of the highest ballot. Acceptors keep their state in
memory: a restart is a new peer without votes (rule 1), so nothing has to survive one.
"""

from __future__ import annotations

from itertools import starmap

from ftnode.protocol.wire.admission import BALLOTS_MAX
from ftnode.protocol.words.effects import Effect, Send
from ftnode.protocol.words.messages import Accepted, Ballot, Link, Outbid, Prepare, Promise, Proof, Propose, Signed
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View


def order(ballot: Ballot | None) -> tuple[int, Peer]:
    """Ballots in order; no ballot is below all."""
    return (-1, Peer("", 0)) if ballot is None else (ballot.number, ballot.proposer)


class Balloting:
    """Acceptor and proposer of one peer for the successor of `view`. Made anew when a view is installed."""

    def __init__(self, me: Peer, view: View) -> None:
        self.me, self.view = me, view
        self.number = view.number + 1
        self.promised: Ballot | None = None
        self.accepted: tuple[Ballot, View] | None = None
        self.ballot: Ballot | None = None
        self.proposal: View | None = None
        self.preparing = False
        self.since = 0.0
        self._promises: dict[Peer, Promise] = {}
        self._acceptances: dict[Peer, str] = {}
        """Voter → its signature."""
        self._highest = 0
        self.asked_since: float | None = None
        """Since when we have asked for a view without the leader; None: we do not."""
        self.took_part: dict[Peer, float] = {}
        """When each voter last said anything in this election, or that it hears a leader."""

    # -- proposer

    @property
    def proposing(self) -> bool:
        return self.ballot is not None

    def propose(self, proposal: View, now: float) -> list[Effect]:
        """Start a ballot for `proposal`: ballot 0 where that is allowed, else one above all that were seen."""
        assert proposal.number == self.number
        first = self.me == self.view.leader and self.ballot is None and self.promised is None
        number = 0 if first else max(self._highest, order(self.promised)[0], 0) + 1
        if number >= BALLOTS_MAX:  # a voter has said so, and whoever goes on counting is taken for a liar
            return []
        self._highest = number
        self.ballot = Ballot(self._highest, self.me)
        self.proposal, self.since, self.preparing = proposal, now, not first
        if self.asked_since is None:
            self.asked_since = now
        self._promises, self._acceptances = {}, {}
        return self.resend()

    def quiet(self, now: float, awake_since: float) -> dict[Peer, float]:
        """Voter → seconds for which it has said nothing in this election, while we asked it."""
        if self.asked_since is None:
            return {}
        since = max(self.asked_since, awake_since)
        others = (voter for voter in self.view.voters if voter != self.me)
        return {voter: now - max(since, self.took_part.get(voter, since)) for voter in others}

    def resend(self) -> list[Effect]:
        """The messages of the current phase, for the voters that have not answered."""
        if self.ballot is None or self.proposal is None:
            return []
        message = (
            Prepare(self.view.lineage.id, self.number, self.ballot)
            if self.preparing
            else Propose(self.ballot, self.proposal)
        )
        answered = self._promises.keys() if self.preparing else self._acceptances.keys()
        return [Send(voter, message, None) for voter in self.view.voters if voter not in answered]

    def on_promise(self, sender: Peer, promise: Promise) -> list[Effect]:
        if promise.ballot != self.ballot or not self.preparing or sender not in self.view.voters:
            return []
        if promise.accepted_view is not None and not self._follows(promise.accepted_view):
            return []  # nobody can have accepted it here
        self._promises[sender] = promise
        if not self.view.is_quorum(self._promises):
            return []
        self.proposal = adopt(self._promises, self.proposal)
        self.preparing = False
        return self.resend()

    def on_accepted(self, sender: Peer, accepted: Accepted) -> Link | None:
        """The chosen view with its proof once a quorum has accepted it."""
        if accepted.ballot != self.ballot or self.preparing or sender not in self.view.voters:
            return None
        if self.proposal is None or accepted.digest != self.proposal.digest():
            return None
        self._acceptances[sender] = accepted.signature
        if not self.view.is_quorum(self._acceptances):
            return None
        return Link(self.proposal, Proof(accepted.ballot, tuple(starmap(Signed, self._acceptances.items()))))

    def on_outbid(self, sender: Peer, outbid: Outbid) -> None:
        if sender in self.view.voters:
            self._highest = max(self._highest, outbid.promised.number)

    def _follows(self, view: View) -> bool:
        """Is it a next view of this one at all?"""
        ours = self.view
        return (view.lineage, view.number, view.previous) == (ours.lineage, self.number, ours.digest())

    # -- acceptor

    def on_prepare(self, sender: Peer, prepare: Prepare) -> list[Effect]:
        if self.me not in self.view.voters or sender not in self.view.voters:
            return []
        if order(prepare.ballot) < order(self.promised):
            assert self.promised is not None
            return [Send(sender, Outbid(prepare.lineage, self.number, self.promised), None)]
        self.promised = prepare.ballot
        ballot, view = self.accepted or (None, None)
        return [Send(sender, Promise(prepare.lineage, self.number, prepare.ballot, ballot, view), None)]

    def on_propose(self, sender: Peer, propose: Propose) -> list[Effect]:
        """Accept unless a higher ballot was promised. Refuses a ballot 0 that is not the leader's."""
        if self.me not in self.view.voters or not self._follows(propose.view) or sender not in self.view.voters:
            return []
        if propose.ballot.number == 0 and sender != self.view.leader:
            return []
        lineage = self.view.lineage.id
        if order(propose.ballot) < order(self.promised):
            assert self.promised is not None
            return [Send(sender, Outbid(lineage, self.number, self.promised), None)]
        self.promised = propose.ballot
        self.accepted = (propose.ballot, propose.view)
        return [Send(sender, Accepted(lineage, self.number, propose.ballot, propose.view.digest()), None)]


def adopt(promises: dict[Peer, Promise], own: View | None) -> View | None:
    """The view accepted at the highest ballot among the promises, else our own proposal (rule 11).

    The adopted view keeps the leader that proposed it: a view is chosen whole.
    """
    accepted = [promise for promise in promises.values() if promise.accepted_view is not None]
    if not accepted:
        return own
    return max(accepted, key=lambda promise: order(promise.accepted_ballot)).accepted_view
