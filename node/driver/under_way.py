"""What the driver does for one stage until the core hears how it ended: an install, or a copy that is fetched.

An errand is in its table from the effect that begins it until the core hears of its end. It is cancelled by being
taken out. What comes of it afterwards is harmless without anybody looking for it: an end that comes late, and an event
that waits in the queue, belong to no errand in the table.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import trio

from ftnode.node.weights.installer import InstallOutcome
from ftnode.protocol.recovery.installs import BACKLOG_MAX
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words import events as ev
from ftnode.protocol.words.errors import LocalError


@dataclass(slots=True, eq=False)
class Errand:
    """`end`: the event that tells the core how it ended; it waits in the queue."""

    stage: int
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    end: ev.Event | None = None


@dataclass(slots=True, eq=False)
class Installing(Errand):
    """An install, and the commits that came while it was under way: a learner goes along with them before it has the
    weights. They are carried out, in order, as soon as the base that they build on is here."""

    effect: fx.Install = field(kw_only=True)
    outcome: InstallOutcome | None = None
    waiting: deque[fx.Apply] = field(default_factory=deque)
    applied: list[fx.Apply] = field(default_factory=list)
    """Carried out, which the trace tells behind the install."""

    def wait(self, apply: fx.Apply) -> None:
        """The core lets at most BACKLOG_MAX steps pass between the base that is fetched and the one that it is to
        become, so no more commits can wait."""
        if len(self.waiting) >= BACKLOG_MAX:
            raise LocalError(f"more than {BACKLOG_MAX} commits wait for stage {self.stage}")
        self.waiting.append(apply)


E = TypeVar("E", bound=Errand)


class UnderWay(Generic[E]):
    """At most one errand for each stage."""

    def __init__(self) -> None:
        self._errands: dict[int, E] = {}

    def stages(self) -> list[int]:
        return list(self._errands)

    def get(self, stage: int) -> E | None:
        return self._errands.get(stage)

    def begin(self, errand: E) -> None:
        self._errands[errand.stage] = errand

    def goes_on(self, errand: E) -> bool:
        """Neither ended nor cancelled. A cancellation may reach its task later than what took its place."""
        return errand.end is None and self._errands.get(errand.stage) is errand

    def cancel(self, stage: int) -> E | None:
        """What was cancelled, also when it has ended and the core has not heard of it."""
        errand = self._errands.pop(stage, None)
        if errand is not None:
            errand.scope.cancel()
        return errand

    def ended_with(self, stage: int, event: ev.Event) -> bool:
        """Whether the event is the end of the stage's errand, and of none that was cancelled."""
        errand = self._errands.get(stage)
        return errand is not None and errand.end is event

    def heard(self, stage: int) -> E:
        """The core hears of its end."""
        return self._errands.pop(stage)
