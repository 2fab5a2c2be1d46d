"""When the run, and each stage of it, was last seen to move: ages for watchers.

The core keeps no such times, since no decision of it depends on them. Whoever looks often enough (`observer.py`, every
second) knows them to that precision.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Progress:
    """Steps as they were last seen, and since when. Bounded by the number of stages, and of rebuilds that are known."""

    stages: dict[int, tuple[int, float]] = field(default_factory=dict)
    """Stage → (step, when it was first seen there)."""
    commit: tuple[int, float] | None = None
    fetched: dict[tuple[int, int], int] = field(default_factory=dict)
    """(step, stage) of a rebuild → bytes that its newcomer fetched for it, as it said while this was its last one."""

    def look(self, committed: int, applied: dict[int, int], now: float) -> None:
        """`applied`: stage → last step applied there. A step that goes back is another run's, and counts as a move."""
        if committed and (self.commit is None or self.commit[0] != committed):
            self.commit = (committed, now)
        for stage, step in applied.items():
            if stage not in self.stages or self.stages[stage][0] != step:
                self.stages[stage] = (step, now)

    def stage_age(self, stage: int, now: float) -> float | None:
        """Seconds; None for a stage that was never seen."""
        seen = self.stages.get(stage)
        return None if seen is None else max(0.0, now - seen[1])

    def commit_age(self, now: float) -> float | None:
        """Seconds; None before the first commit."""
        return None if self.commit is None else max(0.0, now - self.commit[1])
