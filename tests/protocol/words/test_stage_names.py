"""How stages are named for people."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ftnode.protocol.words.types import names_of


@pytest.mark.parametrize(
    ("stages", "text"),
    [
        ((), ""),
        ((0,), "the head"),
        ((2, 0), "the head and stage 2"),
        ((0, 1, 2), "the head, stage 1 and stage 2"),
        ((0, 1, 2, 3), "the head and stages 1 to 3"),
        ((7, 2, 3, 4), "stages 2 to 4 and stage 7"),
        (range(81), "the head and stages 1 to 80"),
    ],
)
def test_three_and_more_in_a_row_are_said_in_short(stages: Iterable[int], text: str) -> None:
    assert names_of(stages) == text
