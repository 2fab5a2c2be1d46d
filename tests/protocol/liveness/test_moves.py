"""Who gets something done, and whose word for it counts (rule 38)."""

from __future__ import annotations

from ftnode.protocol.liveness.moves import IN_VAIN_MAX, Moves
from tests.protocol.situations import A, B, C

MEMBERS = (A, B, C)
"""A leads."""


def moves(most: int = 100) -> Moves:
    role = Moves(most)
    role.on_view(MEMBERS, A, 1.0)
    for peer in MEMBERS:
        role.told(peer, 10, 2.0)
    return role


def test_a_count_that_rises_is_a_move_and_the_first_word_is_none() -> None:
    role = moves()
    assert role.last() == 1.0
    role.told(B, 11, 5.0)
    role.told(C, 10, 6.0)
    role.told(B, 3, 7.0)
    role.told(B, 11, 8.0)
    assert role.last() == 5.0 and role.last(but=B) == 1.0


def test_nobody_can_say_for_ever_that_it_moves() -> None:
    role = moves(most=3)
    for count in range(11, 20):
        role.told(B, count, float(count))
    assert role.last() == 13.0
    role.begin(A, 30.0)
    role.told(B, 20, 31.0)
    assert role.last() == 31.0, "another attempt"


def test_views_in_which_nobody_moves_count_a_few_times() -> None:
    role = moves()
    role.told(B, 11, 3.0)
    for number in range(20):
        role.on_view(MEMBERS, A, 10.0 + number)
        role.told(A, 11 + number, 10.5 + number)
    counted = 10.0 + IN_VAIN_MAX
    assert role.last_under(A) == counted and role.last(but=B) > counted, "what the leader does by itself"
    role.told(C, 11, 50.0)
    role.begin(A, 60.0)
    assert role.last_under(A) == 60.0


def test_who_is_no_member_is_forgotten() -> None:
    role = moves()
    role.on_view((A, B), A, 5.0)
    role.told(C, 11, 6.0)
    assert role.last() == 5.0
