"""Pictures of our making, for tests of those who look at the core."""

from __future__ import annotations

from math import inf
from typing import Any

from ftnode.protocol.chronicle import Chronicle
from ftnode.protocol.holder.own_departure import HandedOver
from ftnode.protocol.liveness.liveness import SignsShown
from ftnode.protocol.picture import Picture, picture_of
from ftnode.protocol.situation import Situation
from ftnode.protocol.words.types import Peer
from tests.protocol.situations import report, situation


def signs(*refused: Peer) -> SignsShown:
    """Everybody is heard but these."""
    return SignsShown({}, frozenset(refused), inf, 1.0, {})


def picture(**changes: Any) -> Picture:
    """Of the situation that `situation` makes, before any step. `changes`: of the situation, and of what is shown."""
    s = situation(**{name: said for name, said in changes.items() if name in Situation._fields})
    shown = picture_of(s, report(), leavers=(), stayed=0, fate=HandedOver(), history=Chronicle())
    return shown._replace(**{name: said for name, said in changes.items() if name in Picture._fields})
