"""A swarm behind the lines of homes: tensors come once, word of them is prompt, and nothing is left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ftnode.lab.lines.lines import Asked, measure
from ftnode.protocol.words.errors import UserError

ASKED = Asked(3, (20e6 / 8, 100e6 / 8), 0.03, (0.02, 0.04), 1.0, "tiny", 20, 6)
"""Tensors of half a megabyte: 0.2 s each, 3.6 s a step at best."""
WORD_SECONDS_MAX = 1.0
"""A heartbeat of a lease of 5 s is due every 2.5; over buffers that nobody bounds word took 3 s."""


@pytest.mark.timeout(180)
def test_a_step_over_thin_lines(tmp_path: Path) -> None:
    before, began = set(os.listdir("/sys/class/net")), time.monotonic()
    try:
        figures = measure(ASKED, tmp_path)
    except UserError as error:
        if error.exit_code != 69:
            raise
        pytest.skip(f"needs namespaces: {error}")
    assert figures["twice"] == 0
    assert figures["word_seconds"] < WORD_SECONDS_MAX
    assert 1 < figures["ratio"] < 2
    assert 0.5 < figures["limiting_share"] <= 1.01
    assert set(os.listdir("/sys/class/net")) == before
    assert time.monotonic() - began < 150
