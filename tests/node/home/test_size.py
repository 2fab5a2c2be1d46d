"""Bytes as people say them."""

from __future__ import annotations

import pytest

from ftnode.node.home.size import size_text


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (3_440_000, "3.4 MB"), (999_960_000, "1.0 GB"),
     (5e15, "5,000.0 TB")],
)  # fmt: skip
def test_sizes(size: float, text: str) -> None:
    assert size_text(size) == text
