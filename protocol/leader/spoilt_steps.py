"""Who spoilt steps that were skipped, and who did it twice in a row (rule 25).

Somebody names poison where it computes. That alone shows little: what it got may have been the cause. But the only one
that names any, in all tries of two steps in a row, is what these steps have in common. It is replaced once; when its
successor names poison in the next steps as well, the fault is not theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ftnode.protocol.words.messages import Ready
from ftnode.protocol.words.types import Peer

MAJORITY_HOLDERS_MIN = 3
"""Of two holders with different sums nobody knows which one is wrong."""


@dataclass(slots=True)
class SpoiltSteps:
    """Kept from view to view. Of the step in progress, of the skipped one before, and since the last that counted."""

    step: int = -1
    named: set[Peer | None] = field(default_factory=set)
    """Who named poison in `step`; None: somebody who shows nobody's fault."""
    odd: set[Peer] = field(default_factory=set)
    """Whose sum in it was another than that of most holders of the stage."""
    before: tuple[int, frozenset[Peer]] = (-1, frozenset())
    """The newest step that was skipped, and who alone had to do with it."""
    replaced: set[int] = field(default_factory=set)
    """Stages of which a holder was replaced since a step counted."""

    def name(self, step: int, peer: Peer | None) -> None:
        """It names poison in this step."""
        self._at(step)
        self.named.add(peer)

    def differ(self, step: int, odd: Iterable[Peer]) -> None:
        """The replicas of a stage have different sums."""
        self._at(step)
        self.odd.update(odd)

    def committed(self, step: int, skipped: bool) -> frozenset[Peer]:
        """Who is to be replaced: had alone to do with this skipped step and with the one before."""
        self._at(step)
        if not skipped:
            self.before, self.replaced = (-1, frozenset()), set()
            return frozenset()
        alone = {peer for peer in self.named if peer is not None and len(self.named) == 1}
        last, then = self.before
        self.before = step, frozenset(alone | self.odd)
        return self.before[1] & then if last == step - 1 else frozenset()

    def _at(self, step: int) -> None:
        if step != self.step:
            self.step, self.named, self.odd = step, set(), set()


def odd_ones(readies: Iterable[tuple[Peer, Ready]]) -> set[Peer]:
    """Those whose sum of a stage differs from that of more than half of its holders, where there are three at least."""
    sums: dict[int, dict[Peer, str]] = {}
    for peer, ready in readies:
        for result in ready.results:
            sums.setdefault(result.stage, {})[peer] = result.gradient
    found: set[Peer] = set()
    for said in sums.values():
        if len(said) >= MAJORITY_HOLDERS_MIN:
            usual, count = Counter(said.values()).most_common(1)[0]
            if 2 * count > len(said):
                found |= {peer for peer, gradient in said.items() if gradient != usual}
    return found
