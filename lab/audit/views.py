"""One view per number, in one chain (invariants I2 and I3, rules 2 and 14)."""

from __future__ import annotations

from ftnode.lab.audit.trace import Finding, Life
from ftnode.protocol.words.view import View


def audit_views(lives: list[Life]) -> list[Finding]:
    """All traces agree on every view of every lineage and each follows the one before."""
    findings: list[Finding] = []
    known: dict[tuple[str, int], View] = {}
    for life in lives:
        where = life.name
        for view in life.views:
            other = known.setdefault((view.lineage.id, view.number), view)
            if other.digest() != view.digest():
                findings.append(Finding("view", f"two different views {view.number} in one lineage", where))
    for (lineage, number), view in known.items():
        before = known.get((lineage, number - 1))
        if before is not None and view.previous != before.digest():
            findings.append(Finding("view", f"view {number} does not follow view {number - 1}", lineage))
        if before is None and number > min(other for name, other in known if name == lineage):
            findings.append(Finding("view", f"view {number} is known and view {number - 1} is not", lineage))
    return findings
