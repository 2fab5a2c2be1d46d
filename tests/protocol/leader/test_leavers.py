"""Who takes over what a peer holds that leaves, and when it may go: the role alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.leader.leader_memory import LeaderMemory, Learner
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.leader.leavers import PATIENCE_LEASES, Leavers
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.situation import LetUsGo, MakeOffer, Outcome, Situation
from ftnode.protocol.words.effects import Note, Search
from ftnode.protocol.words.messages import Begin, StageReport
from ftnode.protocol.words.types import Attempt, Copied, LentCopy, Peer, Version
from ftnode.protocol.words.view import View
from tests.protocol.situations import (
    NOW,
    SETTINGS,
    VIEW,
    A,
    B,
    C,
    D,
    Held,
    Vote,
    report,
    situation,
    standby,
    view_of,
)

BASE = Version(7, "c7", Attempt(2, 9))
PATIENCE = PATIENCE_LEASES * SETTINGS.lease_seconds
BEGUN = Begin("lineage", 3, 8, Attempt(3, 1), BASE, False, False, True, False, 2, (), (), (), (), ())
ALONE = view_of((A,), (A,), (A,))
NOBODY_LEARNS, NOBODY_STAYS = LetUsGo(False), LetUsGo(True)
TWICE = view_of((A,), (B, C), (C,))
"""Two hold stage 1."""
SPARE = view_of((A,), (B,), (C, D))


def leavers(view: View, *leaving: Peer, since: float = NOW, begin: Begin | None = BEGUN) -> Leavers:
    memory, progress = LeaderMemory(leavers=dict.fromkeys(leaving, since)), ViewProgress(base=BASE, begin=begin)
    losses = Losses(view, memory, progress, SETTINGS)
    moves = ReplicaMoves(view, memory, losses, NOW)
    learners = Learners(situation(view=view), view, memory, progress, losses, moves)
    return Leavers(view, memory, progress, losses, learners, moves)


def test_a_wish_to_leave_is_taken_down_once() -> None:
    role, out = leavers(VIEW), Outcome()
    role.announce(situation(), out, B)
    role.announce(situation(now=NOW + 1.0), out, B)
    assert [type(each) for each in out] == [Note, Search] and B in role and C not in role
    assert role.wanting(situation()) == [(1, B)]


@pytest.mark.parametrize(
    ("leaving", "joins", "alone", "free"),
    [
        ((B,), (), [], [B]),
        ((C,), (), [2], []),
        ((B, C), (), [1, 2], []),
        ((C,), ((2, D),), [], [C]),
        ((B, C), ((1, D),), [2], [B]),
    ],
    ids=["another holds it", "nobody does", "the other one leaves, too", "it is learnt", "one may go"],
)
def test_who_may_go(
    leaving: tuple[Peer, ...], joins: tuple[tuple[int, Peer], ...], alone: list[int], free: list[Peer]
) -> None:
    role = leavers(TWICE, *leaving)
    assert sorted({stage for peer in leaving for stage in role.alone(peer, joins)}) == alone
    assert role.free(joins) == free


@pytest.mark.parametrize(
    ("view", "leaving", "waited", "changes", "decided", "lost"),
    [
        (VIEW, (B,), PATIENCE, {}, [], set()),
        (VIEW, (B,), PATIENCE + 0.1, {}, [], {B}),
        (VIEW, (B,), PATIENCE + 0.1, {"presences": standby(D)}, [MakeOffer], set()),
        (VIEW, (A,), PATIENCE + 0.1, {}, [NOBODY_LEARNS], set()),
        (ALONE, (A,), 0.0, {}, [NOBODY_LEARNS], set()),
        (VIEW, (A, B, C), 0.0, {}, [NOBODY_LEARNS], {B, C}),
        (VIEW, (A, B, C), 0.0, {"presences": standby(D)}, [MakeOffer], set()),
        (VIEW, (A, B, C), 0.0, {"pauses": True}, [NOBODY_STAYS], set()),
        (ALONE, (A,), 0.0, {"pauses": True}, [NOBODY_STAYS], set()),
        (TWICE, (B,), 0.0, {}, [], set()),
        (TWICE, (B,), 0.0, {"begin": None}, [], {B}),
        (VIEW, (B,), 1.0, {"ballots": Vote(True)}, [], set()),
    ],
    ids=[
        "it waits", "nobody comes", "somebody stands by", "it is us", "it is us, alone", "everybody leaves",
        "everybody leaves, and one comes", "everybody pauses", "it is us, alone, and we pause",
        "it goes between two steps", "nothing is in work", "a ballot is under way",
    ],
)  # fmt: skip
def test_what_becomes_of_who_leaves(
    view: View, leaving: tuple[Peer, ...], waited: float, changes: dict[str, Any], decided: list[Any], lost: set[Peer]
) -> None:
    role = leavers(view, *leaving, since=NOW - waited, begin=changes.pop("begin", BEGUN))
    told = role.beat(situation(view=view, **changes))
    asked = [each for each in told if isinstance(each, MakeOffer | LetUsGo)]
    assert [type(each) if isinstance(each, MakeOffer) else each for each in asked] == decided
    assert set(role.losses.gone) == lost


def test_a_member_with_room_is_asked_to_learn_it() -> None:
    role = leavers(VIEW, B)
    (made,) = (each for each in role.beat(situation(presences=standby(C))) if isinstance(each, MakeOffer))
    assert (made.to, made.offer.stages, made.offer.learn) == (C, (1,), True)
    assert role.learners.learners[1, C].giver == B
    again = role.beat(situation(presences=standby(C), now=NOW + 1.0))
    assert not any(isinstance(each, MakeOffer) for each in again), "it has been asked"


@pytest.mark.parametrize(
    ("presences", "why"),
    [
        (standby(C, 0), "it has no room"),
        (standby(C, refuses=(1,)), "the stage did not fit there"),
        (standby(B), "it is the one that leaves"),
    ],
)
def test_a_member_that_cannot_learn_it_is_not_asked(presences: Any, why: str) -> None:
    told = leavers(VIEW, B).beat(situation(presences=presences))
    assert not any(isinstance(each, MakeOffer) for each in told), why


def test_what_several_leave_is_offered_side_by_side() -> None:
    """To who holds and learns least, and what one is to learn in one offer."""
    role = leavers(view_of((A,), (B,), (C,), (B,)), B, C)
    told = role.beat(situation(view=role.view, presences=standby(D, 2) | standby(A, 3)))
    made = {each.to: each.offer.stages for each in told if isinstance(each, MakeOffer)}
    assert made == {D: (1, 3), A: (2,)}
    givers = {learnt: learner.giver for learnt, learner in role.learners.learners.items()}
    assert givers == {(1, D): B, (3, D): B, (2, A): C}


def test_who_learns_and_leaves_too_is_no_heir() -> None:
    role, out = leavers(VIEW, B), Outcome()
    role.learners.learners[1, C] = Learner(B, NOW + 100.0, True)
    role.announce(situation(), out, C)
    assert not role.learners.learners


def test_nobody_is_let_go_while_somebody_learns_what_another_one_leaves() -> None:
    role, s = leavers(VIEW, B, C, since=NOW - 2 * PATIENCE), situation()
    role.learners.learners[1, D] = Learner(B, NOW + 100.0, True)
    role.beat(s)
    assert not role.losses.gone
    role.learners.learners.clear()
    role.beat(situation(now=NOW + PATIENCE + 0.1))
    assert set(role.losses.gone) == {B, C}


def test_a_replica_is_taken_out_of_its_group_for_it_and_only_one() -> None:
    role = leavers(SPARE, B)
    s = situation(view=SPARE, presences=standby(C, 0) | standby(D, 0))
    role.beat(s)
    assert set(role.losses.vacated) == {(2, D)}
    role.losses.vacated.clear()  # the view without it has come
    role.beat(s)
    assert not role.losses.vacated, "one is on its way"


def test_patience_begins_anew_while_somebody_learns() -> None:
    role = leavers(VIEW, B, since=NOW - 2 * PATIENCE)
    role.learners.learners[1, D] = Learner(B, NOW + 100.0, True)
    role.beat(situation())
    role.learners.learners.clear()
    role.beat(situation(now=NOW + PATIENCE))
    assert not role.losses.gone
    role.beat(situation(now=NOW + PATIENCE + 0.1))
    assert set(role.losses.gone) == {B}


def test_where_snapshots_are_kept_nobody_takes_a_stage_away_before_all_stand_at_one_commit() -> None:
    """B does not say at once that it has the newest commit; C, which stays, has to say so, too."""
    role, kept = leavers(VIEW, B, since=NOW - PATIENCE - 1.0), replace(SETTINGS, snapshot_every=3)
    own = Held(versions={0: BASE})

    def beat(applied: dict[Peer, int], later: float = 1.0) -> set[Peer]:
        reports = {
            peer: report(stages=(StageReport(stage, "training", applied[peer], 0, 0, 0, 0.1),))
            for stage, peer in ((1, B), (2, C))
            if peer in applied
        }
        role.beat(situation(settings=kept, own=own, reports=reports, now=NOW + later))
        return set(role.losses.gone)

    assert beat({B: 7, C: 7}, 0.0) == set() and role.held_since == NOW, "from now on nothing is committed"
    assert beat({B: 6, C: 7}) == beat({B: 7, C: 6}) == beat({B: 7}) == set()
    assert beat({B: 7, C: 7}) == {B}


def test_who_does_not_say_where_it_stands_is_not_waited_for_longer_than_a_lease() -> None:
    role, kept = leavers(VIEW, B, since=NOW - PATIENCE - 1.0), replace(SETTINGS, snapshot_every=3)
    for later, gone in ((0.0, set[Peer]()), (SETTINGS.lease_seconds, set[Peer]()), (SETTINGS.lease_seconds + 0.1, {B})):
        role.beat(situation(settings=kept, now=NOW + later))
        assert set(role.losses.gone) == gone


@pytest.mark.parametrize(
    ("leaving", "vacated", "joins", "leads"),
    [
        ((), (), (), A),
        ((A,), (), (), A),
        ((A,), ((0, A),), (), B),
        ((A, B), ((0, A),), (), C),
        ((A, B, C), ((0, A),), ((0, D),), D),
        ((A, B, C), ((0, A),), (), A),
    ],
    ids=["nobody leaves", "it keeps a stage", "the next voter", "who stays", "who joins", "nobody is left"],
)
def test_who_leads_next(
    leaving: tuple[Peer, ...], vacated: tuple[tuple[int, Peer], ...], joins: tuple[tuple[int, Peer], ...], leads: Peer
) -> None:
    role = leavers(VIEW, *leaving)
    for stage, peer in vacated:
        role.losses.vacate(stage, peer, "handed over")
    assert role.successor(A, joins) == leads


def test_who_is_no_member_any_more_does_not_leave() -> None:
    assert D not in leavers(VIEW, D) and B in leavers(VIEW, B)


LONE = view_of((A,), (B,), (B,), (B,))
"""B holds all block stages, of which there are three in these settings."""
PACED = replace(SETTINGS, stages=3, block_state_bytes=1000, head_state_bytes=1000)


def hurried(seconds: float, rate: float = 100.0, **changes: Any) -> tuple[Leavers, Situation]:
    """B ends in so many seconds, and a stage takes ten of them."""
    role, out = leavers(LONE, B), Outcome()
    s = situation(view=LONE, settings=PACED, **changes)
    role.announce(s, out, B, seconds, rate)
    return role, s


def asked(role: Leavers, s: Situation) -> dict[Peer, tuple[int, ...]]:
    return {each.to: each.offer.stages for each in role.beat(s) if isinstance(each, MakeOffer)}


@pytest.mark.parametrize(
    ("seconds", "rate", "stages"),
    [
        (-1.0, 100.0, (1, 2, 3)),
        (500.0, 100.0, (1,)),
        (30.0, 100.0, (1,)),
        (11.0, 100.0, ()),
        (30.0, 0.0, (1,)),
        (30.0, 1e6, (1, 2, 3)),
    ],
    ids=["no hurry", "long enough", "for two", "for none", "a line of which nothing is known", "a fast line"],
)
def test_one_that_ends_hands_over_one_after_the_other(seconds: float, rate: float, stages: tuple[int, ...]) -> None:
    role, s = hurried(seconds, rate, presences=standby(C, 3))
    assert asked(role, s) == ({C: stages} if stages else {})
    assert asked(role, s) == {}, "it has been asked"


def test_the_next_one_is_asked_for_when_the_one_before_has_been_fetched() -> None:
    role, s = hurried(40.0, presences=standby(C, 3) | standby(D, 3))
    (first,) = asked(role, s)
    learner = role.learners.learners[1, first]
    learner.accepted = True
    assert asked(role, s) == {}, "it fetches"
    learner.applied = 7
    assert asked(role, s) == {({C, D} - {first}).pop(): (3,)}, "a newcomer joins with all that it learns"


def test_a_member_that_has_fetched_one_fetches_the_next() -> None:
    role, s = hurried(40.0, presences=standby(A, 3))
    assert asked(role, s) == {A: (1,)}
    role.learners.learners[1, A].accepted, role.learners.learners[1, A].applied = True, 7
    assert asked(role, s) == {A: (3,)}, "then the one between them is a blend"


def test_what_does_not_pass_is_not_learnt_by_others_either() -> None:
    """Its line is for what is worth most, and not for replicas or newcomers that take a stage of its."""
    role, s = hurried(25.0, presences=standby(C, 3) | standby(D, 3))
    assert len(asked(role, s)) == 1
    later = s._replace(now=NOW + 3.0)
    for now in (s, later, later._replace(now=NOW + 6.0)):
        assert not any(isinstance(each, MakeOffer) for each in role.learners.beat(now))


def test_with_time_for_nothing_it_works_on_until_its_time_is_up() -> None:
    role, s = hurried(4 * PATIENCE, 1.0, presences=standby(C, 3))
    role.beat(s)
    role.beat(s._replace(now=NOW + 3 * PATIENCE))
    assert not role.losses.gone and role.wanting(s) == []


def test_a_notice_that_is_taken_back_is_none() -> None:
    role, s = hurried(1.0)
    assert role.wanting(s) == []
    role.announce(s, Outcome(), B)
    assert role.wanting(s) == [(1, B), (2, B), (3, B)]


@pytest.mark.parametrize(
    ("keeper", "first"), [(None, 3), (C, 2), (B, 3)], ids=["nobody keeps a copy", "another member does", "it does"]
)
def test_copies_of_others_make_a_stage_worth_less_and_its_own_do_not(keeper: Peer | None, first: int) -> None:
    """Of a middle stage and the last one."""
    view, out = view_of((A,), (C,), (B,), (B,)), Outcome()
    reports = {keeper: replace(report(), copies=(Copied(3, 7, 0),))} if keeper is not None else {}
    role = leavers(view, B)
    role._lent.hear(LentCopy(3, peer.id, replace(BASE, step=7), "d") for peer in reports)
    s = situation(view=view, settings=PACED, reports=reports, presences=standby(D, 3))
    role.announce(s, out, B, 30.0, 100.0)
    assert asked(role, s) == {D: (first,)}


def test_it_says_what_passes_and_again_when_that_is_something_else() -> None:
    role, s = hurried(30.0, presences=standby(C, 0))

    def told(later: float) -> list[str]:
        notes = [each for each in role.beat(s._replace(now=NOW + later)) if isinstance(each, Note)]
        return [note.text for note in notes if "are left" in note.text]

    (text,) = told(0.0)
    assert "28.0 s are left, in which 1, 3 can be handed over" in text and "2 cannot" in text
    assert told(2.0) == []
    (text,) = told(10.0)
    assert "in which 1 can be handed over" in text and "2, 3 cannot" in text


@pytest.mark.parametrize(
    ("sites", "heir"),
    [(("", ""), C), (("x", "y"), D), (("y", "x"), C), (("x", "x"), C), (("", "y"), D), (("x", ""), C)],
)
def test_of_equals_one_of_another_site_than_its_neighbours_is_asked(sites: tuple[str, str], heir: Peer) -> None:
    """The head, which is beside it, is at site x; the one that leaves does not count."""
    view = view_of((A,), (B,), (A,))
    ours = {B: replace(standby(B, 0)[B], site="y")}
    standbys = {peer: replace(standby(peer)[peer], site=site) for peer, site in zip((C, D), sites)}
    role = leavers(view, B)
    assert asked(role, situation(view=view, presences=ours | standbys, here="x")) == {heir: (1,)}
