"""The bench of limits on real p2pds, shortly; and its table."""

from __future__ import annotations

import pytest
import trio

from ftnode.lab.benchmarks import limits


@pytest.mark.alone
def test_a_limit_is_not_exceeded_on_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upwards nothing runs ahead. On a busy machine less may pass than could."""
    monkeypatch.setattr(limits, "SETTLE_SECONDS", 1.0)
    found = trio.run(limits.bandwidth, 4e6 / 8, 0.0, 4.0)
    assert 0.5 < found["ratios"]["up"] <= 1.1
    assert found["echo_median"] < 1.0


@pytest.mark.alone
def test_without_a_limit_the_line_carries_more() -> None:
    """So that the test above can fail: the proxy and the streams are not what slows it."""
    found = trio.run(limits.bandwidth, 400e6 / 8, 0.0, 1.0)
    assert found["ratios"]["up"] * 400 > 40


def test_the_table_names_each_limit_once() -> None:
    line = {"limits": {"up": 2.5e6, "down": 0.0}, "ratios": {"up": 0.98}, "ahead": {"up": 1e5},
            "echo_median": 0.001, "echo_worst": 0.05}  # fmt: skip
    training = {"cores": 1.02, "by_process": {"node": 0.05, "compute": 0.97}, "threads": {"node": 3, "compute": 2},
                "compute_bytes": 600 << 20}  # fmt: skip
    text = limits.table({"lines": [line], "training": training})
    assert "up 20 Mbit/s" in text and "0.980x" in text and "1.02 cores" in text and "600 MiB" in text
