"""Bytes as people say them."""

from __future__ import annotations

from typing import Final

UNITS: Final = ("bytes", "kB", "MB", "GB", "TB")


def size_text(size: float) -> str:
    """In the unit in which it has one to three digits before the point: `12 bytes`, `3.4 MB`, `1.0 GB`."""
    number, unit = float(size), 0
    while number >= 999.95 and unit + 1 < len(UNITS):
        number, unit = number / 1000, unit + 1
    return f"{number:.0f} {UNITS[0]}" if unit == 0 else f"{number:,.1f} {UNITS[unit]}"
