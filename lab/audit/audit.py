"""Whether a swarm kept its promises, derived from all of its nodes' traces and from nothing else.

Every (stage, step, microbatch, visit) was applied exactly once per committed step, there is one view per number,
nothing went back, and what was rebuilt is the blend of what its donors had. A trace with an event missing or doubled
does not pass: sequence numbers show it, and where they were made to fit, one of the other checks does.
The one thing that cannot be told from the truth is a killed node's trace that ends a line earlier.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from ftnode.lab.audit.steps import audit_steps
from ftnode.lab.audit.trace import Finding, Life, read_lives
from ftnode.lab.audit.views import audit_views
from ftnode.lab.audit.weights import audit_weights
from ftnode.protocol.words.errors import UserError

FINDINGS_SHOWN = 20
FINDINGS_TOLD = 5
"""In one line."""


@dataclass(frozen=True)
class Findings:
    """What the audit found and how much it looked at."""

    findings: tuple[Finding, ...]
    traces: int
    views: int
    steps_committed: int
    last_step: int
    rebuilds: int
    duplicates_applied: int
    microbatches_lost: int
    replicas_compared: int
    """(stage, step) of which several holders told the hash of the weights."""

    @property
    def passed(self) -> bool:
        return not self.findings

    @property
    def verdict(self) -> str:
        """For a table of figures: `passed`, or the first findings."""
        return "passed" if self.passed else "; ".join(map(str, self.findings[:FINDINGS_TOLD]))

    def as_json(self) -> dict[str, object]:
        figures = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "findings"}
        return {"passed": self.passed, "findings": [str(finding) for finding in self.findings], **figures}


def audit(*directories: Path) -> Findings:
    """Raises UserError when there is no trace below one of `directories` (66) or a file that is none (65)."""
    return audit_lives(read_lives(*directories))


def audit_lives(lives: list[Life]) -> Findings:
    if len({life.settings.run for life in lives}) > 1:
        raise UserError("the traces belong to different runs; give the folder of one run", 65)
    steps = audit_steps(lives)
    rebuilds, weights = audit_weights(lives)
    found = [finding for life in lives for finding in life.findings]
    found += [*_lives_without_end(lives), *audit_views(lives), *steps.findings, *weights]
    return Findings(
        findings=tuple(found),
        traces=len(lives),
        views=len({(view.lineage.id, view.number) for life in lives for view in life.views}),
        steps_committed=len(steps.steps),
        last_step=max((step.version.step for step in steps.steps), default=0),
        rebuilds=rebuilds,
        duplicates_applied=steps.duplicates_applied,
        microbatches_lost=steps.microbatches_lost,
        replicas_compared=steps.compared,
    )


def _lives_without_end(lives: list[Life]) -> list[Finding]:
    """A node whose trace just stops was killed, and then the run's last view is without it."""
    commits = [record for life in lives for record in life.commits]
    if not commits:
        return []
    lineage = max(commits, key=lambda record: record["step"])["lineage"]
    views = [view for life in lives for view in life.views if view.lineage.id == lineage]
    last = max(views, key=lambda view: view.number, default=None)
    return [
        Finding("end", "the trace stops, though the last view has this node as a member", life.name)
        for life in lives
        if last is not None and not life.ended and life.peer in last.members()
    ]


def main(*directories: Path, as_json: bool) -> int:
    """`ftnode lab audit DIR...`: prints the findings; 0 when there are none, else 1."""
    findings = audit(*directories)
    if as_json:
        json.dump(findings.as_json(), sys.stdout, indent=2)
        sys.stdout.write("\n")
        return 0 if findings.passed else 1
    print(
        f"{findings.traces} traces, {findings.views} views, {findings.steps_committed} committed steps, "
        f"{findings.rebuilds} rebuilds: {findings.duplicates_applied} duplicates applied, "
        f"{findings.microbatches_lost} microbatches lost, {findings.replicas_compared} times replicas compared"
    )
    for finding in findings.findings[:FINDINGS_SHOWN]:
        print(f"  {finding}")
    if len(findings.findings) > FINDINGS_SHOWN:
        print(f"  and {len(findings.findings) - FINDINGS_SHOWN} more")
    print("passed" if findings.passed else f"FAILED: {len(findings.findings)} findings")
    return 0 if findings.passed else 1
