"""How much of what holders do others do again in a new run, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ftnode.node.manifests.line_choice import Choice

CHECKS: Final = 0.02
"""Of all visits. docs/reference/liars.md has what it finds, and what it costs."""


def with_checks(choice: Choice, share: float | None) -> Choice:
    """`share`: of all visits, 0 for none; None where nobody said."""
    if share is None:
        return choice.because("who lies is found; 0 believes everybody, in a run among friends", "trust", checks=CHECKS)
    trust = replace(choice.manifest.trust, checks=share)
    return replace(choice, manifest=replace(choice.manifest, trust=trust))
