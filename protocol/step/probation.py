"""Who is new: a peer that has not worked in enough steps yet, as far as we have seen (rule 45).

Counted are committed steps in which a peer did visits, by the words of its group (rule 40). So the measure is the same
whether somebody could check it or not. Each peer counts for itself, what it has seen. So whoever has just come takes
nobody for new who was there before it, and a swarm that begins has no newcomers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Final

from ftnode.protocol.words.messages import Commit
from ftnode.protocol.words.types import CREDITED_MAX

STEPS: Final = 32
"""So many steps of work end it. A newcomer is checked in a quarter of them (CHECKED), so that one that always lies gets
through with a chance of 0.75 ** 32, or one in ten thousand."""
CHECKED: Final = 0.25
"""The chance at which another holder checks a newcomer in a step."""


class Probation:
    """What we have seen. At most CREDITED_MAX peers: who worked least makes room."""

    def __init__(self) -> None:
        self.seen = 0
        """Steps that were counted."""
        self._newest = 0
        self._worked: Counter[str] = Counter()

    def count(self, commit: Commit) -> None:
        """Each step once."""
        if commit.step <= self._newest or not commit.given:
            return
        self._newest = commit.step
        self.seen += 1
        self._worked.update(given.peer for given in commit.given if given.visits)
        if len(self._worked) > 2 * CREDITED_MAX:
            self._worked = Counter(dict(self._worked.most_common(CREDITED_MAX)))

    def forget(self, after: int) -> None:
        """Steps after that one are made again."""
        self._newest = min(self._newest, after)

    def renew(self, peer_ids: Iterable[str]) -> None:
        """They are new again."""
        for peer_id in peer_ids:
            self._worked.pop(peer_id, None)

    def lasts(self, peer_id: str) -> bool:
        """Whether the peer is new: it has worked in less than STEPS steps, and in less than half of all."""
        return self._worked[peer_id] < min(STEPS, self.seen // 2)
