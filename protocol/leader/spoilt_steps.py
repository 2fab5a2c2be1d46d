"""Who spoilt steps that were skipped, and who did it twice in a row (rule 25).

Somebody names poison where it computes. That alone shows little: what it got may have been the cause. So it is one of
two, itself and who gave it the numbers; and whoever is among them in all tries of two steps in a row is what these
steps have in common. Of holders with different sums it is one of the fewest. A stage has another holder once for it;
when its successor is in it as well, the fault is not theirs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ftnode.protocol.leader.disputes import Suspects
from ftnode.protocol.words.messages import Ready
from ftnode.protocol.words.types import Peer


@dataclass(slots=True)
class SpoiltSteps:
    """Kept from view to view. Of the step in progress, of the skipped one before, and since the last that counted."""

    step: int = -1
    named: Suspects | None = None
    """What all who named poison in `step` have in common; None: nobody did."""
    odd: set[Suspects] = field(default_factory=set)
    """Those whose sums in it were others than most holders' of the stage."""
    before: tuple[int, frozenset[Suspects]] = (-1, frozenset())
    """The newest step that was skipped, and who is to blame for it."""
    replaced: set[int] = field(default_factory=set)
    """Stages of which a holder was replaced since a step counted."""

    def name(self, step: int, suspects: Suspects) -> None:
        """Somebody names poison in this step, and one of these is to blame."""
        self._at(step)
        self.named = suspects if self.named is None else self.named.common(suspects)

    def differ(self, step: int, odd: Iterable[Suspects]) -> None:
        """The replicas of a stage have different sums."""
        self._at(step)
        self.odd.update(odd)

    def committed(self, step: int, skipped: bool) -> list[Suspects]:
        """Of each of these one is to be replaced: this skipped step and the one before have it in common."""
        self._at(step)
        if not skipped:
            self.before, self.replaced = (-1, frozenset()), set()
            return []
        last, then = self.before
        now = frozenset(self.odd if self.named is None else {*self.odd, self.named})
        self.before = step, now
        common = {one.common(other) for one in now for other in then} if last == step - 1 else set()
        return sorted((found for found in common if found.among), key=lambda found: sorted(found.among))

    def _at(self, step: int) -> None:
        if step != self.step:
            self.step, self.named, self.odd = step, None, set()


def odd_ones(readies: Iterable[tuple[Peer, Ready]]) -> set[Suspects]:
    """Of each stage with different sums: each holder whose sum is not that of more than half, or where there is no such
    sum, one of those with the rarest."""
    sums: dict[int, dict[Peer, str]] = {}
    for peer, ready in readies:
        for result in ready.results:
            sums.setdefault(result.stage, {})[peer] = result.gradient
    found: set[Suspects] = set()
    for said in sums.values():
        counts = Counter(said.values())
        usual, count = counts.most_common(1)[0]
        if 2 * count > len(said):
            found |= {Suspects(frozenset({peer})) for peer, gradient in said.items() if gradient != usual}
        else:
            found.add(Suspects(frozenset(peer for peer in said if counts[said[peer]] == min(counts.values()))))
    return found
