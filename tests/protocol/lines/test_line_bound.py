"""The least that a step takes over lines."""

from __future__ import annotations

import pytest

from ftnode.protocol.lines.line_bound import Work, bound
from ftnode.protocol.manifest.boundary import BoundaryBytes

LINE = (2.5e6, 12.5e6)
HOLDERS = ("head", "one", "two", "three", "four")
IDLE = ((0.0, 0.0),) * 5


def step(**changes: object) -> Work:
    values = {
        "microbatches": 16, "tensors": BoundaryBytes(2_500_000, 2_500_000), "rates": LINE, "delay_seconds": 0.0,
        "paces": IDLE,
    }  # fmt: skip
    return Work(**{**values, **changes})  # type: ignore[arg-type]


def test_the_last_stage_waits_for_four_tensors_and_three_follow_its_last() -> None:
    least = bound(HOLDERS, step())
    assert (least.limiting, least.way) == ("four", "up")
    assert (least.busy, least.fill) == (pytest.approx(32.0), pytest.approx(7.0))


def test_a_hop_takes_its_delay_and_its_holders_compute_too() -> None:
    least = bound(HOLDERS, step(delay_seconds=0.1, paces=((0.0, 0.0), *[(0.01, 0.02)] * 4)))
    assert least.fill == pytest.approx(7 * 1.1 + 3 * 0.01 + 3 * 0.02)


def test_the_head_computes_the_loss_before_anything_goes_back() -> None:
    """The last stage's own tensors lie around that, so that only those before and after it see the head's time."""
    slow_head = step(paces=((0.3, 0.6), *IDLE[1:]))
    assert bound(HOLDERS, slow_head).fill == pytest.approx(7.0)
    assert bound(("head", "one", "one"), step(paces=((0.3, 0.6), *IDLE[1:3]))).busy == pytest.approx(32.0)


def test_between_two_stages_of_one_peer_nothing_is_sent() -> None:
    least = bound(("head", "one", "one"), step(paces=IDLE[:3]))
    assert (least.busy, least.fill) == (pytest.approx(32.0), pytest.approx(1.0))


def test_a_line_that_is_thin_downwards_limits_as_well() -> None:
    least = bound(HOLDERS, step(rates=(12.5e6, 2.5e6)))
    assert (least.way, least.busy) == ("down", pytest.approx(32.0))


def test_each_direction_counts_with_its_own_bytes() -> None:
    """Four hops forward of half a second before the last stage sends, three back of a fifth after it."""
    least = bound(HOLDERS, step(tensors=BoundaryBytes(1_250_000, 500_000)))
    assert (least.busy, least.fill) == (pytest.approx(16 * 0.7), pytest.approx(4 * 0.5 + 3 * 0.2))


def test_a_device_that_is_slower_than_its_line_limits() -> None:
    paces = ((0.0, 0.0), (1.0, 2.0), *IDLE[2:])
    least = bound(HOLDERS, step(paces=paces))
    assert (least.limiting, least.way, least.busy) == ("one", "compute", pytest.approx(48.0))
