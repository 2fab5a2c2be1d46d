"""A complete attempt of a view that we had to leave: the others may commit it without us, and then our weights with its
reduced gradient are exactly what the swarm misses (rules 15, 18 ii)."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain

from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.words.types import Attempt, Version, next_version


class CompletedAttempt:
    """At most one attempt, and the lineages in which its name means that attempt: a fork inherits its parent's."""

    def __init__(self) -> None:
        self._work: StepWork | None = None
        self._lineages: set[str] = set()

    def __bool__(self) -> bool:
        return self._work is not None

    def begun(self, lineage: str, goes_on: bool) -> None:
        """An attempt began in the lineage, or the one before goes on in it."""
        self._work = None
        self._lineages = {lineage} | (self._lineages if goes_on else set())

    def forked(self, lineage: str) -> None:
        """A lineage was founded out of the view that we were in."""
        self._lineages.add(lineage)

    def keep(self, work: StepWork) -> None:
        self._work = work

    def lose(self, stage: int) -> None:
        """What it has reduced of the stage is gone."""
        if self._work is not None:
            self._work.lose(stage)

    def drop(self) -> bool:
        """Forget it; True if there was one."""
        had, self._work = self._work is not None, None
        return had

    def work_in(self, lineage: str) -> StepWork | None:
        """The attempt, if a Begin of this lineage may commit it."""
        return self._work if lineage in self._lineages else None

    def reduced(self, stage: int, lineage: str) -> Attempt | None:
        """Its name, if it has the reduced gradient of the stage."""
        work = self.work_in(lineage)
        return work.begin.attempt if work is not None and work.has_reduced(stage) else None

    def promised(self, versions: Mapping[int, Version], lineage: str) -> tuple[tuple[int, Version], ...]:
        """The versions that its commit would make of our weights, by the names that it has in any of these lineages: it
        may have been committed before one was founded out of the other."""
        work = self.work_in(lineage)
        named = (promised_by(work, versions, each) for each in sorted(self._lineages)) if work is not None else ()
        return tuple(dict.fromkeys(chain.from_iterable(named)))


def promised_by(work: StepWork, versions: Mapping[int, Version], lineage: str) -> tuple[tuple[int, Version], ...]:
    """The versions that the commit of this attempt would make of our weights: also of a stage that was handed over in
    the view that is to commit it."""
    base = work.begin.base
    stages = [stage for stage in sorted(versions) if versions[stage] == base and work.has_reduced(stage)]
    if not stages:
        return ()
    made = next_version(base, lineage, work.begin.attempt, work.begin.skip)
    return tuple((stage, made) for stage in stages)
