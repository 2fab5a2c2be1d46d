"""Seconds as people say them."""

from __future__ import annotations

import re
from typing import Final

LONG_SECONDS: Final = 600.0
TYPED: Final = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*([smhdw])", re.IGNORECASE)
DURATION_SECONDS_MAX: Final = 366 * 86400
UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def typed_seconds(text: str) -> float | None:
    """Of `90s`, `30m`, `2h`, `1d`, `1w`, or several as in `1h30m`; None for what is no duration."""
    parts = list(TYPED.finditer(text.strip()))
    if not parts or "".join(part.group() for part in parts) != text.strip():
        return None
    return sum(float(part.group(1)) * UNIT_SECONDS[part.group(2).lower()] for part in parts)


def duration(seconds: float) -> str:
    """Two units at most: `2 d 3 h`, `1 h 5 min`, `40 s`."""
    minutes, hours, days = (round(seconds / size) for size in (60, 3600, 86400))
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    if hours < 48:
        return f"{minutes // 60} h" + (f" {minutes % 60} min" if minutes % 60 else "")
    if days < 365:
        return f"{hours // 24} d" + (f" {hours % 24} h" if hours % 24 else "")
    return f"{days} d"


def figure(seconds: float) -> str:
    """As a measured time: three digits, `0.43 s` or `131 s`; long ones as `duration` says them."""
    return duration(seconds) if seconds >= LONG_SECONDS else f"{seconds:.3g} s"
