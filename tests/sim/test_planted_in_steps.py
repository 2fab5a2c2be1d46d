"""Bugs that few seeds meet: deaths at many events of a step must show them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.sim.planted import forks_go_on, kept_tensors_stay, sums_of_an_earlier_view
from tests.sim.test_every_moment import QUIET, traces

pytestmark = pytest.mark.timeout(600)


def three(every: int) -> dict[str, str]:
    """Two survivors of a group, of whom one has the sum and the other waits for it."""
    return traces("first of 1", every, replace(QUIET, replicas=3), seed=6, sum_seconds=0.3)


WHERE: dict[str, tuple[Callable[[], Any], Callable[[], dict[str, str]]]] = {
    "sums of an earlier view": (sums_of_an_earlier_view, lambda: three(4)),
    "kept tensors stay": (kept_tensors_stay, lambda: traces("leader", 12)),
    "forks go on": (forks_go_on, lambda: traces("several", 24)),
}
"""Name → the bug, and the deaths that show it."""


@pytest.mark.parametrize("name", WHERE)
def test_a_planted_bug_is_found(name: str) -> None:
    plant, deaths = WHERE[name]
    with plant():
        assert deaths()


def test_three_holders_and_slow_sums_leave_no_trace_either() -> None:
    assert three(8) == {}
