"""How much of what holders do others do again in a new run."""

from __future__ import annotations

from dataclasses import replace

from ftnode.node.manifests.line_choice import Choice


def with_checks(choice: Choice, share: float) -> Choice:
    """`share`: of all visits, 0 for none. docs/reference/liars.md has what it finds, and what it costs."""
    trust = replace(choice.manifest.trust, checks=share)
    return replace(choice, manifest=replace(choice.manifest, trust=trust))
