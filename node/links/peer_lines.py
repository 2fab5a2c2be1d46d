"""Lines of the log about peers, as far as peers can cause them: some of each, and some of all together.

A stranger that breaks the protocol again and again, or many that do so once, would fill the log with it, and what the
node has to say of itself would be gone. Lines that are left out are counted, and the next one says how many.
"""

from __future__ import annotations

import logging
from math import inf
from typing import Final

import trio

from ftnode.node.links.attention import Allowance, Budget, allowance_of

OF_A_PEER: Final = Budget(1 / 30, inf, 5, inf)
OF_ALL: Final = Budget(1, inf, 60, inf)


class PeerLines:
    """Counts by PeerId. `now` is seconds and never goes back."""

    def __init__(self, now: float = 0.0) -> None:
        self._peers: dict[str, Allowance] = {}
        self._all = Allowance(OF_ALL, now)
        self._left_out = 0

    def passed(self, peer_id: str, text: str, now: float) -> str:
        """The line as it may be said, or nothing."""
        if not (allowance_of(self._peers, peer_id, OF_A_PEER, now).take(0, now) and self._all.take(0, now)):
            self._left_out += 1
            return ""
        more, self._left_out = self._left_out, 0
        return f"{text} (and {more} lines about peers that are left out)" if more else text


class PeerLog:
    """A logger for such lines, within a run of trio."""

    def __init__(self, log: logging.Logger) -> None:
        self._log, self._lines = log, PeerLines()

    def say(self, level: int, peer_id: str, text: str) -> None:
        line = self._lines.passed(peer_id, text, trio.current_time())
        if line:
            self._log.log(level, "%s", line)
