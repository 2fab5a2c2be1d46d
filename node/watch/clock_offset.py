"""How far our clock is from those of peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

SECONDS_GOOD: Final = 3.0
"""Further off, a clock is not set by the network."""
FIX: Final = "let it be set by the network: timedatectl set-ntp true"


@dataclass(frozen=True, slots=True, order=True)
class ClockOffset:
    """`ahead`: seconds that a peer's clock is ahead of ours. `doubt`: half of the time that its answer took."""

    ahead: float
    doubt: float = 0.0

    @property
    def off(self) -> float:
        """Seconds that the two differ at least."""
        return max(0.0, abs(self.ahead) - self.doubt)

    def __str__(self) -> str:
        """Of our clock."""
        return f"{abs(self.ahead):.1f} s {'behind' if self.ahead > 0 else 'ahead of'} the peers' (±{self.doubt:.1f} s)"


def median(told: Sequence[ClockOffset]) -> ClockOffset | None:
    """What the majority says, of two in the middle the one nearer to our clock; None when nobody tells the time."""
    ordered = sorted(told)
    return min(ordered[(len(told) - 1) // 2 : len(told) // 2 + 1], key=lambda one: one.off, default=None)
