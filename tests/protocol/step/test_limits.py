"""How far off an honest peer may be in a check, by the stages that were done again in a row (rule 42)."""

from __future__ import annotations

import pytest

from ftnode.protocol.manifest.parse import CHECK_TOLERANCE, TENSOR_TOLERANCE
from tests.protocol.situations import SETTINGS


@pytest.mark.parametrize(
    ("tolerance", "stages", "expected"),
    [(0.05, 1, 0.05), (0.05, 4, 0.1), (0.05, 100, 0.4), (0.15, 4, 0.3), (0.15, 9, 0.4), (0.5, 1, 0.5), (0.5, 9, 0.5)],
)
def test_it_grows_with_the_stages_in_a_row(tolerance: float, stages: int, expected: float) -> None:
    assert SETTINGS.limit(tolerance, stages) == pytest.approx(expected)


@pytest.mark.parametrize("tolerance", [*TENSOR_TOLERANCE.values(), CHECK_TOLERANCE["exact"], CHECK_TOLERANCE["int8"]])
def test_half_as_much_again_is_always_found(tolerance: float) -> None:
    assert SETTINGS.limit(tolerance, 1000) < 0.5
