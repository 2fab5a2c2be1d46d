"""Which stages of one peer another one can check: what passes between two stages of one peer only that one knows."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.step.check import checkable
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.protocol.situations import SETTINGS, A, B, C, D, view_of

NAMES = {"a": A, "b": B, "c": C, "d": D, "e": Peer("e", 1)}


def view(groups: str) -> View:
    """Like "a b ab c": who holds the head, stage 1, and so on."""
    return view_of(*(tuple(NAMES[name] for name in group) for group in groups.split()))


@pytest.mark.parametrize(
    ("groups", "of_b", "of_a"),
    [
        ("c ab d e", (1,), (1,)),
        ("c ab ab d", (1, 2), (1, 2)),
        ("c ab b d", (), (1,)),  # b alone knows what passed between its stages 1 and 2
        ("c ab d b", (1,), (1,)),  # with another stage between them nothing does
        ("ab c d e", (0,), (0,)),
        ("ab b c d", (), (0,)),
        ("ab c d b", (), (0,)),  # the head comes after the last stage as well
        ("c a b d", (), ()),
        ("ab ab ab ab", (0, 1, 2, 3), (0, 1, 2, 3)),
        ("c ab ab b", (), (1, 2)),
        ("c ab d e ab b", (1,), (1, 4)),
    ],
)
def test_what_both_hold_but_for_what_has_a_neighbour_that_only_the_other_holds(
    groups: str, of_b: tuple[int, ...], of_a: tuple[int, ...]
) -> None:
    settings = replace(SETTINGS, stages=len(groups.split()) - 1)
    assert checkable(view(groups), A, B, settings) == of_b
    assert checkable(view(groups), B, A, settings) == of_a


def test_on_swapped_routes_more_stages_are_neighbours() -> None:
    groups = "c ab d b e c d"
    assert checkable(view(groups), A, B, replace(SETTINGS, stages=6)) == (1,)
    assert checkable(view(groups), A, B, replace(SETTINGS, stages=6, swap=True)) == ()
