"""Whom the leader asks to fill a vacancy, and what it makes of the answer: the role alone (rule 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from ftnode.protocol.leader.knocking import KNOCKS_MAX
from ftnode.protocol.leader.leader_memory import FAILURES_MAX, LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.recruiting import Recruiting
from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.leader.restart import Restart
from ftnode.protocol.recovery.candidate_order import WIDTH_MAX, Offering
from ftnode.protocol.recovery.learning_cost import OMITTED, steps_lost
from ftnode.protocol.situation import Beat, MakeOffer, Remember, SetTimer, Situation
from ftnode.protocol.words.effects import Note
from ftnode.protocol.words.messages import Answer, Begin, Donor, Plan
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import HEAD, Attempt, LentCopy, Peer, Rung, Version
from ftnode.protocol.words.view import View
from tests.protocol.beginnings import begun
from tests.protocol.situations import NOW, SETTINGS, A, B, C, D, alive, situation, standby, view_of

BASE = Version(7, "c7", Attempt(2, 9))
OPEN = view_of((A,), (), (C,))
"""Nobody holds stage 1."""
DUE = NOW + SETTINGS.offer_seconds
SECOND = NOW + SETTINGS.second_offer_seconds
CAN, CANNOT = {1: (True, "it can be rebuilt")}, {1: (False, "nobody has it")}


def recruiting(view: View = OPEN, base: Version | None = BASE) -> Recruiting:
    memory, progress = LeaderMemory(), ViewProgress(base=base)
    losses = Losses(view, memory, progress, SETTINGS)
    moves, restart = ReplicaMoves(view, memory, losses, NOW), Restart(view, memory, progress, losses)
    return Recruiting(view, memory, progress, losses, moves, restart)


def led(presences: Mapping[Peer, Presence], view: View = OPEN, now: float = NOW) -> Situation:
    return situation(view=view, presences=presences, now=now)


def asked(role: Recruiting, s: Situation, rungs: Mapping[int, tuple[bool, str]] = CAN) -> list[Peer]:
    return [made.to for made in role.offer(s, [1], rungs) if isinstance(made, MakeOffer)]


def test_a_standby_is_offered_the_stage_with_its_neighbours() -> None:
    told = recruiting().offer(led(standby(D)), [1], CAN)
    offers = [each for each in told if isinstance(each, MakeOffer)]
    assert told[0] == SetTimer("offer", SECOND, keep=True) and Remember(D, ("/at/d",)) in told
    assert [(made.to, made.near, made.offer.stages, made.offer.base, made.offer.learn) for made in offers] == [
        (D, (A, C), (1,), BASE, False)
    ]


@pytest.mark.parametrize(
    ("presence", "refused", "why"),
    [
        (standby(D, 0), (), "it has no room"),
        (standby(D, refuses=(1,)), (), "the stage did not fit there"),
        (standby(D), (D,), "its address refuses"),
        (standby(D), (), "a record of it is all that we have"),
        (standby(Peer("c", 2)), (), "another life of it is a member"),
        (standby(C, 1) | standby(D, 0), (C,), "the member with room is gone"),
    ],
)
def test_nobody_is_asked(presence: Mapping[Peer, Presence], refused: tuple[Peer, ...], why: str) -> None:
    s = led(presence)
    s.liveness.refused.update(refused)
    if "a record" in why:
        del s.liveness.heard[D]
    assert asked(recruiting(), s) == [], why


@pytest.mark.parametrize(
    ("leaves", "others", "first"),
    [
        ((A,), {}, [C]),
        ((), {}, [D]),
        ((B,), {}, [D]),
        ((A,), standby(Peer("e", 1)), [D]),
    ],
    ids=["the head's holder leaves", "nobody leaves", "another leaves", "two may take the head"],
)
def test_who_alone_can_take_the_head_is_kept_for_it(
    leaves: tuple[Peer, ...], others: Mapping[Peer, Presence], first: list[Peer]
) -> None:
    """C, a member with room, cannot take the head; D, a standby, can."""
    role = recruiting()
    role.memory.leavers.update(dict.fromkeys(leaves, NOW))
    told = asked(role, led(standby(D, 2 if others else 1) | standby(C, head=False) | others))
    assert told == first


def test_nobody_is_kept_for_a_head_that_is_taken() -> None:
    """E has accepted it, and has no room for more."""
    view, e = view_of((), (), (C,)), Peer("e", 1)
    role = recruiting(view)
    role.offerings[HEAD] = Offering(HEAD, accepted=e)
    assert asked(role, led(standby(D) | standby(C, head=False) | standby(e), view)) == [D]


def test_each_candidate_is_asked_once_in_a_round() -> None:
    role, s = recruiting(), led(standby(D))
    assert asked(role, s) == [D] and role.pending
    assert asked(role, s) == [], "it has time left"
    (note,) = role.expire_offers(led(standby(D), now=DUE))
    assert isinstance(note, Note) and "did not answer in time" in note.text and not role.pending
    assert role.memory.failures[D.id, 1] == 1, "others come first next time"
    assert asked(role, s) == [], "it was tried"
    role.forget_tries()
    assert asked(role, s) == [D]


def test_an_offer_is_open_until_its_time_is_up() -> None:
    role = recruiting()
    role.offer(led(standby(D)), [1], CAN)
    role.offerings[1].width = WIDTH_MAX
    assert role.expire_offers(led(standby(D), now=DUE - 0.1)) == [SetTimer("offer", DUE)] and role.pending


def test_more_and_more_are_asked_side_by_side_while_nobody_answers() -> None:
    """The first one to say yes has the stage; who says so later was asked in vain."""
    crowd: dict[Peer, Presence] = {}
    for index in range(40):
        crowd |= standby(Peer(f"x{index:02}", 1))
    role, told = recruiting(), list[list[Peer]]()
    for round_ in range(5):
        now = NOW + round_ * SETTINGS.second_offer_seconds
        role.expire_offers(led(crowd, now=now))
        told.append(asked(role, led(crowd, now=now)))
        assert asked(role, led(crowd, now=now)) == [], "not more at once"
    assert [len(each) for each in told] == [1, 1, 2, 4, 8]
    late, soon = told[0][0], told[3][2]
    yes = Answer("lineage", 3, (1,), True, (), "why", False)
    role.on_answer(soon, yes)
    assert role.fills == {1: soon} and not role.pending
    assert role.on_answer(late, yes) == [] and role.fills == {1: soon}
    assert asked(role, led(crowd, now=NOW + 9.0)) == []


def test_nobody_without_the_weights_is_asked_beside_somebody_with_them() -> None:
    e, f = Peer("e", 1), Peer("f", 1)
    crowd = standby(D, exact=((1, BASE),)) | standby(e) | standby(f, exact=((1, BASE),))
    role = recruiting()
    first = asked(role, led(crowd))
    role.expire_offers(led(crowd, now=SECOND))
    second = asked(role, led(crowd, now=SECOND))
    assert {*first, *second} == {D, f} and len(first) == len(second) == 1
    role.expire_offers(led(crowd, now=DUE - 0.1))
    assert asked(role, led(crowd, now=DUE - 0.1)) == []
    role.expire_offers(led(crowd, now=DUE + 1.0))
    assert asked(role, led(crowd, now=DUE + 1.0)) == [e], "those with them did not answer"


def test_who_claims_the_weights_and_does_not_answer_is_not_waited_for_again() -> None:
    """Also when the directory has been read again, and everybody may be asked once more."""
    liars: dict[Peer, Presence] = {}
    for index in range(30):
        liars |= standby(Peer(f"x{index:02}", 1), exact=((1, BASE),))
    role, crowd, now, told = recruiting(), liars | standby(D), NOW, list[Peer]()
    while D not in told:
        told += asked(role, led(crowd, now=now))
        now += SETTINGS.second_offer_seconds
        role.expire_offers(led(crowd, now=now))
        role.forget_tries()
        assert now < NOW + 2 * SETTINGS.lease_seconds


def test_no_member_is_asked_beside_a_standby() -> None:
    crowd = standby(D) | standby(C)
    role = recruiting()
    assert asked(role, led(crowd)) == [D]
    role.expire_offers(led(crowd, now=SECOND))
    assert asked(role, led(crowd, now=SECOND)) == []
    assert role.on_answer(D, Answer("lineage", 3, (1,), False, (), "no", False))
    assert asked(role, led(crowd, now=SECOND)) == [C]


def test_who_is_not_heard_is_asked_for_a_sign_of_life_in_turns() -> None:
    """Records cost nothing: sixteen of those that they name are knocked at within a heartbeat."""
    crowd: dict[Peer, Presence] = {}
    for index in range(40):
        crowd |= standby(Peer(f"x{index:02}", 1))
    role, knocked = recruiting(), list[list[Peer]]()
    for beat in range(4):
        s = led(crowd, now=NOW + beat * SETTINGS.heartbeat_seconds)
        s.liveness.heard.clear()
        if beat == 0:
            s.liveness.heard[Peer("x33", 1)] = 1.0  # long ago
        told = role.offer(s, [1], CAN)
        knocked.append([peer for each in told if isinstance(each, Beat) for peer in each.to])
        assert not any(isinstance(each, MakeOffer) for each in told)
        assert role.offer(s, [1], CAN) == [], "once in a heartbeat"
    assert [len(each) for each in knocked] == [KNOCKS_MAX] * 4
    assert knocked[0][0] == Peer("x33", 1), "who was there before comes first"
    assert {peer for each in knocked[:3] for peer in each} == set(crowd), "everybody has a turn"


@pytest.mark.parametrize(
    ("sender", "accepted", "exact", "rungs", "fills"),
    [
        (D, True, (), CAN, {1: D}),
        (D, False, (), CAN, {}),
        (B, True, (1,), CAN, {}),
        (D, True, (), CANNOT, {}),
        (D, True, (1,), CANNOT, {1: D}),
    ],
    ids=["yes", "no", "somebody else says yes", "it lost the weights", "it has the weights"],
)
def test_the_answer(
    sender: Peer, accepted: bool, exact: tuple[int, ...], rungs: dict[int, tuple[bool, str]], fills: dict[int, Peer]
) -> None:
    role = recruiting()
    assert asked(role, led(standby(D, exact=((1, BASE),))), rungs) == [D]
    told = role.on_answer(sender, Answer("lineage", 3, (1,), accepted, exact, "why", False))
    assert role.fills == fills and role.pending == (sender == B) and bool(told) == (sender == D)


def test_only_who_has_the_weights_is_asked_where_nothing_else_helps() -> None:
    assert asked(recruiting(), led(standby(D)), CANNOT) == []
    assert asked(recruiting(), led(standby(D, exact=((1, BASE),))), CANNOT) == [D]


def test_a_replica_of_another_stage_is_asked_when_nobody_stands_by() -> None:
    view = view_of((A,), (), (C, D))
    assert asked(recruiting(view), led(standby(D, 0), view)) == [D]
    assert asked(recruiting(), led(standby(C, 0))) == [], "nobody else has its stage"


def test_a_candidate_that_cannot_be_reached_is_asked_no_longer() -> None:
    role = recruiting()
    assert asked(role, led(standby(D))) == [D]
    role.on_candidate_lost(B)
    assert role.pending
    role.on_candidate_lost(D)
    assert not role.pending


@pytest.mark.parametrize(
    ("copied", "possible"), [((), False), (((0, BASE),), True), (((0, Version(8, "", BASE.attempt)),), False)]
)
def test_a_head_without_a_copy_halts_the_run(copied: tuple[tuple[int, Version], ...], possible: bool) -> None:
    view = view_of((), (B,), (C,))
    role, s = recruiting(view), led(standby(D, 0, copies=copied), view)
    assert not role.rungs(s, [0])[0][0], "nobody but the keeper has told of it"
    role.memory.lent.hear(LentCopy(0, D.id, version, "d") for _, version in copied)
    rungs = role.rungs(s, [0])
    assert rungs[0][0] is possible
    assert role.halt_reason(s, rungs).startswith("halted: ") is not possible


@pytest.mark.parametrize("old", [0, 5])
def test_what_is_told_of_a_loss_has_a_price_for_each_step_that_a_copy_is_old(old: int) -> None:
    view, copy = view_of((), (B,), (C,)), Version(7 - old, "", BASE.attempt)
    role, s = recruiting(view), led(standby(D, 0, copies=((0, copy),)), view)
    role.memory.lent.hear([LentCopy(0, D.id, copy, "d")])
    assert f"head: head, {steps_lost(0, Rung.HEAD, SETTINGS, old):.3g} (" in role.weighed(s, [0])


def test_what_is_told_of_a_loss_names_what_nothing_fills_and_what_may_be_left_out() -> None:
    view, four = view_of((A,), (B,), (), (C,)), replace(SETTINGS, stages=3, omit=True)
    role = recruiting(view)
    s = situation(view=view, settings=four)
    blend = f"stage 2: blend, {steps_lost(2, Rung.BLEND, four):.3g} ("
    told = role.weighed(s, [2])
    assert blend in told and f"; to leave out, {OMITTED:g} more; to wait" in told
    assert "head: wait, " in role.weighed(s, [0]) and "to leave out" not in role.weighed(s, [0])
    assert role.weighed(s, []) == "others hold all that was lost, and go on"


def test_a_copy_that_was_not_lent_too_often_is_not_counted_on() -> None:
    view, memory = view_of((), (B,), (C,)), LeaderMemory()
    role, s = recruiting(view), led(standby(D, 0, copies=((0, BASE),)), view)
    role.memory.broken = memory.broken
    role.memory.lent.hear([LentCopy(0, D.id, BASE, "d")])
    donors = (Donor(0, D, ()),)
    plan = Plan(0, A, Rung.HEAD, donors, 1.0, "why", BASE)
    role.progress.begin = Begin(
        "lineage", 3, 8, Attempt(3, 1), BASE, False, False, True, False, 2, (), (), (plan,), (), ()
    )
    for failures in range(FAILURES_MAX):
        s.liveness.heard[D] = NOW + failures  # it is there, and does not lend
        assert role.rungs(s, [0])[0][0]
        role.on_given_up(situation(view=view, now=NOW), A, 0, True)
    s.liveness.heard[D] = NOW + FAILURES_MAX
    assert not role.rungs(s, [0])[0][0]


def test_who_did_not_lend_and_is_gone_is_forgotten() -> None:
    """A stranger comes with another life each time, and never lends what it tells of."""
    view = view_of((), (B,), (C,))
    role = recruiting(view)
    for life in range(50):
        stranger = Peer("stranger", life)
        plan = Plan(0, A, Rung.HEAD, (Donor(0, stranger, ()),), 1.0, "why", BASE)
        role.progress.begin = begun(installs=(plan,))
        told = standby(D, 0, copies=((0, BASE),)) | standby(stranger, 0, copies=((0, BASE),))
        role.on_given_up(led(told, view), A, 0, False)
        assert role.memory.unheard == {stranger: NOW}
    role.on_given_up(led(standby(stranger, 0) | standby(D, 0), view), A, 0, False)
    assert role.memory.unheard == {stranger: NOW}, "it is still there"


def test_who_did_not_lend_is_not_asked_before_it_is_heard_again() -> None:
    view = view_of((), (B,), (C,))
    role, s = recruiting(view), led(standby(D, 0, copies=((0, BASE),)), view)
    role.memory.unheard[D] = NOW
    role.memory.lent.hear([LentCopy(0, D.id, BASE, "d")])
    assert not role.rungs(s, [0])[0][0]
    assert role.rungs(situation(view=view, presences=s.presences, liveness=alive(D, now=NOW + 1.0)), [0])[0][0]
