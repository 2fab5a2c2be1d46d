"""Tokens come back with the time, may be owed, and are never more than may be used at once."""

from __future__ import annotations

from math import inf

import pytest

from ftnode.node.links.tokens import Tokens


def test_they_come_back_with_the_time_up_to_what_may_be_used_at_once() -> None:
    tokens = Tokens(2.0, 5, 100.0)
    assert tokens.left(100.0) == 5
    tokens.take()
    tokens.take(3.5)
    assert tokens.left(100.0) == 0.5
    assert tokens.left(101.0) == 2.5
    assert tokens.left(1000.0) == 5


def test_more_than_there_are_is_a_debt() -> None:
    tokens = Tokens(2.0, 5, 0.0)
    assert tokens.debt_seconds == 0.0
    tokens.take(11)
    assert tokens.left(0.0) == -6 and tokens.debt_seconds == 3.0
    assert tokens.left(1.0) == -4 and tokens.debt_seconds == 2.0


def test_what_is_given_back_is_not_more_than_may_be_used_at_once() -> None:
    tokens = Tokens(1.0, 5, 0.0)
    tokens.take(2)
    tokens.give_back()
    assert tokens.left(0.0) == 4
    tokens.give_back(9)
    assert tokens.left(0.0) == 5


def test_a_clock_that_goes_back_brings_nothing_twice() -> None:
    tokens = Tokens(1.0, 5, 10.0)
    tokens.take(5)
    assert [tokens.left(now) for now in (11.0, 9.0, 11.0, 12.0)] == [1, 1, 1, 2]


@pytest.mark.parametrize("now", [0.0, 7.0])
def test_there_may_be_no_end_of_them(now: float) -> None:
    tokens = Tokens(inf, inf, 0.0)
    tokens.take(10**9)
    assert tokens.left(now) == inf and tokens.debt_seconds == 0.0
