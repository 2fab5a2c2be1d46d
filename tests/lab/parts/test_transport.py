"""The figures of the transport benchmark, from made-up times; the benchmark itself is run by hand."""

from __future__ import annotations

import pytest

from ftnode.lab.parts.transport import BUDGETS, SIZES, summary, table


def times(**seconds: list[float]) -> dict[tuple[str, int], list[float]]:
    return {(name, size): rounds for name, rounds in seconds.items() for size in SIZES}


def test_ratios_are_medians_of_rounds_not_ratios_of_medians() -> None:
    figures = summary(times(ours=[1, 2, 3], bare=[0.9, 1.8, 2.7], hivemind=[8, 4, 6], libp2p=[10, 10, 30]))
    ratios = {name: ratio[str(max(SIZES))] for name, ratio in figures["ratios"].items()}
    assert ratios == pytest.approx({"bare": 0.9, "hivemind": 2, "libp2p": 10})
    assert figures["passed"]
    assert table(figures).row_count == 4


@pytest.mark.parametrize("slow", BUDGETS)
def test_every_budget_counts(slow: str) -> None:
    rivals = {name: [budget * 1.01] for name, budget in BUDGETS.items()}
    assert summary(times(ours=[1.0], **rivals))["passed"]
    rivals[slow] = [BUDGETS[slow] * 0.99]
    assert not summary(times(ours=[1.0], **rivals))["passed"]


def test_speed_is_what_was_sent_over_the_time() -> None:
    figures = summary(times(ours=[0.5], bare=[1.0], hivemind=[1.0], libp2p=[1.0]))
    assert figures["paths"]["ours"][str(4 << 20)]["megabytes_per_second"] == pytest.approx((64 << 20) / 0.5 / 1e6)
    assert figures["paths"]["ours"][str(4 << 20)]["milliseconds"] == pytest.approx(500 / 16)
