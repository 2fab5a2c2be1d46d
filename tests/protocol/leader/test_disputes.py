"""Of members at odds one goes, and those that stay are remembered (rules 25, 38)."""

from __future__ import annotations

import pytest

from ftnode.protocol.leader.disputes import EXPOSED_MAX, SPOILER_LEASES, Disputes, Suspects, most_at_odds
from ftnode.protocol.words.types import Peer
from tests.protocol.situations import A, B, C, D, view_of

VIEW = view_of((A,), (B, C), (D,), voters=(A, C, B))
"""A leads; B came after C, and D is new."""


def suspects(*among: Peer, first: tuple[Peer, ...] = ()) -> Suspects:
    return Suspects(frozenset(among), frozenset(first))


@pytest.mark.parametrize(
    ("among", "marked", "gone"),
    [
        (suspects(B, C), set(), B),
        (suspects(B, C, D), set(), D),
        (suspects(B, C, first=(C,)), set(), C),
        (suspects(B, C, first=(C,)), {B}, B),
        (suspects(B, C, first=(C,)), {B, C}, C),
        (suspects(A, B, first=(A,)), set(), B),
        (suspects(A, B, first=(B,)), {A}, A),
        (suspects(A), set(), A),
    ],
    ids=[
        "who came last", "who does not vote yet", "who is named first", "who was at odds before", "both were",
        "not the leader", "but a marked one", "nobody else",
    ],
)  # fmt: skip
def test_who_goes(among: Suspects, marked: set[Peer], gone: Peer) -> None:
    assert Disputes(marked).choose(VIEW, among) == gone


def test_who_stays_is_marked_until_it_goes_for_it() -> None:
    disputes, pair = Disputes(), suspects(B, C)
    disputes.settle(VIEW, B, pair)
    assert disputes.marked == {C}
    disputes.settle(VIEW, C, suspects(C, D))
    assert disputes.marked == set(), "D was right, and is not marked"
    disputes.settle(VIEW, B, suspects(B, Peer("gone", 1)))
    assert disputes.marked == set(), "nobody outside the view is remembered"


def test_who_spoilt_steps_is_out_for_twice_as_long_each_time() -> None:
    disputes, until = Disputes(), list[float]()
    assert disputes.barred_until(B) < 0
    for _ in range(3):
        disputes.spoils(B, 100.0, 10.0)
        until.append(disputes.barred_until(B) - 100.0)
    assert until == [10.0 * SPOILER_LEASES * times for times in (1, 2, 4)]
    disputes.expose(B, C, 100.0, 10.0)
    assert disputes.barred_until(B) > 100.0 + until[-1], "what is longer counts"
    for number in range(2 * EXPOSED_MAX):
        disputes.spoils(Peer(f"p{number}", 1), 100.0, 10.0)
    assert len(disputes.spoilers) == EXPOSED_MAX


@pytest.mark.parametrize(
    ("complaints", "expected"),
    [
        ([], suspects()),
        ([(B, C)], suspects(B, C, first=(C,))),
        ([(B, C), (C, B)], suspects(B, C)),
        ([(B, C), (D, C), (C, B)], suspects(C)),
        ([(B, C), (B, D), (B, C)], suspects(B)),
    ],
    ids=["nobody complains", "one", "each of the other", "two of one", "one of two"],
)
def test_who_is_at_odds_with_most(complaints: list[tuple[Peer, Peer]], expected: Suspects) -> None:
    found = most_at_odds(complaints)
    assert (found.among, found.first & found.among) == (expected.among, expected.first)
