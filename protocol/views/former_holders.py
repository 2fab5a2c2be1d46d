"""Former holders: they are outside of the view, and what they have may be all that is left (rule 16)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Final

from ftnode.protocol.situation import Situation
from ftnode.protocol.views.succession import descends
from ftnode.protocol.words.types import Peer, Version
from ftnode.protocol.words.view import View

VIEWS_MAX: Final = 16
"""How many views of others are remembered, out of which a lineage may be founded whose past is also ours."""
TOLD_MAX: Final = 256
"""How many peers that report weights are remembered, and told of a lineage that goes on with them."""


class FormerHolder:
    """What one of them knows of the views since it was in one, and of the others."""

    def __init__(self) -> None:
        self._views: tuple[View, ...] = ()
        """Of the lineage that we follow, since the last one that we were in, which is the first."""
        self._reported: dict[Peer, int] = {}
        """Peer → the step of the newest weights that it has told the directory of since a quorum was heard. A reading
        of the directory may miss a record that is there."""

    def on_view(self, view: View, same: bool, member: bool) -> None:
        """`same`: its lineage is that of the view before. `member`: we are in the view."""
        self._views = (*(self._views[-VIEWS_MAX:] if same and not member else ()), view)
        self._reported = {}

    def read(self, s: Situation) -> None:
        """What the directory says now. As long as there is a quorum, weights grow old."""
        told = {peer: _newest(p.exact) for peer, p in s.presences.items() if p.exact and peer != s.me}
        before = {peer: step for peer, step in self._reported.items() if peer not in s.presences}
        self._reported = {} if s.quorate else dict(islice((told | before).items(), TOLD_MAX))

    def shares_past(self, view: View) -> bool:
        """The lineage was founded out of a view after which we have made nothing. Asked while we hold nothing."""
        return any(descends(view, each) for each in self._views)

    def place_in_queue(self, s: Situation, step: int) -> int:
        """Our position in the queue of possible founders: later weights first, then lower PeerId. Claims are
        believed."""
        return sum((theirs, s.me.id) > (step, peer.id) for peer, theirs in self._reported.items())

    def reporting(self) -> tuple[Peer, ...]:
        """Peers outside that report weights: they keep them for a lineage that goes on when they hear of both views."""
        return tuple(self._reported)


def _newest(exact: Iterable[tuple[int, Version]]) -> int:
    """The step of the newest weights among these: of a stage that is listed more than once the later versions are what
    its weights could be made into, and they are not made yet."""
    steps: dict[int, int] = {}
    for stage, version in exact:
        steps[stage] = min(version.step, steps.get(stage, version.step))
    return max(steps.values())
