"""Seconds as people say them."""

from __future__ import annotations


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
