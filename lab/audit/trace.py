"""One node's trace, read for what it claims and checked for what it must say of itself.

A `Life` is what the other checks of the audit work with. The checks here need no other trace: the sequence has no gap,
every event that changes weights has its record and every record its event, gradients are made on the weights they
say, and a stage's versions follow each other in the chain of commits.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ftnode.node.driver.trace import TRACE_PATTERN, read_trace
from ftnode.protocol.words.codec import from_plain, from_tagged
from ftnode.protocol.words.effects import Backward, Reduce
from ftnode.protocol.words.errors import PeerError, UserError
from ftnode.protocol.words.events import EVENTS, Done, Installed, Kept
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Version, next_version
from ftnode.protocol.words.view import View

ERRORS = "audit_trace"

Record = dict[str, Any]
Visit = tuple[int, int]
"""(microbatch, visit)"""
Group = tuple[tuple[Peer, int], ...]
"""Everybody who got a sum, and how many visits each put into it."""


@dataclass(frozen=True)
class Finding:
    """Something that a correct run cannot leave behind. `where` names the trace and the line's sequence number."""

    rule: str
    text: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text} [{self.rule}]"


@dataclass
class Life:
    """What one life of one node says it did."""

    path: Path
    peer: Peer
    settings: Settings
    precision: str = "float32"
    """Of the weights in its dumps."""
    ended: bool = False
    views: list[View] = field(default_factory=list)
    reduced: dict[tuple[int, int, Attempt], Counter[Visit]] = field(default_factory=dict)
    accumulated: defaultdict[tuple[int, int, Attempt], Counter[Visit]] = field(
        default_factory=lambda: defaultdict(Counter)
    )
    groups: dict[tuple[int, int, Attempt], Group] = field(default_factory=dict)
    """Over whom a gradient was summed last; empty: nobody else."""
    norms: dict[tuple[int, int, Attempt], float] = field(default_factory=dict)
    """Squared norm of each reduced gradient, by (stage, step, attempt)."""
    gradients: dict[tuple[int, int, Attempt], str] = field(default_factory=dict)
    """The hash of each, by (stage, step, attempt)."""
    hashed: dict[tuple[int, str], str] = field(default_factory=dict)
    """(stage, commit) → the hash of the weights that the commit made, where it was asked for."""
    applied: list[Record] = field(default_factory=list)
    commits: list[Record] = field(default_factory=list)
    told: set[str] = field(default_factory=set)
    """The commits that it knew of: as the leader, or from a `Begin`."""
    exported: list[Record] = field(default_factory=list)
    installed: list[Record] = field(default_factory=list)
    asked: Counter[tuple[str, int, int | None]] = field(default_factory=Counter)
    """How often it may have asked (donor's id, stage, step) for weights; step None: for whatever copy that one kept."""
    kept: set[tuple[int, int, str]] = field(default_factory=set)
    """(stage, step, commit) of every copy that was whole."""
    evaluated: list[tuple[int, float]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def name(self) -> str:
        """For people: the node's folder and file."""
        return f"{self.path.parent.name}/{self.path.name}"

    def find(self, rule: str, text: str, record: Record | None = None) -> None:
        line = f" line {record['n']}" if record else ""
        self.findings.append(Finding(rule, text, f"{self.name}{line}"))


def read_lives(*directories: Path) -> list[Life]:
    """Every trace below one of `directories` that has begun, once. Raises UserError: 66 for none below one of them, 65
    where one is no trace."""
    lives: dict[Path, Life] = {}
    for directory in directories:
        traces = [(path, read_trace(path)) for path in sorted(directory.rglob(TRACE_PATTERN))]
        begun = {path.resolve(): (path, records) for path, records in traces if records}
        if not begun:
            raise UserError(
                f"no trace below {directory}: give the folder that a run left, with {TRACE_PATTERN} in it", 66
            )
        lives |= {place: read_life(*begun[place]) for place in begun if place not in lives}
    return list(lives.values())


def read_life(path: Path, records: list[Record]) -> Life:
    """Checks one trace and gathers what the others need. Raises UserError (65) for a trace that starts as none."""
    start = records[0]
    if start["k"] != "start":
        raise UserError(f"{path}: the first record of a trace is `start`, not `{start['k']}`", 65)
    try:
        life = Life(path, Peer(*start["peer"]), Settings(**start["settings"]), str(start.get("precision", "float32")))
        reading = _Reading(life)
        for index, record in enumerate(records):
            if record["n"] != index:
                life.find("sequence", f"sequence number {record['n']} where {index} belongs", record)
                break
        for record in records:
            reading.read(record)
        reading.finish()
    except (PeerError, TypeError, ValueError, KeyError, IndexError) as error:
        raise UserError(f"{path}: a record does not read as one: {error}", 65) from error
    return life


class _Reading:
    """Walks one trace in order. `_owed` are the records that the last event has still to leave behind."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._owed: Counter[tuple[Any, ...]] = Counter()
        self._owed_by: Record | None = None
        self._owed_view: str | None = None
        self._gave_up = False
        self._versions: dict[int, tuple[str, Version | None]] = {}
        """Stage -> lineage and version of the weights that this node has."""
        self._equal_since: dict[int, int] = {}
        """Stage -> the step since which its weights have stayed as they are, as all later ones were skipped."""
        self._reduction: Reduce | None = None
        """The last one that ended."""
        self._reduced_in: dict[tuple[int, int, Attempt], int] = {}
        """The view in which the stage's gradients of an attempt were summed last."""
        self._updates: set[tuple[int, str]] = set()
        self._commits: set[str] = set()

    def read(self, record: Record) -> None:
        if self._life.ended:
            self._life.find("end", "a record after the end", record)
        match record["k"]:
            case "event":
                self._settle()
                self._owe(record)
            case "note":
                self._note(record)
            case "view":
                self._view(record)
            case "accumulated":
                self._accumulated(record)
            case "reduced":
                self._reduced(record)
            case "applied":
                self._applied(record)
            case "hashed":
                self._life.hashed[(record["stage"], record["commit"])] = record["digest"]
            case "commit":
                self._commit(record)
            case "exported":
                self._life.exported.append(record)
            case "installing":
                step = None if record["copies"] else record["step"]
                self._life.asked.update({(donor[0], stage, step): 1 for stage, donor in record["donors"]})
            case "installed":
                self._installed(record)
            case "evaluated":
                self._life.evaluated.append((record["step"], record["loss"]))
            case "end":
                self._settle()
                self._life.ended = True

    def finish(self) -> None:
        """What the very last event owes may have died with the node; a node that ended in order owes nothing."""
        if self._life.ended:
            self._settle()

    def _settle(self) -> None:
        for owed, number in self._owed.items():
            if number > 0:
                self._life.find("event", f"no record of {_describe(owed)}, though it happened", self._owed_by)
        if self._owed_view is not None:
            self._life.find("view", f"no record of view {self._owed_view}, though it was taken up", self._owed_by)
        self._owed.clear()
        self._owed_view = None

    def _pay(self, record: Record, *owed: Any) -> None:
        if self._owed[owed] < 1:
            self._life.find("event", f"a record of {_describe(owed)}, which did not just happen", record)
        self._owed[owed] -= 1

    def _owe(self, record: Record) -> None:
        self._owed_by = record
        name = record["e"][0]
        if name == "Received" and record["e"][2][0] == "Begin":
            begin = from_tagged(EVENTS, record["e"]).message
            self._life.told.add(begin.base.commit)
        if name not in ("Done", "Installed", "Kept"):
            return
        match from_tagged(EVENTS, record["e"]):
            case Done(task=Backward() as task, fault=""):
                for stage, visit in zip(task.stages, task.visits):
                    self._owed[("accumulated", stage, task.step, task.attempt, task.microbatch, visit)] += 1
            case Done(task=Reduce() as task, fault="", gradient=gradient):
                self._life.gradients[(task.stage, task.step, task.attempt)] = gradient
                self._owed[("reduced", task.stage, task.step, task.attempt)] += 1
                self._reduction = task
            case Installed(stage=stage, base=base, digest=digest):
                self._owed[("installed", stage, base.step, base.commit, digest)] += 1
            case Kept(stage=stage, version=version):
                self._life.kept.add((stage, version.step, version.commit))

    def _note(self, record: Record) -> None:
        """The core says when it takes up a view, and when it gives one up without another."""
        if record["kind"] == "view":
            self._owed_view = record["fields"].get("view")
        elif record["kind"] == "gone" and "given up" in record["text"]:
            self._gave_up = True

    def _view(self, record: Record) -> None:
        view: View = from_plain(View, record["view"])
        before = self._life.views[-1] if self._life.views else None
        again = self._gave_up and view == before  # which the core says once
        if self._owed_view != str(view.number) and not again:
            self._life.find("view", f"a record of view {view.number}, which was not taken up just now", record)
        self._owed_view = None
        known = before is not None and before.lineage == view.lineage and not self._gave_up
        if known and before is not None and view.number <= before.number:
            self._life.find("view", f"view {view.number} after view {before.number}", record)
        self._gave_up = False
        self._life.views.append(view)

    def _accumulated(self, record: Record) -> None:
        key = (record["stage"], record["step"], Attempt(*record["attempt"]))
        visit = (record["microbatch"], record["visit"])
        self._pay(record, "accumulated", *key, *visit)
        if self._life.accumulated[key][visit]:
            self._life.find("exactly once", f"microbatch {visit[0]} visit {visit[1]} counted twice in one step", record)
        self._life.accumulated[key][visit] += 1
        self._check_based(record, *key)

    def _reduced(self, record: Record) -> None:
        key = (record["stage"], record["step"], Attempt(*record["attempt"]))
        self._pay(record, "reduced", *key)
        covered = Counter((microbatch, visit) for microbatch, visit in record["covered"])
        if covered != self._life.accumulated[key]:
            surplus, missing = covered - self._life.accumulated[key], self._life.accumulated[key] - covered
            self._life.find(
                "exactly once", f"compute reduced other gradients than were accumulated: "
                f"{sorted(surplus)} more, {sorted(missing)} fewer", record,
            )  # fmt: skip
        task = self._reduction
        newest = max((view.number for view in self._life.views), default=-1)
        view = task.view if task is not None and task.group else newest  # who is alone does it once, in any view
        if view <= self._reduced_in.get(key, -1):
            self._life.find("exactly once", f"stage {key[0]} reduced step {key[1]} twice in view {view}", record)
        self._life.reduced[key], self._reduced_in[key] = covered, view
        self._life.norms[key] = float(record["norm_squared"])
        if task is not None:
            self._life.groups[key] = task.group
        if covered:  # a learner, or a holder that got no work, may have no weights yet
            self._check_based(record, *key)

    def _check_based(self, record: Record, stage: int, step: int, attempt: Attempt) -> None:
        """A gradient for step t is made on the weights after step t - 1, in a view that the node knows. A step that is
        skipped waits for no task of an earlier attempt, and leaves the weights as they were."""
        _, version = self._versions.get(stage, ("", None))
        late = version is not None and attempt < version.attempt and self._equal_since[stage] < step <= version.step
        if version is None or (version.step != step - 1 and not late):
            has = f"the weights after step {version.step}" if version else "no weights"
            self._life.find("version", f"stage {stage} works on step {step} with {has}", record)
        if max((view.number for view in self._life.views), default=-1) < attempt.view:
            self._life.find("view", f"attempt {attempt.view}.{attempt.n} outside a view that this node knows", record)

    def _applied(self, record: Record) -> None:
        stage, step, attempt = record["stage"], record["step"], Attempt(*record["attempt"])
        lineage, base = self._versions.get(stage, ("", None))
        if not record["skipped"] and (stage, step, attempt) not in self._life.reduced:
            self._life.find("apply", f"stage {stage} applied step {step} without its reduced gradient", record)
        if (stage, record["commit"]) in self._updates:
            self._life.find("apply", f"stage {stage} applied step {step} twice", record)
        elif base is None or not self._follows(record, base, attempt):
            has = f"step {base.step}" if base else "nothing"
            self._life.find("version", f"stage {stage} applied step {step} on top of {has}", record)
        self._updates.add((stage, record["commit"]))
        if not record["skipped"] or stage not in self._equal_since:
            self._equal_since[stage] = step
        self._versions[stage] = (lineage, Version(step, record["commit"], attempt))
        self._life.applied.append(record)

    def _follows(self, record: Record, base: Version, attempt: Attempt) -> bool:
        """In any lineage that this node knows: survivors may apply in theirs what the parent lineage reduced."""
        lineages = {view.lineage.id for view in self._life.views}
        commits = {next_version(base, lineage, attempt, record["skipped"]).commit for lineage in lineages}
        return record["commit"] in commits

    def _commit(self, record: Record) -> None:
        view = self._life.views[-1] if self._life.views else None
        leads = view is not None and view.leader == self._life.peer and view.lineage.id == record["lineage"]
        if view is None or not leads or view.number < record["attempt"][0]:
            self._life.find("commit", f"step {record['step']} committed outside a view that this node leads", record)
        if record["commit"] in self._commits:
            self._life.find("commit", f"step {record['step']} committed twice", record)
        self._commits.add(record["commit"])
        self._life.told.add(record["commit"])
        self._life.commits.append(record)

    def _installed(self, record: Record) -> None:
        stage = record["stage"]
        self._pay(record, "installed", stage, record["step"], record["commit"], record["digest"])
        lineage, before = self._versions.get(stage, ("", None))
        mine = self._life.views[-1].lineage.id if self._life.views else ""
        if before is not None and lineage == mine and record["step"] < before.step:
            self._life.find("version", f"stage {stage} went back from step {before.step} to {record['step']}", record)
        self._versions[stage] = (mine, Version(record["step"], record["commit"], Attempt(-1, 0)))
        self._equal_since[stage] = record["step"]
        self._life.installed.append(record)


def _describe(owed: tuple[Any, ...]) -> str:
    return " ".join(f"{part.view}.{part.n}" if isinstance(part, Attempt) else str(part) for part in owed)
