"""Which copies count: those of which whoever held the stage said what it lent (rule 49).

A holder that has lent a stage to a keeper knows the digest of the copy, and tells all members that it beats to. So do
the leader's Begins, for those who did not hear it. A leader plans with no copy of which it has heard only from the
keeper, and its plans name the digests that count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field

from ftnode.protocol.words.settings import LENT_OF_A_KEEPER, LENT_REMEMBERED, LENT_TOLD
from ftnode.protocol.words.types import LentCopy, Peer, Version


@dataclass(slots=True)
class LentCopies:
    """What was lent to be kept: of each keeper the newest copies of a stage, and of each stage those that were told of
    last, the last one at the end."""

    _of: dict[int, list[LentCopy]] = field(default_factory=dict)
    _origin: str = ""

    def hear(self, told: Iterable[LentCopy], origin: str = "", up_to: int | None = None) -> bool:
        """From somebody whose word counts, in lineages of this origin; what was told in others is forgotten. Nothing
        after the step `up_to` can have been lent yet. True if there is news. An old word may come again late."""
        news = False
        if origin != self._origin:
            self._origin = origin
            self._of.clear()
        for copy in told:
            if up_to is not None and copy.version.step > up_to:
                continue
            known = self._of.setdefault(copy.stage, [])
            if copy in known:  # most are told again and again
                known.remove(copy)
                known.append(copy)
                continue
            every = [*known, copy]
            same = sorted((each for each in every if each.keeper == copy.keeper), key=lambda each: each.version.step)
            older = same[:-LENT_OF_A_KEEPER]
            news = news or copy not in older
            self._of[copy.stage] = [each for each in every if each not in older][-LENT_REMEMBERED:]
        return news

    def newest(self, stages: Iterable[int]) -> tuple[LentCopy, ...]:
        """Those that are told of these stages."""
        return tuple(copy for stage in stages for copy in self._of.get(stage, ())[-LENT_TOLD:])

    def stages(self) -> list[int]:
        """Those of which any was lent."""
        return sorted(self._of)

    def counts(self, keeper: Peer, stage: int, version: Version) -> bool:
        """A holder has said that it lent this."""
        return any(copy.version == version for copy in self._to(keeper, stage))

    def counts_of_step(self, keeper: Peer, stage: int, step: int) -> bool:
        """As `counts`, for whoever knows no more than the step of it."""
        return any(copy.version.step == step for copy in self._to(keeper, stage))

    def digests(self, keepers: Collection[Peer], stage: int, version: Version, base: Version) -> tuple[str, ...]:
        """Of this copy, and of those between it and the base that the keepers may have by now."""
        found = {
            copy.digest: None
            for keeper in keepers
            for copy in self._to(keeper, stage)
            if copy.version == version or version.step < copy.version.step <= base.step
        }
        return tuple(found)

    def _to(self, keeper: Peer, stage: int) -> Iterator[LentCopy]:
        return (copy for copy in self._of.get(stage, ()) if copy.keeper == keeper.id)
