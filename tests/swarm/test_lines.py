"""A swarm behind the lines of homes: tensors come once, word of them is prompt, and nothing is left behind."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ftnode.lab.lines.lines import REPLICA, Asked, measure
from tests.namespaces import skipped_without_namespaces

ASKED = Asked(3, (20e6 / 8, 100e6 / 8), 0.03, (0.02, 0.04), 1.0, "tiny", 20, 6)
"""Tensors of half a megabyte: 0.2 s each, 3.6 s a step at best."""
RATIO_MAX = 3.0
"""1.5 to 1.7 on two cores, and 2.4 was seen on a slower machine. `ftnode lab lines` is what measures it."""
WORD_SECONDS_MAX = 1.0
"""A heartbeat of a lease of 5 s is due every 2.5; over buffers that nobody bounds word took 3 s."""


JOINING = replace(ASKED, sequences=10, microbatches=12, replica=(4e6 / 8, 20e6 / 8))
"""One more volunteer comes while all lines are full, and its own is a fifth of theirs."""


def measured(asked: Asked, folder: Path) -> dict[str, Any]:
    """Skips where no namespaces can be made. Nothing is left behind."""
    before = set(os.listdir("/sys/class/net"))
    with skipped_without_namespaces():
        figures = measure(asked, folder)
    assert set(os.listdir("/sys/class/net")) == before
    return figures


@pytest.mark.timeout(180)
def test_a_step_over_thin_lines(tmp_path: Path) -> None:
    began = time.monotonic()
    figures = measured(ASKED, tmp_path)
    assert figures["twice"] == 0
    assert figures["word_seconds"] < WORD_SECONDS_MAX
    assert 1 < figures["ratio"] < RATIO_MAX, figures
    assert 0.5 < figures["limiting_share"] <= 1.01
    assert time.monotonic() - began < 150


@pytest.mark.timeout(240)
def test_a_newcomer_finds_a_swarm_whose_lines_are_full_and_gets_what_its_own_can_carry(tmp_path: Path) -> None:
    """Equal shares would be six and six, and a step twice as long."""
    figures = measured(JOINING, tmp_path)
    newcomer = next(one for one in figures["volunteers"] if one["name"] == REPLICA)
    (stage,) = newcomer["stages"]
    other = next(one for one in figures["volunteers"] if one["name"] != REPLICA and stage in one["stages"])
    assert 0.5 <= newcomer["microbatches"] <= 3.5
    assert newcomer["microbatches"] + other["microbatches"] == pytest.approx(12, abs=0.5)
    assert figures["ratio"] < RATIO_MAX, figures
    assert figures["twice"] == 0
