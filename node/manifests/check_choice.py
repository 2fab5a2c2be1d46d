"""How much of what holders do others do again in a new run, and why."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ftnode.node.manifests.line_choice import Choice
from ftnode.protocol.manifest.parse import Manifest

CHECKS: Final = 0.02
"""Of all visits. docs/reference/liars.md has what it finds, and what it costs."""


def with_checks(choice: Choice, share: float | None) -> Choice:
    """`share`: of all visits, 0 for none; None where nobody said."""
    if share is None:
        return choice.because("who lies is found; 0 believes everybody, in a run among friends", "trust", checks=CHECKS)
    trust = replace(choice.manifest.trust, checks=share)
    return replace(choice, manifest=replace(choice.manifest, trust=trust))


def checks_text(manifest: Manifest) -> str:
    """In one line: what is done again, and what follows from it."""
    share = manifest.trust.checks
    if share:
        found = f"{100 * share:g}"
        again = f"others do {found} % of the visits again, by lot, so that who lies is found"
        return f"checks {share:g}: {again}; --checks 0 in a run among friends"
    return f"checks 0: nobody does work again, and everybody is believed; --checks {CHECKS:g} where strangers may join"
