"""What a hostile peer makes up has a bound, so that its host can say it again and again."""

from __future__ import annotations

from random import Random

import pytest

from ftnode.lab.hostile.vocabulary import LONG_MAX, Vocabulary, extent
from ftnode.protocol.words import messages as ms
from ftnode.protocol.words.types import Peer


def test_lists_of_long_lists_are_bounded_as_a_whole() -> None:
    largest = 0
    for seed in range(20):
        words = Vocabulary(Random(seed), stages=4)
        words.extremes = 1.0
        for kind in ms.MESSAGES.values():
            message = words.message(kind)
            words.hear(message)
            largest = max(largest, extent(message))
    assert LONG_MAX / 2 < largest < 8 * LONG_MAX


@pytest.mark.parametrize(
    ("value", "about"), [(7, 1), ("", 1), ("four", 4), ((), 1), (((1, 2), "abc"), 5), (ms.Ballot(7, Peer("abc", 2)), 5)]
)
def test_the_extent_of_a_value_is_its_numbers_and_characters(value: object, about: int) -> None:
    assert extent(value) == about
