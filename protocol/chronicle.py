"""What has happened to the run, as one participant heard of it: commits, validations, rebuilt stages. For watchers."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, replace

from ftnode.protocol.recovery.rungs import LOSSY
from ftnode.protocol.step.credit import CreditLedger
from ftnode.protocol.step.probation import Probation
from ftnode.protocol.words.messages import Begin, Commit, bare
from ftnode.protocol.words.types import Peer, Recovered, Rung
from ftnode.protocol.words.view import View

ENTRIES_KEPT = 10_000
"""Of the commits, which travel with copies of the head, so that whoever comes late sees the whole curve."""
REBUILDS_KEPT = 256
BEFORE_US = "told with the commit"
GIVEN_KEPT = 8
"""Of the newest commits it is kept who did them, for those who are a step or two behind."""
OWN_WEIGHTS = (Rung.INITIAL, Rung.SNAPSHOT, Rung.KEPT)
"""Rungs that bring nothing back that was lost."""


@dataclass(frozen=True, slots=True)
class Rebuild:
    """A stage that was lost and given to another, or left out (`newcomer` None). `seconds`: from the new view's Begin
    to the next commit. One of before our time has `epoch` -1 and nobody's name."""

    stage: int
    step: int
    rung: Rung
    epoch: int
    lost: Peer | None
    newcomer: Peer | None
    reason: str
    began: float
    seconds: float | None


class Chronicle:
    """Bounded: the newest ENTRIES_KEPT commits and validations, the newest REBUILDS_KEPT rebuilds."""

    def __init__(self) -> None:
        self.commits: dict[int, Commit] = {}
        self.validation: dict[int, float] = {}
        """Step → nats per token."""
        self._scored: list[int] = []
        """Its steps, in order."""
        self.evaluations = 0
        """How often `validation` has changed, so that who looks at every event need not look at all of it."""
        self.unscored = -1
        """The step whose validation, the newest such, gave no finite loss."""
        self.rebuilds: dict[tuple[int, int], Rebuild] = {}
        """(step, stage)"""
        self.credit = CreditLedger()
        self.probation = Probation()
        self.newest_step = 0
        """The highest committed step that we were told of."""
        self._asked_up_to = 0
        self._holders: dict[int, Peer] = {}
        self._lost: dict[int, Peer] = {}

    def forget(self, after: int = 0) -> None:
        """What came after that step is not of this run: another lineage goes on, or the swarm went back to disks."""
        self.commits = {step: commit for step, commit in self.commits.items() if step <= after}
        self.validation = {step: loss for step, loss in self.validation.items() if 0 < step <= after}
        self._scored = sorted(self.validation)
        self.evaluations += 1
        self.rebuilds = {key: rebuild for key, rebuild in self.rebuilds.items() if key[0] <= after}
        self._holders.clear()
        self._lost.clear()
        self.credit.forget(after)
        self.probation.forget(after)
        self.unscored = min(self.unscored, after)
        self.newest_step, self._asked_up_to = min(self.newest_step, after), min(self._asked_up_to, after)

    def commit(self, commit: Commit, now: float) -> None:
        """A step is committed; rebuilds of it are complete, and those that we have not seen are in what it came to."""
        self.credit.count(commit)
        self.probation.count(commit)
        known = self.commits.get(commit.step)
        if known is not None:
            if commit.given and not known.given and commit.step > self.newest_step - GIVEN_KEPT:
                self.commits[commit.step] = replace(known, given=commit.given)
            return
        self.commits[commit.step] = commit
        old = self.commits.get(commit.step - GIVEN_KEPT)
        if old is not None:
            self.commits[old.step] = bare(old)
        self.newest_step = max(self.newest_step, commit.step)
        for key, rebuild in self.rebuilds.items():
            if rebuild.seconds is None and rebuild.step <= commit.step:
                self.rebuilds[key] = replace(rebuild, seconds=now - rebuild.began)
        for told in commit.recoveries:
            past = Rebuild(told.stage, commit.step, told.rung, -1, None, None, BEFORE_US, now, told.seconds)
            self.rebuilds.setdefault((commit.step, told.stage), past)
        _keep_newest(self.rebuilds, REBUILDS_KEPT)
        _keep_newest(self.commits, ENTRIES_KEPT)

    def recovered(self, step: int, now: float) -> tuple[Recovered, ...]:
        """What `step` brings back if it is committed now, for the others' chronicles."""
        return tuple(
            Recovered(rebuild.stage, rebuild.rung, max(0.0, now - rebuild.began))
            for (at, _), rebuild in sorted(self.rebuilds.items())
            if at == step and rebuild.seconds is None
        )

    def rebuilders(self, step: int) -> tuple[Peer, ...]:
        """Who brings back what was lost if `step` is committed now, once for each stage."""
        return tuple(
            rebuild.newcomer
            for (at, _), rebuild in sorted(self.rebuilds.items())
            if at == step and rebuild.seconds is None and rebuild.newcomer and rebuild.rung not in OWN_WEIGHTS
        )

    def learn(self, commits: tuple[Commit, ...], now: float) -> None:
        """Commits from before our time, oldest first. What is missing among them nobody knows, and a donor's word on
        who did them counts for nothing."""
        for commit in commits:
            self.commit(bare(commit), now)
        self._asked_up_to = max([self._asked_up_to, *(commit.step for commit in commits)])

    def known_up_to(self) -> int:
        """The step up to which we know all that is to be known; later ones may have gaps."""
        step = max(self._asked_up_to, self.newest_step - ENTRIES_KEPT)
        while step + 1 in self.commits:
            step += 1
        self._asked_up_to = step
        return step

    def evaluate(self, step: int, loss: float) -> None:
        if self.validation.get(step) == loss:
            return
        self.evaluations += 1
        if step not in self.validation:
            insort(self._scored, step)
        self.validation[step] = loss
        for oldest in self._scored[:-ENTRIES_KEPT]:
            del self.validation[oldest]
        del self._scored[:-ENTRIES_KEPT]

    def around(self, rebuild: Rebuild) -> tuple[float | None, float | None]:
        """The last validation loss before a rebuild, and the one of the step that it interrupted. Whoever asks for a
        status has us look for all of them."""
        place = bisect_left(self._scored, rebuild.step)
        before = self.validation[self._scored[place - 1]] if place else None
        return before, self.validation.get(rebuild.step)

    def view(self, view: View) -> None:
        """Remember who lost which stage, for the rebuild that follows."""
        for stage, group in enumerate(view.holders):
            before = self._holders.get(stage)
            if before is not None and before not in group:
                self._lost[stage] = before
            if group:
                self._holders[stage] = group[0]

    def begin(self, begin: Begin, view: View, now: float) -> None:
        """The Begin of a redone step says who rebuilds what and how, and the first of a view what was given so far."""
        self.credit.catch_up(begin.base.step, begin.credits)
        for stage in view.omitted if begin.training else ():
            if self.left_out_since(stage) is None:
                self.rebuilds[begin.step, stage] = Rebuild(
                    stage, begin.step, Rung.OMIT, view.epochs[stage], self._lost.get(stage), None,
                    "nobody holds it, and routes leave it out", now, None,
                )  # fmt: skip
        for plan in begin.installs:
            key = (begin.step, plan.stage)
            known = self.rebuilds.get(key)
            if plan.rung is not Rung.INITIAL and (known is None or known.newcomer != plan.peer):
                self.rebuilds[key] = Rebuild(
                    plan.stage, begin.step, plan.rung, view.epochs[plan.stage], self._lost.get(plan.stage), plan.peer,
                    plan.reason, now, None,
                )  # fmt: skip
                _keep_newest(self.rebuilds, REBUILDS_KEPT)

    def rebuilt_at(self) -> list[int]:
        """The steps in which stages got weights that are not the lost ones, one for each stage."""
        return [rebuild.step for rebuild in self.rebuilds.values() if rebuild.rung in LOSSY]

    def left_out_since(self, stage: int) -> int | None:
        """The first step without the stage, where it has not come back since."""
        newest = max((each for each in self.rebuilds.values() if each.stage == stage), key=_step_of, default=None)
        return newest.step if newest is not None and newest.rung is Rung.OMIT else None

    def owes_validation(self, step: int, every: int) -> bool:
        """Whether the weights after `step` should be validated: they are due, a due validation was put off, or a stage
        of them was rebuilt."""
        due = step - step % every if every else 0
        done = max(self.unscored, max(self.validation, default=0))
        return step != self.unscored and (step in self.rebuilt_at() or due > done)

    def newest_commits(self, count: int = 2) -> tuple[Commit, ...]:
        """Oldest first. Gaps count, so that this takes no longer the more is known."""
        newest = range(max(0, self.newest_step - count + 1), self.newest_step + 1)
        return tuple(self.commits[step] for step in newest if step in self.commits)

    def after(self, since: int) -> tuple[Commit, ...]:
        """All commits after step `since`, oldest first."""
        return tuple(bare(self.commits[step]) for step in sorted(self.commits) if step > since)


def _step_of(rebuild: Rebuild) -> int:
    return rebuild.step


def _keep_newest(table: dict, count: int) -> None:  # type: ignore[type-arg]
    while len(table) > count:
        del table[min(table)]
