"""What an attack came to: three rates, and what became of honest peers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

HELD, DEGRADED, BROKEN = "held", "degraded", "broken"
HELD_SHARE: Final = 0.9
"""Of the rate before: what a swarm that holds keeps during the attack, and has again after it."""
RECOVERED_SHARE: Final = 0.5
"""A swarm with less than this after the attack has not recovered."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Steps a second that the swarm committed by itself; skipped steps do not count."""

    before: float
    during: float
    after: float
    removed: tuple[str, ...] = ()
    """Honest members that are in no place any more."""
    ended: tuple[str, ...] = ()
    """Honest processes that ended."""
    harm: str = ""
    """What the attack reached besides, in words; empty: nothing."""
    seen: str = ""
    """What else was seen, in words."""

    def also(self, *, harm: str = "", seen: str = "") -> Measured:
        """With this besides what is known already."""
        return replace(self, harm=_joined(self.harm, harm), seen=_joined(self.seen, seen))


def outcome_of(found: Measured) -> str:
    """`held`, `degraded` or `broken`."""
    if found.ended or not found.during or found.after < RECOVERED_SHARE * found.before:
        return BROKEN
    slow = min(found.during, found.after) < HELD_SHARE * found.before
    return DEGRADED if slow or found.removed or found.harm else HELD


def finding(found: Measured) -> str:
    """All that is known besides the rates, in one line."""
    lost = [f"{', '.join(found.removed)} removed"] if found.removed else []
    lost += [f"{', '.join(found.ended)} ended"] if found.ended else []
    return _joined(*lost, found.harm, found.seen)


def _joined(*texts: str) -> str:
    return "; ".join(filter(None, texts))
