"""Choosing the next view: who may vote in which ballot, and what happens when a view is chosen (rules 11-14)."""

from __future__ import annotations

from ftnode.protocol.situation import Outcome, ShowView, Situation, TakeUp
from ftnode.protocol.views.ballot import Balloting
from ftnode.protocol.words.messages import Outbid, Prepare, Promise, Propose, Vote
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

BALLOTINGS_KEPT = 8


class Election:
    """Hands ballots of our view to its Balloting; a peer that is behind is sent the certificate instead."""

    def __init__(self, me: Peer) -> None:
        self.me = me
        self._ballotings: dict[str, Balloting] = {}

    def balloting_of(self, view: View) -> Balloting:
        """What was promised and accepted in a view holds when we come back to it from another lineage."""
        known = self._ballotings.pop(view.lineage.id, None)
        balloting = known if known is not None and known.view == view else Balloting(self.me, view)
        self._ballotings[view.lineage.id] = balloting
        while len(self._ballotings) > BALLOTINGS_KEPT:
            del self._ballotings[next(iter(self._ballotings))]
        return balloting

    def newest_of(self, view: View) -> View:
        """The view, or a later one of its lineage that we had before we left it: views never go back (I3)."""
        known = self._ballotings.get(view.lineage.id)
        return known.view if known is not None and known.view.number > view.number else view

    def on_vote(self, s: Situation, sender: Peer, message: Vote) -> Outcome:
        """Paxos for the next view. A voter that hears its leader does not help to replace it."""
        out, view = Outcome(), s.view
        number = message.view.number if isinstance(message, Propose) else message.number
        lineage = message.view.lineage.id if isinstance(message, Propose) else message.lineage
        if view is None or not s.of_view(lineage, number - 1):
            if view is not None and view.lineage.id == lineage and number <= view.number:
                out.append(ShowView(sender, number - 1))
            return out
        balloting = self._ballotings[lineage]
        if sender in view.voters:
            balloting.took_part[sender] = s.now
        if isinstance(message, Prepare):
            if sender in (s.me, view.leader) or s.another_leads:
                out.extend(balloting.on_prepare(sender, message))
        elif isinstance(message, Propose):
            out.extend(balloting.on_propose(sender, message))
        elif isinstance(message, Promise):
            out.extend(balloting.on_promise(sender, message))
        elif isinstance(message, Outbid):
            balloting.on_outbid(sender, message)
        else:
            chosen = balloting.on_accepted(sender, message)
            if chosen is not None:
                everybody = (s.members | {*chosen.view.members()}) - {s.me}
                out.append(TakeUp(chosen.view, chosen.proof, tuple(sorted(everybody))))
        return out
