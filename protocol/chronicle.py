"""What has happened to the run, as one participant heard of it: commits, validations, rebuilt stages. For watchers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ftnode.protocol.messages import Begin, Commit
from ftnode.protocol.types import Peer, Rung
from ftnode.protocol.view import View

ENTRIES_KEPT = 64


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A stage that was lost and given to another. `seconds`: from the new view's Begin to the next commit."""

    stage: int
    step: int
    rung: Rung
    epoch: int
    lost: Peer | None
    newcomer: Peer
    reason: str
    began: float
    seconds: float | None


class Chronicle:
    """Bounded: the newest ENTRIES_KEPT of each kind."""

    def __init__(self) -> None:
        self.commits: dict[int, Commit] = {}
        self.validation: dict[int, float] = {}
        """Step → nats per token."""
        self.rebuilds: dict[tuple[int, int], Rebuild] = {}
        """(step, stage)"""
        self._holders: dict[int, Peer] = {}
        self._lost: dict[int, Peer] = {}

    def commit(self, commit: Commit, now: float) -> None:
        """A step is committed; rebuilds of it are complete."""
        if commit.step in self.commits:
            return
        self.commits[commit.step] = commit
        for key, rebuild in self.rebuilds.items():
            if rebuild.seconds is None and rebuild.step <= commit.step:
                self.rebuilds[key] = replace(rebuild, seconds=now - rebuild.began)
        _keep_newest(self.commits)

    def evaluate(self, step: int, loss: float) -> None:
        self.validation[step] = loss
        _keep_newest(self.validation)

    def view(self, view: View) -> None:
        """Remember who lost which stage, for the rebuild that follows."""
        for stage, group in enumerate(view.holders):
            before = self._holders.get(stage)
            if before is not None and before not in group:
                self._lost[stage] = before
            if group:
                self._holders[stage] = group[0]

    def begin(self, begin: Begin, view: View, now: float) -> None:
        """The Begin of a redone step says who rebuilds what and how."""
        for plan in begin.installs:
            key = (begin.step, plan.stage)
            known = self.rebuilds.get(key)
            if plan.rung is not Rung.INITIAL and (known is None or known.newcomer != plan.peer):
                self.rebuilds[key] = Rebuild(
                    plan.stage, begin.step, plan.rung, view.epochs[plan.stage], self._lost.get(plan.stage), plan.peer,
                    plan.reason, now, None,
                )  # fmt: skip
                _keep_newest(self.rebuilds)

    def newest_commits(self, count: int = 2) -> tuple[Commit, ...]:
        return tuple(self.commits[step] for step in sorted(self.commits)[-count:])


def _keep_newest(table: dict) -> None:  # type: ignore[type-arg]
    while len(table) > ENTRIES_KEPT:
        del table[min(table)]
