"""What one peer can check of another, and what it asks others for (rule 42)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.step.check import Check, Lot, checkable
from ftnode.protocol.step.sealed_tensors import Finding, SealedTensors
from ftnode.protocol.step.tensor_holds import RESEND, SEEN, Holds
from ftnode.protocol.words.effects import Recount, Send
from ftnode.protocol.words.messages import Boundary, Seal, SealedTensor, Show, WasGiven
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
SHOWN = "what was shown"


def given(visit: int, direction: Direction, path: tuple[Peer, ...] = PATH) -> Boundary:
    """A tensor of microbatch 0, with its maker's signature."""
    place = BEGIN.lineage, VIEW.number, BEGIN.step, BEGIN.attempt, 0, visit, direction
    return Boundary(*place, path, Seal(SHOWN, "signature"))


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
    assert check.wants(D, given(2, FORWARD)), "its maker has signed it, whoever passes it on"
    for handle, boundary in enumerate((given(1, BACKWARD), given(2, FORWARD)), start=2):
        assert check.show(boundary, handle) == [] and not check.wants(C, boundary)
    assert check.show(given(0, BACKWARD), 4) == [
        Recount(1, BEGIN.step, BEGIN.attempt, 0, 1, B, 1, 2, (), passed_on=3, handed_back=4)
    ]


@pytest.mark.parametrize(
    ("sender", "boundary"),
    [
        (C, given(3, FORWARD)),  # not asked for
        (C, given(2, FORWARD, (A, A, C, A))),  # another made it
        (C, given(2, FORWARD, (A, B, D, A))),  # another got it
        (C, given(1, BACKWARD, (A, A, C, A))),
        (B, given(0, BACKWARD, (C, B, C, A))),  # it is not for us
        (B, given(2, FORWARD)),  # whom we check shows nothing itself
        (B, given(2, FORWARD, (A, B))),  # its path ends before it comes to anybody
        (C, given(2, FORWARD, (A, B))),
        (C, replace(given(2, FORWARD), seal=None)),  # its maker has not signed it
    ],
)
def test_other_tensors_are_not_wanted(sender: Peer, boundary: Boundary) -> None:
    check = checking(None)
    check.ask()
    assert not check.wants(sender, boundary)


def found(check: Check) -> Send:
    """Something differs; what the checked one is asked."""
    check.ask()
    for handle, boundary in enumerate((given(1, BACKWARD), given(2, FORWARD)), start=2):
        check.show(boundary, handle)
    (task,) = check.show(given(0, BACKWARD), 4)
    assert isinstance(task, Recount)
    check.done(task, NOW)
    asked = check.question(Finding(task, 1.0, "it differs"), NOW)
    assert asked is not None
    return asked


def answer(maker: Peer, digest: str, visit: int = 1, direction: Direction = BACKWARD) -> WasGiven:
    other = SealedTensor(0, visit, direction, maker, Seal(digest, "signature"))
    return WasGiven(BEGIN.lineage, VIEW.number, BEGIN.step, BEGIN.attempt, (other,))


def test_whom_one_checks_is_asked_about_what_others_made_for_it_before_it_is_accused() -> None:
    check = checking(None)
    asked = found(check)
    assert asked.to == B and isinstance(asked.message, Show)
    assert asked.message.given == ((0, 1, BACKWARD, SHOWN),), "what we made, and what came out, is not asked about"
    assert not check.over and check.ask_again() == [asked]
    none = replace(answer(C, "x"), other=())
    assert check.answered(B, none) == () and check.answered(C, none) is None


def test_two_tensors_that_one_signed_for_one_place_contradict_each_other() -> None:
    check = checking(None)
    found(check)
    assert len(check.answered(B, answer(C, "another")) or ()) == 2
    for said in (answer(C, SHOWN), answer(D, "another"), answer(C, "another", 2), answer(C, "another", 1, FORWARD)):
        assert check.answered(B, said) == ()
    assert check.answered(B, replace(answer(C, "another"), step=0)) is None


def test_who_was_given_something_says_what_differs_to_who_may_see_it() -> None:
    sealed = SealedTensors()
    sealed.add(given(1, BACKWARD))
    named = (0, 1, BACKWARD, "another")
    assert [one.maker for one in sealed.other([named], lambda key: True)] == [C]
    assert sealed.other([named], lambda key: False) == ()
    assert sealed.other(sealed.named(), lambda key: True) == ()
    assert sealed.other([(0, 2, BACKWARD, "x"), (1, 1, BACKWARD, "x")], lambda key: True) == ()


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
