"""Whom a run waits for, by what its volunteers say of their time: the fullest line, or the busiest device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ftnode.node.watch.status import PeerRow

HOLDING: Final = ("leader", "holder")
SHARE_MIN: Final = 0.5
"""Where nothing is busy for half of the time, nobody in particular is waited for."""


class Bottleneck(NamedTuple):
    """`kind`: line or device; both empty where nobody limits the run. `share` of the time that it was busy."""

    peer: str = ""
    kind: str = ""
    share: float = 0.0


def bottleneck(rows: Sequence[PeerRow]) -> Bottleneck:
    """Of the volunteers of a run. Of equals the line, since it makes others wait as well."""
    found = [Bottleneck()]
    for row in rows:
        if row.role in HOLDING and row.line_full is not None and row.computed is not None:
            found += [Bottleneck(row.peer, "line", row.line_full), Bottleneck(row.peer, "device", row.computed)]
    most = max(found, key=lambda one: (one.share, one.kind == "line"))
    return most if most.share >= SHARE_MIN else Bottleneck()
