"""Stages that routes leave out: when nobody can hold one, and to wait for somebody has cost as much (rule 41).

A Transformer goes on without one of its middle blocks (LayerDrop, Fan et al. 2019; LayerSkip, Elhoushi et al. 2024;
SkipPipe, Blagoev et al. 2025). That costs some steps of learning, about once. To stand still costs a step for each
step's time, for nobody knows how long. Whoever waits as long as leaving out costs, and not longer, never pays more than
twice of what was best (the ski rental problem, Karlin et al. 1988).
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.recruiting import Recruiting
from ftnode.protocol.recovery.learning_cost import OMITTED
from ftnode.protocol.situation import Situation
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import names_of
from ftnode.protocol.words.view import View

LEASES_MIN = 2
"""So long everybody who is there has had the time to be found and to answer."""
STEPS_SEEN = 8
"""The newest ones, which say how long a step takes."""


class Omissions:
    """The leader's, in one view."""

    def __init__(self, view: View, memory: LeaderMemory, progress: ViewProgress, recruiting: Recruiting) -> None:
        self.view, self.memory, self.progress, self.recruiting = view, memory, progress, recruiting
        needed = view.vacancies()
        memory.vacant_since = {stage: since for stage, since in memory.vacant_since.items() if stage in needed}

    def due(self, s: Situation, rungs: Mapping[int, tuple[bool, str]]) -> tuple[tuple[int, ...], str] | None:
        """What the next view leaves out, and why; None while the run had better wait. `rungs`: as Recruiting.rungs.

        All that the run stands still for is left out at once: to leave out a part of it makes nothing go on."""
        needed, base, settings = self.recruiting.needed(), self.progress.base, s.settings
        since = [self.memory.vacant_since.setdefault(stage, s.now) for stage in needed]
        if not needed or base is None or not 0 < base.step < settings.steps or not s.quorate:
            return None
        if not settings.may_leave_out({*self.view.omitted, *needed}):
            return None
        if not all(rungs[stage][0] for stage in needed) or self.recruiting.pending:
            return None
        waited = s.now - max(max(since), s.liveness.grace)
        seconds = [commit.seconds for commit in s.history.newest_commits(STEPS_SEEN) if commit.seconds > 0]
        if waited < patience(settings, median(seconds or [settings.lease_seconds]), base.step):
            return None
        verb = "is" if len(needed) == 1 else "are"
        left = f"{names_of(needed)} {verb} left out until somebody can hold {'it' if verb == 'is' else 'them'}"
        return tuple(needed), f"{left}: to wait for {waited:.0f} s has cost as much"


def patience(settings: Settings, step_seconds: float, step: int) -> float:
    """Seconds that a run waits for somebody who takes a stage that it stands still for, at the commit of `step`. Where
    the disk of whoever went has that very commit, the run waits for it as it does when all start again."""
    seconds = max(LEASES_MIN * settings.lease_seconds, OMITTED * step_seconds)
    stored = settings.snapshot_every and step % settings.snapshot_every == 0
    return max(seconds, settings.restart_wait_seconds) if stored else seconds
