"""Exactly once, and everywhere the same: what the stages applied, held against what was committed (invariants I1, I3
and I4)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ftnode.lab.audit.trace import Finding, Life, Visit
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Attempt, Version, initial_version, next_version
from ftnode.protocol.words.view import View


@dataclass(frozen=True)
class Step:
    """One committed step of one lineage."""

    lineage: str
    version: Version
    skipped: bool
    record: dict[str, Any]
    where: str


@dataclass
class StepAudit:
    """What became of the steps. Counts are over all stages of all committed steps."""

    steps: list[Step] = field(default_factory=list)
    duplicates_applied: int = 0
    microbatches_lost: int = 0
    compared: int = 0
    """(stage, step) of which several holders told the hash of the weights."""
    findings: list[Finding] = field(default_factory=list)


def audit_steps(lives: list[Life]) -> StepAudit:
    """Every commit once, in one chain from the initial weights, and every stage's gradient of it exactly once."""
    audit = StepAudit()
    audit.steps = _committed(lives, audit.findings)
    _check_chain(lives, audit)
    applied = _index_applied(lives)
    for step in audit.steps:
        for stage in range(lives[0].settings.stage_count):
            _check_stage(lives, audit, step, stage, applied)
    known = {step.version.commit for step in audit.steps}
    for (stage, commit), owners in applied.items():
        if commit not in known:
            number = owners[0][1]["step"]
            text = f"stage {stage} applied step {number}, which nobody committed"
            audit.findings.append(Finding("commit", text, owners[0][0].name))
    return audit


def left_out(lives: list[Life], step: Step) -> tuple[int, ...]:
    """The stages without which the step was made: those of the view that began its attempt."""
    number = step.version.attempt.view
    views = (view for life in lives for view in life.views)
    return next((v.omitted for v in views if (v.lineage.id, v.number) == (step.lineage, number)), ())


def visits_of(stage: int, settings: Settings, omitted: tuple[int, ...]) -> Counter[Visit]:
    """What a stage must count in one step: every microbatch at each position that it has on the route 0, 1 .. S, 0,
    without the stages `omitted`."""
    return Counter(
        (microbatch, visit)
        for microbatch in range(settings.microbatches)
        for visit, visited in enumerate(_route(settings, microbatch, omitted))
        if visited == stage
    )


def _route(settings: Settings, microbatch: int, omitted: tuple[int, ...]) -> list[int]:
    """Worked out here, not taken from the core that is audited: 0, 1 .. S, 0, of which odd microbatches exchange the
    first two and the last two where the run swaps routes."""
    visited = [*range(settings.stages + 1), HEAD]
    if settings.swap and microbatch % 2:
        for left in (1, settings.stages - 1):
            visited[left], visited[left + 1] = visited[left + 1], visited[left]
    return [stage for stage in visited if stage not in omitted]


def _committed(lives: list[Life], findings: list[Finding]) -> list[Step]:
    """One Step per (lineage, step). A leader's successor may commit the same attempt again (rule 18 i and ii)."""
    steps: dict[tuple[str, int], Step] = {}
    for life in lives:
        for record in life.commits:
            version = Version(record["step"], record["commit"], Attempt(*record["attempt"]))
            step = Step(record["lineage"], version, record["skipped"], record, life.name)
            other = steps.setdefault((step.lineage, version.step), step)
            if other.version != version:
                text = f"step {version.step} was committed twice, as {other.version.attempt} and as {version.attempt}"
                findings.append(Finding("commit", text, step.where))
    return [steps[key] for key in sorted(steps)]


def _check_chain(lives: list[Life], audit: StepAudit) -> None:
    """Every commit follows another's weights, or the initial ones, so a commit that is missing breaks the chain."""
    lineages = {view.lineage.id for life in lives for view in life.views}
    bases = {initial_version(lineage).commit: initial_version(lineage) for lineage in lineages}
    bases |= {step.version.commit: step.version for step in audit.steps}
    followed = defaultdict(list)
    for base in bases.values():
        followed[base.step + 1].append(base)
    for step in audit.steps:
        attempt, candidates = step.version.attempt, followed[step.version.step]
        follows = {next_version(base, lineage, attempt, step.skipped) for base in candidates for lineage in lineages}
        if step.version not in follows:
            text = f"step {step.version.step} follows no committed step {step.version.step - 1}"
            audit.findings.append(Finding("commit", text, step.where))


Owners = list[tuple[Life, dict[str, Any]]]
Applied = defaultdict[tuple[int, str], Owners]
"""By (stage, commit)."""


def _index_applied(lives: list[Life]) -> Applied:
    applied: Applied = defaultdict(list)
    for life in lives:
        for record in life.applied:
            applied[(record["stage"], record["commit"])].append((life, record))
    return applied


def _check_stage(lives: list[Life], audit: StepAudit, step: Step, stage: int, applied: Applied) -> None:
    number, attempt = step.version.step, step.version.attempt
    owners = applied[(stage, step.version.commit)]
    for life, record in owners:
        if Attempt(*record["attempt"]) != attempt or record["skipped"] != step.skipped:
            text = f"stage {stage} applied step {number} as attempt {record['attempt']}, not the committed one"
            audit.findings.append(Finding("apply", text, life.name))
    key = (stage, number, attempt)
    _check_equal(audit, step, stage, owners)
    omitted = left_out(lives, step)
    if stage in omitted and not owners:
        return
    holders = [life for life, _ in owners] or _lost_owners(lives, step, stage)
    if not holders:
        audit.findings.append(Finding("apply", f"nobody applied step {number} of stage {stage}", step.where))
        if not step.skipped:
            audit.microbatches_lost += lives[0].settings.microbatches
        return
    if step.skipped:
        return
    reduced = bool(owners) or key in holders[0].reduced
    covered = _covered(lives, audit, holders, key) if reduced else _done_at_least(holders, key)
    expected = visits_of(stage, lives[0].settings, omitted)
    surplus, missing = covered - expected, expected - covered
    if not reduced:
        lost = {other for other in range(lives[0].settings.stage_count) if not applied[(other, step.version.commit)]}
        routes = {m: _route(lives[0].settings, m, omitted) for m, _ in missing}
        missing = Counter(visit for visit in missing.elements() if _is_waited_for(visit, lost, routes))
    audit.duplicates_applied += surplus.total()
    audit.microbatches_lost += len({microbatch for microbatch, _ in missing})
    if surplus or missing:
        text = f"stage {stage} applied step {number} with {sorted(surplus)} too many and {sorted(missing)} missing"
        audit.findings.append(Finding("exactly once", text, holders[0].name))


def _check_equal(audit: StepAudit, step: Step, stage: int, owners: Owners) -> None:
    """All holders of a stage that applied a step did so with the same gradient, and have the same weights since."""
    number, commit = step.version.step, step.version.commit
    key = (stage, number, step.version.attempt)
    gradients = [] if step.skipped else [life.gradients.get(key, "") for life, _ in owners]
    weights = [life.hashed[(stage, commit)] for life, _ in owners if (stage, commit) in life.hashed]
    audit.compared += len(weights) > 1
    for what, told in (("gradients", gradients), ("weights", weights)):
        if len(set(told)) > 1:
            text = f"holders of stage {stage} have different {what} of step {number}: {', '.join(sorted(set(told)))}"
            audit.findings.append(Finding("replicas", text, step.where))


def _covered(lives: list[Life], audit: StepAudit, holders: list[Life], key: tuple[int, int, Attempt]) -> Counter[Visit]:
    """The visits in the gradient that was applied: each holder's own, or those of the group that it was summed over,
    of which somebody may have died after it gave its part."""
    groups = {life.groups.get(key, ()) for life in holders}
    if groups == {()}:
        return sum((life.reduced.get(key, Counter()) for life in holders), Counter())
    if len(groups) > 1:
        text = f"holders of stage {key[0]} applied step {key[1]} with sums over different groups"
        audit.findings.append(Finding("exactly once", text, holders[0].name))
    covered: Counter[Visit] = Counter()
    by_peer = {life.peer: life for life in lives}
    for peer, count in next(iter(groups)):
        life = by_peer.get(peer)
        given = Counter() if life is None else life.reduced.get(key, life.accumulated.get(key, Counter()))
        if given.total() != count:
            text = f"{peer} gave {given.total()} visits to step {key[1]} of stage {key[0]}, not {count}"
            audit.findings.append(Finding("exactly once", text, life.name if life is not None else holders[0].name))
        covered += given
    return covered


def _done_at_least(holders: list[Life], key: tuple[int, int, Attempt]) -> Counter[Visit]:
    """The visits that holders finished of whom none lived to reduce: one of them may have repeated another's."""
    done: Counter[Visit] = Counter()
    for life in holders:
        done |= life.accumulated.get(key, Counter())
    return done


def _is_waited_for(visit: Visit, lost: set[int], routes: Mapping[int, Sequence[int]]) -> bool:
    """Whether a survivor needs the gradient that goes back from this visit. None does from a route's first visit, where
    it ends, nor from the next when the first one's holders are lost too: the others can be Ready before it is done."""
    microbatch, number = visit
    return any(stage not in lost for stage in routes[microbatch][:number])


def _lost_owners(lives: list[Life], step: Step, stage: int) -> list[Life]:
    """The holders that were lost before they applied the step: those that had reduced it, or else all that worked on
    it. Once their visits are done, t is committed without them, as soon as the survivors are Ready (rule 18 ii). The
    stage is then rebuilt from its neighbours after t.

    Only such a rebuild excuses the missing update, or that routes leave the stage out from then on, or traces that end
    with t. They end so in two ways:
      - a later view is without the holder, and its stage is not filled any more;
      - the holder stopped in order and was never told of the commit, since all nodes were stopped together.
    """
    version = step.version
    key = (stage, version.step, version.attempt)
    rebuilt = any(
        record["stage"] == stage and record["commit"] == version.commit for life in lives for record in life.installed
    )
    last = version.step == max(record["step"] for life in lives for record in life.commits)
    views = [view for life in lives for view in life.views]
    without = any(stage in view.omitted and view.number > version.attempt.view for view in views)
    if not (rebuilt or without or last):
        return []
    removed = [
        life for life in lives
        if any(_took_from(view, life, stage, version.attempt.view) for view in views)
        or (last and life.ended and version.commit not in life.told)
    ]  # fmt: skip
    reduced = [life for life in removed if key in life.reduced]
    return reduced or [life for life in removed if key in life.accumulated]


def _took_from(view: View, life: Life, stage: int, since: int) -> bool:
    return view.number > since and life.peer not in view.holders[stage]
