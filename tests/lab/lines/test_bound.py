"""The least that a step takes over lines."""

from __future__ import annotations

import pytest

from ftnode.lab.lines.bound import Step, bound

LINE = (2.5e6, 12.5e6)
HOLDERS = ("head", "one", "two", "three", "four")


def step(**changes: object) -> Step:
    values = {
        "microbatches": 16,
        "tensor_bytes": (2_500_000,) * 2,
        "rates": LINE,
        "delay_seconds": 0.0,
        "pace": (0.0, 0.0),
    }
    return Step(**{**values, **changes})  # type: ignore[arg-type]


def test_the_last_stage_waits_for_four_tensors_and_three_follow_its_last() -> None:
    least = bound(HOLDERS, step())
    assert (least.limiting, least.tensors, least.fill) == ("four", pytest.approx(32.0), pytest.approx(7.0))


def test_a_hop_takes_its_delay_and_its_holders_compute_too() -> None:
    least = bound(HOLDERS, step(delay_seconds=0.1, pace=(0.01, 0.02)))
    assert least.fill == pytest.approx(7 * 1.1 + 3 * 0.01 + 3 * 0.02)


def test_between_two_stages_of_one_peer_nothing_is_sent() -> None:
    least = bound(("head", "one", "one"), step())
    assert (least.tensors, least.fill) == (pytest.approx(32.0), pytest.approx(1.0))


def test_gradients_of_fewer_bytes_take_less_time() -> None:
    """The last stage sends one tensor each way, and waits for four of those that go forward."""
    least = bound(HOLDERS, step(tensor_bytes=(2_500_000, 500_000)))
    assert (least.tensors, least.fill) == (pytest.approx(16 * 1.2), pytest.approx(4 * 1.0 + 3 * 0.2))


def test_a_line_that_is_thin_downwards_limits_as_well() -> None:
    assert bound(HOLDERS, step(rates=(12.5e6, 2.5e6))).tensors == pytest.approx(32.0)
