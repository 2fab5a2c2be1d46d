"""Choosing the next view: who may vote in which ballot, and what happens when a view is chosen (rules 11-14)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.ballot import Balloting
from ftnode.protocol.messages import Accepted, Outbid, Prepare, Promise, Propose
from ftnode.protocol.types import Peer
from ftnode.protocol.view import View

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant

BALLOTINGS_KEPT = 8
Vote = Prepare | Promise | Propose | Accepted | Outbid


class Election:
    """Hands ballots of our view to its Balloting; a peer that is behind is sent the certificate instead."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self._ballotings: dict[str, Balloting] = {}

    def balloting_of(self, view: View) -> Balloting:
        """What was promised and accepted in a view holds when we come back to it from another lineage."""
        known = self._ballotings.pop(view.lineage.id, None)
        balloting = known if known is not None and known.view == view else Balloting(self.core.me, view)
        self._ballotings[view.lineage.id] = balloting
        while len(self._ballotings) > BALLOTINGS_KEPT:
            del self._ballotings[next(iter(self._ballotings))]
        return balloting

    def newest_of(self, view: View) -> View:
        """The view, or a later one of its lineage that we had before we left it: views never go back (I3)."""
        known = self._ballotings.get(view.lineage.id)
        return known.view if known is not None and known.view.number > view.number else view

    def on_vote(self, sender: Peer, message: Vote) -> None:
        """Paxos for the next view. A voter that hears its leader does not help to replace it."""
        core, view = self.core, self.core.view
        number = message.view.number if isinstance(message, Propose) else message.number
        lineage = message.view.lineage.id if isinstance(message, Propose) else message.lineage
        if view is None or not core.of_this_view(lineage, number - 1):
            if view is not None and view.lineage.id == lineage and number <= view.number:
                core.send(sender, core.certificate())
            return
        if isinstance(message, Prepare):
            if sender in (core.me, view.leader) or core.follow.leader_silent():
                core.route(core.balloting.on_prepare(sender, message))
        elif isinstance(message, Propose):
            core.route(core.balloting.on_propose(sender, message))
        elif isinstance(message, Promise):
            core.route(core.balloting.on_promise(sender, message))
        elif isinstance(message, Outbid):
            core.balloting.on_outbid(sender, message)
        else:
            chosen = core.balloting.on_accepted(sender, message)
            if chosen is not None:
                self._chosen(chosen)

    def _chosen(self, view: View) -> None:
        core, before = self.core, self.core.members
        core.install(view)
        certificate = core.certificate()
        for peer in sorted(before | core.members):
            if peer != core.me:
                core.send(peer, certificate)
