"""What this node has done for its run since it was started, over pauses: what its owner is told of it.

A visit is one microbatch through one stage, forward and back. It counts when its step is committed and this node's own
compute process has counted it; a visit of a step that was done again counts once.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ftnode.node.home.duration import duration
from ftnode.protocol.chronicle import OWN_WEIGHTS
from ftnode.protocol.picture import Picture
from ftnode.protocol.words.types import Attempt, Rung, Version, names_of

GAP_SECONDS: Final = 5.0
"""A node that looked at nothing for longer stood still itself, or was paused."""
NO_RECOVERY: Final = frozenset((*OWN_WEIGHTS, Rung.REPLICA))
"""Rungs of stages that were not lost, as credits have it: also those of a swarm that starts again from its disks."""


@dataclass(slots=True)
class OwnWork:
    """Of one process. Bounded by the number of stages."""

    visits: int = 0
    steps: int = 0
    """Committed ones with a visit of ours."""
    held_seconds: float = 0.0
    """For which it held a stage."""
    stages: set[int] = field(default_factory=set)
    """That it held at some time."""
    recoveries: int = 0
    """Lost stages that it brought back."""
    share: float | None = None
    """Of all visits that were committed since it came; None before the first one."""
    _began: int | None = None
    """The step after which it came."""
    _newest_step: int = 0
    _reduced: dict[int, tuple[int, Attempt, int]] = field(default_factory=dict)
    """Stage → (step, attempt, visits) of the newest gradient; it is not committed yet."""
    _looked: float | None = None

    def reduced(self, stage: int, step: int, attempt: Attempt, visits: int) -> None:
        """Compute has `visits` of this stage in its gradient."""
        self._reduced[stage] = step, attempt, visits

    def applied(self, stage: int, version: Version) -> None:
        """The step is committed, by that attempt."""
        step, attempt, visits = self._reduced.pop(stage, (-1, version.attempt, 0))
        if (step, attempt) == (version.step, version.attempt) and visits:
            self.visits += visits
            self.steps += version.step != self._newest_step
            self._newest_step = version.step
            self._began = min(version.step - 1, self._began if self._began is not None else version.step)

    def installed(self, rung: Rung) -> None:
        """A stage has weights from there."""
        self.recoveries += rung not in NO_RECOVERY

    def look(self, picture: Picture, now: float) -> None:
        """Once a second, with what the core shows now. `now`: seconds of any clock that does not stand still."""
        held = picture.versions.keys() & set(picture.mine)  # a learner has weights, and holds nothing
        if self._looked is not None and held and now - self._looked <= GAP_SECONDS:
            self.held_seconds += now - self._looked
        self._looked = now
        self.stages.update(held)
        if picture.view is None or not (newest := picture.history.newest_step):
            return
        self._began = newest if self._began is None else min(self._began, newest)
        settings = picture.settings
        whole = (newest - self._began) * settings.microbatches * (settings.stages + 2)
        self.share = min(1.0, self.visits / whole) if whole else self.share

    def fields(self) -> dict[str, str]:
        """For JSON lines."""
        return {
            "visits": str(self.visits), "steps": str(self.steps), "held_seconds": f"{self.held_seconds:.0f}",
            "stages": ",".join(map(str, sorted(self.stages))), "recoveries": str(self.recoveries),
            "share": "" if self.share is None else f"{self.share:.4f}",
        }  # fmt: skip


def summary(work: OwnWork) -> str:
    """What it came to, in a sentence."""
    if not work.stages:
        return "this node held no stage, and so did no work"
    share = f", {work.share:.0%} of the run's work meanwhile" if work.share is not None and work.visits else ""
    back = "1 lost stage" if work.recoveries == 1 else f"{work.recoveries} lost stages"
    lost = f"; it brought back {back}" if work.recoveries else ""
    return (
        f"this node held {names_of(work.stages)} for {duration(work.held_seconds)}, and took {counted(work)} through "
        f"in {work.steps:,} steps{share}{lost}"
    )


def counted(work: OwnWork) -> str:
    return "1 microbatch" if work.visits == 1 else f"{work.visits:,} microbatches"
