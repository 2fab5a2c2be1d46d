"""Whom signed words convict, and of which view they are (rule 51)."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from ftnode.protocol.leader.cases import Case
from ftnode.protocol.leader.convictions import Convictions, against, liar_of, newest_of, of_view, signed_twice
from ftnode.protocol.leader.leader_memory import CONVICTED_MAX, LeaderMemory
from ftnode.protocol.words.effects import KeepConvicted, Send
from ftnode.protocol.words.messages import Convicted, Judge, Poisoned, Seal, SealedTensor, Share, Verdict
from ftnode.protocol.words.types import Attempt, Direction, Peer
from ftnode.protocol.words.view import Lineage
from tests.protocol import situations
from tests.protocol.beginnings import begun

A, B, C, D, E = (Peer(name, 1) for name in "abcde")
SAID = Poisoned("line", 3, 7, Attempt(3, 2), 1, -1, "it is 1 of its size away", B, 1.0)


def verdict(guilty: bool | None) -> Verdict:
    return Verdict(Judge.of(A, SAID, B), guilty, "")


def case(**words: bool | None) -> Convicted:
    """a accuses b; what c, d and e say of it."""
    told = tuple((Peer(name, 1), verdict(guilty)) for name, guilty in words.items())
    return Convicted(A, SAID, told)


@pytest.mark.parametrize(
    ("words", "liar"),
    [
        ({"c": True}, B), ({"c": False}, A), ({"c": True, "d": False}, None), ({"c": True, "d": None}, B),
        ({"c": None}, None), ({}, None), ({"c": True, "d": True, "e": False}, B),
        ({"c": False, "d": False, "e": True}, A),
    ],
)  # fmt: skip
def test_most_of_those_who_did_it_again_decide(words: dict[str, bool | None], liar: Peer | None) -> None:
    assert liar_of(case(**words)) == liar


@pytest.mark.parametrize(
    "other",
    [
        replace(SAID, giver=None), replace(SAID, giver=A), replace(SAID, distance=0.0), replace(SAID, step=8),
        replace(SAID, attempt=Attempt(3, 3)), replace(SAID, stage=2), replace(SAID, microbatch=0),
        replace(SAID, lineage="other"), replace(SAID, view=4), replace(SAID, giver=D),
    ],
)  # fmt: skip
def test_words_about_something_else_convict_nobody(other: Poisoned) -> None:
    assert liar_of(replace(case(c=True), accusation=other)) is None


UNSHOWN_BY_D = replace(SAID, microbatch=0, beside=2)
"""a checks b of stage 1, and is not shown what d, at the visit after that, gave to b."""
CLAIM = Share("line", 3, 7, Attempt(3, 2), 2, ((0, 2), (3, 2)), "signed")


def not_shown(claim: Share | None = CLAIM, said: Poisoned = UNSHOWN_BY_D, **words: bool | None) -> Convicted:
    about = Judge.of(A, UNSHOWN_BY_D, D, claim)
    told = tuple((Peer(name, 1), Verdict(about, guilty, "")) for name, guilty in words.items())
    return Convicted(A, said, told)


@pytest.mark.parametrize(
    ("case", "liar"),
    [
        (not_shown(c=True), D), (not_shown(c=True, e=None), D), (not_shown(c=True, e=True, f=False), D),
        (not_shown(), None), (not_shown(c=None), None), (not_shown(c=True, e=False), None),
        (not_shown(c=False), None), (not_shown(c=False, e=False), None),  # nobody goes for saying so
        (not_shown(None, c=True), None),  # it has not signed that it did anything
        (not_shown(replace(CLAIM, visits=((3, 2),)), c=True), None),
        (not_shown(replace(CLAIM, step=6), c=True), None),
        (not_shown(replace(CLAIM, attempt=Attempt(3, 1)), c=True), None),
        (not_shown(said=replace(UNSHOWN_BY_D, beside=0), c=True), None),
        (not_shown(said=replace(UNSHOWN_BY_D, microbatch=3), c=True), None),
        (not_shown(said=replace(UNSHOWN_BY_D, distance=0.0), c=True), None),
        (not_shown(b=True), None), (not_shown(d=True), None), (not_shown(a=True), None),
    ],
)  # fmt: skip
def test_who_shows_nobody_what_it_has_signed_that_it_did_is_convicted(case: Convicted, liar: Peer | None) -> None:
    assert liar_of(case) == liar


def test_those_who_look_hold_the_stage_of_either_visit() -> None:
    view = situations.view_of((E,), (A, B, C), (D, Peer("f", 1)), number=3, lineage=Lineage("line", 0, 3))
    assert of_view(not_shown(c=True, f=True), view) and against(not_shown(c=True, f=True)) == [A, C, Peer("f", 1)]
    assert not of_view(not_shown(e=True), view) and not of_view(not_shown(None, c=True), view)
    assert not of_view(not_shown(replace(CLAIM, stage=1), c=True), view), "the accused does not hold it"
    assert not of_view(replace(not_shown(c=True), accuser=D), view)


def test_neither_of_the_two_is_a_judge_and_nobody_is_twice() -> None:
    assert liar_of(case(a=True)) is None and liar_of(case(b=False)) is None
    twice = replace(case(c=True), verdicts=((C, verdict(True)), (C, verdict(True))))
    assert liar_of(twice) is None


def test_so_many_are_remembered_and_the_newest() -> None:
    memory = LeaderMemory()
    assert all(memory.convict(str(number), case(c=True)) for number in range(CONVICTED_MAX + 3))
    assert not memory.convict(str(CONVICTED_MAX), case(c=True))
    assert len(memory.convicted) == CONVICTED_MAX and "0" not in memory.convicted
    for number in range(CONVICTED_MAX + 3):
        memory.showing(f"x{number}", A)
    assert len(memory.shown) == CONVICTED_MAX and memory.showing("y", A) == {A}


def test_what_a_disk_keeps_counts_when_it_convicts_somebody() -> None:
    memory = LeaderMemory()
    Convictions(memory).remember([case(c=None), case(c=True)])
    assert [*memory.convicted] == [B.id] and memory.barred_until(B) == inf > memory.barred_until(C)


def test_of_each_liar_one_case_is_kept_and_the_newest_liars() -> None:
    many = [replace(case(), accuser=Peer(f"x{number}", 1)) for number in range(CONVICTED_MAX + 2)]
    wrong = [replace(each, verdicts=((C, Verdict(Judge.of(each.accuser, SAID, B), False, "")),)) for each in many]
    assert newest_of([case(c=None), case(c=True), case(c=True, d=True)]) == (case(c=True),)
    assert newest_of(wrong) == (*wrong[2:],)


def test_what_is_kept_says_what_the_run_had_come_to() -> None:
    """Two tensors can be signed later, for any step. Who hears of them then writes that down."""
    liar = situations.B
    both = tuple(SealedTensor(0, 1, Direction.FORWARD, liar, Seal(digest, "")) for digest in ("one", "other"))
    told = Convicted(situations.A, replace(SAID, step=1, giver=liar), (), both)
    view = replace(situations.VIEW, lineage=replace(situations.VIEW.lineage, order=4))
    past, step = situations.Past(newest_step=900), begun(lineage=view.lineage.id)
    for held, committed in ((situations.Held(begin=step), 900), (situations.Held(), -1)):
        s = situations.situation(view=view, history=past, own=held)
        out = Convictions(LeaderMemory()).on_convicted(s, liar, told)
        assert [effect for effect in out if isinstance(effect, KeepConvicted)] == [KeepConvicted(told, committed, 4)]


def proof_against(liar: Peer, visit: int = 0) -> Convicted:
    both = tuple(SealedTensor(0, visit, Direction.FORWARD, liar, Seal(digest, "")) for digest in ("one", "other"))
    return Convicted(situations.C, replace(SAID, giver=liar), (), both)


def test_two_paths_convict_as_two_tensors_do() -> None:
    case = proof_against(situations.A)
    assert liar_of(case) == situations.A and "two paths" in signed_twice(case.proof)
    assert "two different tensors" in signed_twice(proof_against(situations.A, 1).proof)


def test_a_leader_that_has_signed_two_counts_as_silent_and_all_others_are_shown_it() -> None:
    memory, case = LeaderMemory(), proof_against(situations.A)
    before = situations.situation(me=situations.B)
    assert not before.leader_silent and [*Convictions(memory).beat(before)] == []
    memory.convict(situations.A.id, case)
    s = situations.situation(me=situations.B, convicted=memory.convicted)
    assert s.leader_lied and s.leader_silent
    assert [*Convictions(memory).beat(s)] == [Send(situations.C, case, None)]
    leads = situations.situation(me=situations.A, convicted=memory.convicted)
    assert not leads.leader_silent and [*Convictions(memory).beat(leads)] == []


def test_by_the_words_of_others_no_leader_counts_as_silent() -> None:
    memory = LeaderMemory()
    memory.convict(situations.A.id, case(c=True))
    s = situations.situation(me=situations.B, convicted=memory.convicted)
    assert not s.leader_silent and [*Convictions(memory).beat(s)] == []


def test_who_signed_that_the_liar_is_one() -> None:
    assert against(case(c=True, d=True, e=False)) == [A, C, D]
    assert against(case(c=False, d=None)) == [C]


def test_a_case_hears_those_who_were_asked_about_what_they_were_asked() -> None:
    """So that what the leader decides is what everybody will make of the words."""
    about = Judge.of(A, SAID, B)
    heard = Case(about, SAID, 10.0, [C, D])
    heard.hear(E, verdict(False))
    heard.hear(C, replace(verdict(False), about=replace(about, microbatch=0)))
    assert not heard.verdicts and not heard.over(0.0, ()) and heard.over(10.0, ())
    heard.hear(C, verdict(True))
    assert heard.over(0.0, {D}) and not heard.over(0.0, ()) and heard.told == case(c=True)
    heard.hear(D, verdict(None))
    assert heard.over(0.0, ()) and liar_of(heard.told) == B
