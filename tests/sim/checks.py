"""What must hold whatever happens, as an onlooker who sees everything can check it (docs/explanation/protocol.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection

from ftnode.protocol.words.messages import Begin, Status
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version
from ftnode.protocol.words.view import View


class Violation(Exception):
    """An invariant is broken; `invariant` is I1 .. I9, or `core` when the core itself raised."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class Ledger:
    """All views, begins, commits and applied updates of one world. Each method raises Violation."""

    def __init__(self) -> None:
        self.views: dict[tuple[str, int], View] = {}
        self.parents: dict[str, str] = {}
        """Lineage to the digest of the view that its founder came from."""
        self.commits: dict[str, dict[int, Version]] = {}
        """Lineage to step to the version that it committed."""
        self.newest_view: dict[str, int] = {}
        """Lineage to the view that was the last to commit something new."""
        self.begun: dict[tuple[str, Attempt], Begin] = {}
        self.seen: set[tuple[str, int]] = set()
        """(lineage, step) of the commits that a Begin has told others of."""
        self.bases: dict[tuple[str, Attempt, int], str] = {}
        self.updates: dict[tuple[int, str], tuple[int, int]] = {}
        """(stage, commit) to the histories before and after its update."""
        self.chain: dict[str, tuple[str, bool]] = {}
        """Commit to the commit before it, and whether the step was skipped."""
        self.rebuilt: set[tuple[int, str, int]] = set()
        """(stage, commit, history) of weights that an install gave the commit's name."""
        self.ready: set[Peer] = set()
        """Who has said that it is Ready, for any step."""
        self.counts: Counter[str] = Counter()
        self._top_commit = 0

    def view(self, view: View) -> bool:
        """I2: one view, so one owner list, per lineage and number. True when it is news."""
        key = (view.lineage.id, view.number)
        news = key not in self.views
        known = self.views.setdefault(key, view)
        if known is not view and known != view:
            raise Violation("I2", f"two views {view.number} of lineage {view.lineage.id}: {known} and {view}")
        if any(view.holders[stage] for stage in view.omitted) or 0 in view.omitted:
            raise Violation("I2", f"a stage is left out that somebody holds, or the head: {view}")
        for stage, group in enumerate(view.holders):
            if len(set(group)) != len(group):
                raise Violation("I2", f"stage {stage} names a holder twice: {view}")
            if not group or view.epochs[stage] <= view.number:
                continue
            raise Violation("I2", f"stage {stage} has an epoch of a later view: {view}")
        before = self.views.get((view.lineage.id, view.number - 1))
        if before is not None and before.digest() != view.previous:
            raise Violation("I2", f"view {view.number} does not continue view {before.number}: {view}")
        strangers = set(view.voters).difference(before.voters, self.ready) if before is not None else ()
        if strangers:
            raise Violation("I2", f"{strangers} vote in view {view.number} and have never been Ready (rule 13): {view}")
        return news

    def begin(self, sender: Peer, begin: Begin) -> bool:
        """A leader sends Begin, which commits its base (rule 19). True the first time for that commit."""
        view = self.views.get((begin.lineage, begin.view))
        if view is None or view.leader != sender:
            raise Violation("I2", f"{sender} sends Begin {begin.attempt} but view {begin.view} is {view}")
        if begin.attempt.view != begin.view and (begin.lineage, begin.attempt) not in self.begun:
            raise Violation("I3", f"{sender} continues attempt {begin.attempt}, which nobody began")
        if begin.training and view.omitted != self.left_out(begin.lineage, begin.attempt):
            raise Violation("I1", f"attempt {begin.attempt} goes on, and its routes are others now: {view}")
        first = (begin.lineage, begin.attempt) not in self.begun  # a leader that was away may send an old one again
        known = self.begun.setdefault((begin.lineage, begin.attempt), begin)
        if (known.step, known.base, known.skip) != (
            begin.step,
            begin.base,
            begin.skip,
        ) or begin.step != begin.base.step + 1:
            raise Violation(
                "I3", f"attempt {begin.attempt} is step {known.step} on {known.base} and {begin.step} on {begin.base}"
            )
        newest = max(self.commits.get(begin.lineage, {0: None}))
        if first and begin.base.step < newest and begin.view >= self.newest_view.get(begin.lineage, 0):
            raise Violation("I3", f"{sender} begins step {begin.step} after the commit of {newest}: {begin}")
        if begin.base.step >= newest:
            self.newest_view[begin.lineage] = max(begin.view, self.newest_view.get(begin.lineage, 0))
        self.bases.setdefault((begin.lineage, begin.attempt, begin.step), begin.base.commit)
        self.commit(begin.lineage, begin.base)
        news = (begin.lineage, begin.base.step) not in self.seen
        self.seen.add((begin.lineage, begin.base.step))
        return news

    def left_out(self, lineage: str, attempt: Attempt) -> tuple[int, ...]:
        """Stages without which an attempt is made: those of the view that began it."""
        view = self.views.get((lineage, attempt.view))
        return view.omitted if view is not None else ()

    def commit(self, lineage: str, version: Version) -> bool:
        """I3: a lineage commits each step once, in order, as one attempt. True when it is news."""
        commits = self.commits.setdefault(lineage, {})
        committed = commits.get(version.step)
        if committed is None:
            if commits and version.step < max(commits):
                raise Violation("I3", f"lineage {lineage} goes back from {max(commits)} to {version.step}")
            commits[version.step] = version
            self._top_commit = max(self._top_commit, version.step)
            return True
        if committed != version:
            raise Violation("I3", f"step {version.step} of {lineage} is committed as {committed} and {version}")
        return False

    def check_base(self, lineage: str, attempt: Attempt, step: int, version: Version) -> None:
        """I1: all work of an attempt is done on the weights that its Begin names."""
        base = self.bases.setdefault((lineage, attempt, step), version.commit)
        if base != version.commit:
            raise Violation("I1", f"attempt {attempt} of step {step} began on {base}, but {version} is in use")

    def applied(
        self, owner: str, stage: int, base: Version, version: Version, skipped: bool, before: int, after: int
    ) -> None:
        """I4, and that weights of two lineages never mix: equal versions have equal histories."""
        if self.chain.setdefault(version.commit, (base.commit, skipped)) != (base.commit, skipped):
            raise Violation(
                "I4", f"{owner} makes {version} of {base} ({skipped=}), others {self.chain[version.commit]}"
            )
        known = self.updates.setdefault((stage, version.commit), (before, after))
        if known != (before, after):
            raise Violation("I4", f"{owner} has another history of stage {stage} at {version} than its replica")
        self.counts["applied"] += 1

    def check_copy(self, owner: str, stage: int, copy: Version, history: int, base: Version) -> None:
        """A copy that a stage is rebuilt from is what the lineage had at that step, and of the base's own past."""
        if copy.step > base.step:
            raise Violation("I3", f"{owner} takes a copy of {copy} for {base}")
        known = self.updates.get((stage, copy.commit))
        if known is not None and known[1] != history and (stage, copy.commit, history) not in self.rebuilt:
            raise Violation("I4", f"{owner} takes a copy of stage {stage} at {copy} that was never its weights")
        past: str | None = base.commit
        for _ in range(base.step - copy.step):
            past = self.chain[past][0] if past in self.chain else None
        if past not in (None, copy.commit):  # None: only liars have made one of the commits between them
            raise Violation(
                "I4", f"{owner} takes a copy of stage {stage} at {copy}, which is not in the past of {base}"
            )

    def top_commit(self) -> int:
        """The highest step that any lineage committed."""
        return self._top_commit


def check_kept(owner: str, status: Status, copies: Collection[int]) -> None:
    """I4: nobody tells a leader of a copy that it does not keep; the leader plans with it."""
    missing = sorted({stage for stage, _ in status.copies}.difference(copies))
    if missing:
        raise Violation("I4", f"{owner} tells of copies of stages {missing}, of which it has none")


def handles_bound(settings: Settings) -> int:
    """I6: per visit and direction, what was received and what is kept, for every microbatch of a step and its
    evaluation, twice: the attempt that ends and the one that begins."""
    return 2 * 4 * (settings.microbatches + settings.evaluation_microbatches) * (settings.stages + 2)


def hopeless(lost: set[int], stages: int) -> bool:
    """Is there no way to get the weights of these back: the head, or every block stage?"""
    return 0 in lost or lost >= set(range(1, stages + 1))
