"""The kinds of lies in the virtual world, which is part of the tests: this needs a clone of the repository."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from ftnode.lab.parts.world import of_the_clone
from ftnode.lab.results.result_files import Kept

PORTION: Final = 20
"""Worlds that are kept together: as many are lost when the command is stopped."""


def measure(kind: str, worlds: int, kept: Kept) -> dict[str, Any]:
    """As tests/sim/liars.py says. Raises UserError (69) outside a clone."""
    liars = of_the_clone("liars")
    seen = list[dict[str, Any]]()
    for first in range(1, worlds + 1, PORTION):
        seeds = range(first, min(first + PORTION, worlds + 1))
        seen += kept("world", (kind, seeds), partial(_portion, liars, kind, seeds))["seen"]
    found: dict[str, Any] = liars.summed(seen)
    return found


def _portion(liars: Any, kind: str, seeds: range) -> dict[str, Any]:
    return {"seen": liars.seen_in(kind, seeds)}
