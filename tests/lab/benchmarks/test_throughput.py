"""The cores' time, divided among those who spend it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ftnode.lab.benchmarks.throughput_cores import CoreTime, read_core_time, shares


def test_the_parts_add_up_to_the_cores_time_per_step() -> None:
    before = CoreTime(time=10.0, idle=1.0, spent={"node": 2.0, "compute": 5.0})
    after = CoreTime(time=14.0, idle=1.5, spent={"node": 3.0, "compute": 10.0, "p2pd": 0.5})
    found = shares(before, after, cores=2, steps=2)
    assert found == {"compute": 2.5, "node": 0.5, "p2pd": 0.25, "idle": 0.25, "rest": 0.5}
    assert sum(found.values()) == pytest.approx(2 * 4.0 / 2)


def test_ticks_that_round_up_leave_no_negative_rest() -> None:
    before, after = CoreTime(0.0, 0.0, {"node": 0.0}), CoreTime(1.0, 0.01, {"node": 1.0})
    assert shares(before, after, cores=1, steps=1)["rest"] == 0.0


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="there is no /proc here")
def test_a_process_that_is_gone_is_left_out() -> None:
    found = read_core_time([os.getpid(), 2**31 - 1], [0])
    assert found.spent["node"] > 0
    assert found.idle >= 0
