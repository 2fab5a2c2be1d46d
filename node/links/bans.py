"""Who broke the protocol how often, and who is therefore banned: local, temporary, never for slowness."""

from __future__ import annotations

from collections import deque
from typing import Final

from ftnode.node.links.newest import newest

STRIKES: Final = 3
STRIKE_SECONDS: Final = 60.0
"""So many within so long, and the peer is banned."""
BAN_SECONDS: Final = 60.0
PEERS_MAX: Final = 4096
"""Remembered offenders; the one whose last offence is oldest is forgotten first."""


class Strikes:
    """Offences by PeerId. `now` is monotonic seconds and never goes back."""

    def __init__(self) -> None:
        self._times: dict[str, deque[float]] = {}
        self._banned_until: dict[str, float] = {}

    def add(self, peer_id: str, now: float) -> bool:
        """Count an offence; True when the peer is banned with it."""
        times = newest(self._times, peer_id, self._times.get(peer_id, deque(maxlen=STRIKES)), PEERS_MAX)
        times.append(now)
        if len(times) < STRIKES or now - times[0] > STRIKE_SECONDS:
            return False
        self.ban(peer_id, now)
        return True

    def ban(self, peer_id: str, now: float) -> None:
        """At once, or for longer: one offence is enough where nobody can commit it by mistake."""
        self._times.pop(peer_id, None)
        newest(self._banned_until, peer_id, now + BAN_SECONDS, PEERS_MAX)

    def banned(self, peer_id: str, now: float) -> bool:
        return now < self._banned_until.get(peer_id, now)
