"""Seconds as people say them."""

from __future__ import annotations

import pytest

from ftnode.node.home.duration import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"), (60, "60 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (7200, "2 h"), (7500, "2 h 5 min"),
        (86400, "24 h"), (259200, "3 d"), (270000, "3 d 3 h"), (864e5, "1000 d"),
    ],
)  # fmt: skip
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
