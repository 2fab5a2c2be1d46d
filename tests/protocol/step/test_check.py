"""What one peer can check of another, and what it asks others for (rule 42)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.step.check import Check, Lot, checkable
from ftnode.protocol.step.outbox import key_of
from ftnode.protocol.step.tensor_holds import RESEND, SEEN, Holds
from ftnode.protocol.words.effects import Recount, Send
from ftnode.protocol.words.messages import Boundary, Show
from ftnode.protocol.words.types import Attempt, Direction, Handle, Peer
from ftnode.protocol.words.view import View
from tests.protocol.beginnings import begun
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, view_of

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD

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


VIEW = view("a ab c")
"""A makes what goes into B's visits, and gets what B hands back; C the same at the other end."""
BEGIN = begun(view=VIEW.number, attempt=Attempt(VIEW.number, 8))
PATH = (A, B, C, A)


def given(visit: int, direction: Direction, path: tuple[Peer, ...] = PATH) -> Boundary:
    """A tensor of microbatch 0."""
    return Boundary(BEGIN.lineage, VIEW.number, BEGIN.step, BEGIN.attempt, 0, visit, direction, path)


def checking(handed_back: Handle | None) -> Check:
    """A checks B, which did one visit; A has what went into it, and perhaps what was handed back."""
    holds, settings = Holds(), replace(SETTINGS, stages=2, checks=1.0)
    holds.hold(RESEND, (0, 1, FORWARD), 1)
    if handed_back is not None:
        holds.hold(SEEN, (0, 0, BACKWARD), handed_back)
    check = Check(A, Lot(B, 1.0, 0), VIEW, BEGIN, settings, holds)
    check.told(1, [(0, 1)], NOW)
    return check


def test_neighbours_are_asked_for_what_is_not_here_and_on_its_way() -> None:
    check = checking(None)
    asked = check.ask()
    assert asked is not None
    effects, tasks = asked
    assert tasks == [] and all(isinstance(effect, Send) and effect.to == C for effect in effects)
    shows = [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, Show)]
    assert [(show.tensors, show.taken) for show in shows] == [(((0, 1, BACKWARD),), ()), ((), ((0, 2, FORWARD),))]
    assert check.wants(C, given(1, BACKWARD)) and check.wants(C, given(2, FORWARD)) and not check.over
    assert check.wants(B, given(0, BACKWARD)), "it is for us"
    for handle, boundary in enumerate((given(1, BACKWARD), given(2, FORWARD)), start=2):
        assert check.show(key_of(boundary), handle) == [] and not check.wants(C, boundary)
    assert check.show((0, 0, BACKWARD), 4) == [
        Recount(1, BEGIN.step, BEGIN.attempt, 0, 1, B, 1, 2, (), passed_on=3, handed_back=4)
    ]


@pytest.mark.parametrize(
    ("sender", "boundary"),
    [
        (D, given(2, FORWARD)),  # it has nothing to do with it
        (C, given(3, FORWARD)),  # not asked for
        (C, given(2, FORWARD, (A, A, C, A))),  # another made it
        (C, given(2, FORWARD, (A, B, D, A))),  # another got it
        (C, given(1, BACKWARD, (A, A, C, A))),
        (B, given(0, BACKWARD, (C, B, C, A))),  # it is not for us
        (B, given(2, FORWARD)),  # whom we check shows nothing itself
    ],
)
def test_other_tensors_are_not_wanted(sender: Peer, boundary: Boundary) -> None:
    check = checking(None)
    check.ask()
    assert not check.wants(sender, boundary)


def test_what_is_here_is_not_waited_for() -> None:
    check = checking(5)
    check.ask()
    assert not check.wants(B, given(0, BACKWARD))


def test_a_share_of_the_visits_is_done_again_and_no_sum_is_looked_at() -> None:
    holds, settings = Holds(), replace(SETTINGS, stages=2, checks=0.5)
    visits = [(microbatch, 1) for microbatch in range(SETTINGS.microbatches)]
    drawn = []
    for key in range(200):
        check = Check(A, Lot(B, 0.25, key), VIEW, BEGIN, settings, holds)
        assert check.weighs is None and not check.over
        check.told(1, visits, NOW)
        drawn.append(len(check._blocks))
        assert check.over is (drawn[-1] == 0) and check.to_weigh([1]) == []
    assert abs(sum(drawn) / (200 * len(visits)) - 0.25) < 0.05
