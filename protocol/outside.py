"""Former holders: they are outside of the view, and what they have may be all that is left (rule 16)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ftnode.protocol.succession import descends

if TYPE_CHECKING:
    from ftnode.protocol.messages import Certificate
    from ftnode.protocol.participant import Participant
    from ftnode.protocol.types import Peer
    from ftnode.protocol.view import View

VIEWS_MAX: Final = 16
"""How many views of others are remembered, out of which a lineage may be founded whose past is also ours."""
TOLD_MAX: Final = 256
"""How many of those who say that they have weights are told of a lineage that goes on with them."""


class Outside:
    """What one of them knows of the views since it was in one, and of the others."""

    def __init__(self, core: Participant) -> None:
        self.core = core
        self._views: tuple[View, ...] = ()
        """Of the lineage that we follow, since the last one that we were in, which is the first."""

    def on_view(self, view: View, same: bool) -> None:
        """`same`: its lineage is that of the view before."""
        self._views = (*(self._views[-VIEWS_MAX:] if same and not self.core.member else ()), view)

    def shares_past(self, view: View) -> bool:
        """We are outside, and its lineage was founded out of a view after which we have made nothing."""
        return not self.core.mine and any(descends(view, each) for each in self._views)

    def ahead(self, step: int) -> int:
        """How many go before us when a lineage is to be founded with weights of this step: who has later ones, and of
        those with the same the lower PeerIds. Anybody may claim to have some."""
        return sum((theirs, self.core.me.id) > (step, peer.id) for peer, theirs in self._told().items())

    def tell(self, before: Certificate) -> None:
        """We have founded one, out of the view of `before`: they keep their weights for it when they hear of both."""
        for peer in list(self._told())[:TOLD_MAX]:
            self.core.send(peer, before)
            self.core.send(peer, self.core.certificate())

    def _told(self) -> dict[Peer, int]:
        presences = self.core.presences.items()
        return {peer: max(v.step for _, v in p.exact) for peer, p in presences if p.exact and peer != self.core.me}
