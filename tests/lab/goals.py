"""What a page of measurements was to reach, held against the figures beside it: what is missed is known by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeVar

Name = TypeVar("Name", str, tuple[str, str, str])


class Missed(NamedTuple):
    """A goal that is not reached: what was measured, which may not get worse, and why."""

    measured: float
    why: str


def worse(found: Iterable[tuple[Name, float, float]], known: Mapping[Name, Missed]) -> dict[Name, float]:
    """What is neither reached nor known, or worse than what is known. `found`: (what, the value, the goal), of values
    that are to be small."""
    return {
        what: value for what, value, goal in found if value > max(goal, known[what].measured if what in known else goal)
    }


def outlived(found: Iterable[tuple[Name, float, float]], known: Mapping[Name, Missed]) -> set[Name]:
    """Exceptions that are none any more: the goal is reached, or what was measured is better than what is written."""
    missed = {what: value for what, value, goal in found if value > goal}
    return {what for what, each in known.items() if missed.get(what) != each.measured}
