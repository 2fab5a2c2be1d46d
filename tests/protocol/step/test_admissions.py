"""By which paths microbatches go: which ones are taken, and what is a proof that one peer has signed two."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.step.admissions import DOUBLES_MAX, SHOWN_TIMES, Admissions, path_word
from ftnode.protocol.step.attempt import StepWork
from ftnode.protocol.words.effects import Release, Send
from ftnode.protocol.words.messages import (
    Boundary,
    Convicted,
    Seal,
    SealedTensor,
    Share,
    WasGiven,
    path_digest,
    tensor_bytes,
)
from ftnode.protocol.words.types import Attempt, Direction, Peer
from tests.protocol.beginnings import begun
from tests.protocol.situations import SETTINGS, A, B, C, D, view_of
from tests.protocol.step.test_attempt import working

SIGNING = replace(SETTINGS, checks=1.0)
E = Peer("e", 1)
VIEW = view_of((A, E), (B, C), (D,))
ATTEMPT = Attempt(3, 8)
SHARES = (A, (0, 1, 2)), (E, (3,))
PLACE = "lineage", 3, 8, ATTEMPT
PATH, OTHER, REPAIRED = (A, B, D, A), (A, C, D, A), (E, B, D, E)


def word(path: tuple[Peer, ...], signature: str = "signed") -> Seal:
    return Seal(path_digest(path), signature)


def tensor(path: tuple[Peer, ...] = PATH, microbatch: int = 0, **changes: Any) -> Boundary:
    """For the stage after the head, with the word for its path."""
    made = Boundary(*PLACE, microbatch, 1, Direction.FORWARD, path, Seal("digest", "signed"), word(path))
    return replace(made, **changes)


def admissions(me: Peer = B, checks: bool = True, **changes: Any) -> Admissions:
    return Admissions(me, VIEW, begun(shares=SHARES, **changes), SIGNING if checks else SETTINGS)


def signed(path: tuple[Peer, ...], microbatch: int = 0) -> SealedTensor:
    return SealedTensor(microbatch, 0, Direction.FORWARD, path[0], word(path))


def at_work(me: Peer = B, **changes: Any) -> StepWork:
    return working(me, VIEW, SIGNING, shares=SHARES, **changes)


@pytest.mark.parametrize(
    ("boundary", "signing", "plain"),
    [
        (tensor(), True, True),
        (tensor(admitted=None), False, True),
        (tensor(admitted=word(OTHER)), False, True),  # for another path
        (tensor((E, B, D, E)), False, False),  # the Begin gives it to another one
        (tensor((E, B, D, E), 3), True, True),
        (tensor(microbatch=SETTINGS.microbatches), True, True),  # of a validation the first of the head
        (tensor((E, B, D, E), SETTINGS.microbatches), False, False),
    ],
)
def test_a_path_begins_with_who_admits_by_the_begin_and_has_its_word(
    boundary: Boundary, signing: bool, plain: bool
) -> None:
    assert admissions().allows(boundary) is signing and admissions(checks=False).allows(boundary) is plain


def test_a_repaired_path_needs_no_word_and_no_other_one_counts() -> None:
    ours = admissions(paths=((0, REPAIRED),))
    assert ours.allows(tensor(REPAIRED, admitted=None)) and not ours.allows(tensor())
    ours.admit(0, PATH)
    assert ours.word_of(0) is None and ours.allows(tensor(microbatch=1))
    later = admissions()
    later.continue_in(VIEW, begun(shares=SHARES, paths=((0, REPAIRED),)))
    assert later.allows(tensor(REPAIRED, admitted=None)) and not later.allows(tensor())


def test_the_word_of_who_admits_goes_along_and_the_first_one_counts() -> None:
    ours, theirs = admissions(A), admissions()
    ours.admit(0, PATH)
    assert ours.word_of(0) == word(PATH, "") and theirs.word_of(0) is None
    theirs.came(tensor())
    theirs.came(tensor(OTHER))
    assert theirs.word_of(0) == word(PATH) and admissions(checks=False).word_of(0) is None
    plain = admissions(A, checks=False)
    plain.admit(0, PATH)
    assert plain.word_of(0) is None


def test_two_words_of_one_peer_for_one_microbatch_are_a_proof_once() -> None:
    ours = admissions()
    ours.came(tensor())
    ours.came(tensor(microbatch=1))
    nothing = [
        signed(PATH), signed(OTHER, 2), replace(signed(OTHER), maker=E), replace(signed(OTHER), visit=1),
        replace(signed(OTHER), direction=Direction.BACKWARD), signed(OTHER, -1), signed(OTHER, SETTINGS.microbatches),
    ]  # fmt: skip
    assert ours.two_paths(nothing) == ()
    assert ours.two_paths([*nothing, signed(OTHER)]) == (signed(PATH), signed(OTHER))
    assert ours.two_paths([signed(OTHER)]) == () and ours.two_paths([signed(OTHER, 1)]) == ()


def test_who_has_done_the_same_is_shown_a_few_words_twice_and_its_own_never() -> None:
    ours = admissions()
    many = range(SETTINGS.microbatches)
    for m in many:
        ours.came(tensor(PATH if m < 3 else REPAIRED, m))
    assert len(ours.to_show(C, [*many, *many])) == min(DOUBLES_MAX, len(many)) == 4
    assert [each.microbatch for each in ours.to_show(A, many)] == [3] and ours.to_show(D, [9]) == []
    for _ in range(SHOWN_TIMES - 1):
        assert ours.to_show(C, [0]) == [signed(PATH)]
    assert ours.to_show(C, [0]) == []


def test_no_more_than_a_few_microbatches_are_shown_to_one_peer() -> None:
    settings = replace(SIGNING, microbatches=20)
    ours = Admissions(B, VIEW, begun(shares=((A, tuple(range(20))),)), settings)
    for m in range(20):
        ours.came(tensor(microbatch=m))
    assert len(ours.to_show(C, range(20))) == DOUBLES_MAX and ours.to_show(C, range(10, 20)) == []
    assert len(ours.to_show(D, range(20))) == DOUBLES_MAX


def test_where_two_paths_meet_whoever_is_on_both_shows_all_that_one_peer_signed_both() -> None:
    work = at_work(D)
    for path, maker in ((PATH, B), (OTHER, C)):
        effects = work.on_boundary(maker, tensor(path, visit=2), 7)
    told = [effect for effect in effects if isinstance(effect, Send)]
    assert effects[0] == Release((7,)) and {each.to for each in told} == {B, C, D, E}
    (case,) = {each.message for each in told}
    assert isinstance(case, Convicted) and case.proof == (signed(PATH), signed(OTHER))
    assert (case.accuser, case.accusation.giver, case.accusation.stage) == (D, A, 0)


def test_a_path_without_a_word_is_not_taken_and_nobody_is_told() -> None:
    work = at_work()
    assert work.on_boundary(A, tensor(admitted=None), 7) == [Release((7,))] and work.poison is None
    assert work.on_boundary(E, tensor((E, B, D, E)), 8) == [Release((8,))] and not work.holds.handles


def test_two_of_a_group_show_each_other_by_whose_word_they_did_one_visit() -> None:
    """The one that has not finished it as well."""
    work = at_work()
    work.on_boundary(A, tensor(), 7)
    shown = work.on_share(C, Share(*PLACE, 1, ((0, 1), (1, 1)), "signed"), 0.0)
    assert [effect for effect in shown if isinstance(effect, Send)] == [
        Send(C, WasGiven(*PLACE, (signed(PATH),)), None)
    ]
    assert work.on_given(C, WasGiven(*PLACE, (signed(PATH),))) == []
    assert work.on_given(C, WasGiven("lineage", 3, 8, Attempt(3, 7), (signed(OTHER),))) == []
    assert len(work.on_given(C, WasGiven(*PLACE, (signed(OTHER),)))) == len({*VIEW.members()} - {A})


def test_what_is_said_of_another_visit_is_not_answered() -> None:
    work = at_work()
    work.on_boundary(A, tensor(), 7)
    assert work.on_share(C, Share(*PLACE, 1, ((1, 1), (2, 1)), "signed"), 0.0) == []


def test_a_word_for_a_path_is_one_for_the_whole_attempt() -> None:
    signs = signed(PATH).signed_bytes("lineage", 5, 8, ATTEMPT)
    assert signs == tensor_bytes(A, "lineage", 3, 8, ATTEMPT, 0, 0, Direction.FORWARD, path_digest(PATH))
    later = replace(signed(PATH), visit=1).signed_bytes("lineage", 5, 8, ATTEMPT)
    assert later == tensor_bytes(A, "lineage", 5, 8, ATTEMPT, 0, 1, Direction.FORWARD, path_digest(PATH))
    assert path_word(tensor(())) is None and path_word(tensor()) == signed(PATH)
