"""How soon a peer is dialled again whose links break as soon as they are up.

A link that breaks is made anew at once: that tells whether the peer is gone, or was only cut off. A peer that takes
every link and ends it again would have us do nothing else. So each further one waits longer.
"""

from __future__ import annotations

from typing import Final

from ftnode.node.links.newest import newest

SHORT_SECONDS: Final = 2.0
"""A link that was up for less counts."""
AT_ONCE: Final = 4
"""So many in a row are made anew at once, as where both sides close doubled connections."""
PAUSE_SECONDS: Final = 0.1
"""After that; twice as long after each further one."""
PAUSE_SECONDS_MAX: Final = 5.0
FORGOTTEN_SECONDS: Final = 60.0
"""After the last short one."""
DOUBLINGS_MAX: Final = 10
PEERS_MAX: Final = 4096


class Redials:
    """By PeerId. `now`: seconds of a clock that does not go back."""

    def __init__(self) -> None:
        self._short: dict[str, tuple[int, float]] = {}
        """How many short links in a row, and when the last one ended."""

    def ended(self, peer_id: str, seconds: float, now: float) -> None:
        """A link broke that was up for so long."""
        if seconds >= SHORT_SECONDS:
            self._short.pop(peer_id, None)
        else:
            newest(self._short, peer_id, (1 + self._count(peer_id, now), now), PEERS_MAX)

    def pause(self, peer_id: str, now: float) -> float:
        """Seconds until the peer is dialled."""
        more = self._count(peer_id, now) - AT_ONCE
        return 0.0 if more < 0 else min(PAUSE_SECONDS_MAX, PAUSE_SECONDS * float(1 << min(more, DOUBLINGS_MAX)))

    def _count(self, peer_id: str, now: float) -> int:
        count, ended = self._short.get(peer_id, (0, now))
        return count if now - ended < FORGOTTEN_SECONDS else 0
