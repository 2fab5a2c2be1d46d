"""Which votes of the next view are heard, and what happens when one is chosen. The role alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.situation import Outcome, ShowView, TakeUp
from ftnode.protocol.views.election import BALLOTINGS_KEPT, Election
from ftnode.protocol.views.succession import next_view
from ftnode.protocol.words.effects import Send
from ftnode.protocol.words.messages import Accepted, Ballot, Outbid, Prepare, Promise, Proof, Propose, Signed, Vote
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View
from tests.protocol.situations import NOW, VIEW, A, B, C, D, alive, situation, view_of

NEXT = next_view(VIEW, A, (), (), {}, (), "next")
BALLOT = Ballot(1, B)


def election(me: Peer, view: View = VIEW) -> Election:
    role = Election(me)
    role.balloting_of(view)
    return role


def vote(kind: type[Vote], number: int, lineage: str = "lineage") -> Vote:
    view = view_of((A,), (B,), (C,), number=number, lineage=Lineage(lineage, 0, 3))
    made: dict[type[Vote], Vote] = {
        Prepare: Prepare(lineage, number, BALLOT), Promise: Promise(lineage, number, BALLOT, None, None),
        Propose: Propose(BALLOT, view), Accepted: Accepted(lineage, number, BALLOT, view.digest()),
        Outbid: Outbid(lineage, number, BALLOT),
    }  # fmt: skip
    return made[kind]


def answers(out: Outcome) -> list[tuple[Peer, type]]:
    return [(each.to, type(each.message)) for each in out if isinstance(each, Send)]


@pytest.mark.parametrize("kind", [Prepare, Promise, Propose, Accepted, Outbid])
@pytest.mark.parametrize(
    ("number", "lineage", "view", "shown"),
    [
        (0, "lineage", VIEW, True),
        (2, "lineage", VIEW, True),
        (3, "lineage", VIEW, True),
        (5, "lineage", VIEW, False),
        (3, "other", VIEW, False),
        (4, "other", VIEW, False),
        (3, "lineage", None, False),
    ],
)
def test_a_vote_that_is_behind_is_shown_our_view_and_one_of_elsewhere_is_not_heard(
    kind: type[Vote], number: int, lineage: str, view: View | None, shown: bool
) -> None:
    s = situation(me=C, view=view, liveness=alive(B, C))
    out = election(C).on_vote(s, B, vote(kind, number, lineage))
    assert out == ([ShowView(B, number - 1)] if shown else [])


@pytest.mark.parametrize(
    ("me", "sender", "heard", "quorate_at", "helps"),
    [
        (C, B, (A, B), NOW, False),
        (C, B, (B,), NOW, True),
        (C, A, (A, B), NOW, True),
        (C, C, (A, B), NOW, True),
        (C, B, (A, B), NOW - 20.0, False),
        (C, B, (A, B), NOW - 20.1, True),
        (A, B, (B, C), NOW, False),
        (C, D, (B,), NOW, False),
    ],
)
def test_a_voter_that_hears_its_leader_does_not_help_to_replace_it(
    me: Peer, sender: Peer, heard: tuple[Peer, ...], quorate_at: float, helps: bool
) -> None:
    s = situation(me=me, liveness=alive(*heard), quorate_at=quorate_at)
    out = election(me).on_vote(s, sender, Prepare("lineage", 4, Ballot(1, sender)))
    assert answers(out) == ([(sender, Promise)] if helps else [])


def test_a_proposal_is_accepted_without_a_look_at_the_leader() -> None:
    out = election(C).on_vote(situation(me=C), A, Propose(Ballot(0, A), NEXT))
    assert answers(out) == [(A, Accepted)]


@pytest.mark.parametrize(
    ("chosen", "voices", "told"),
    [
        (NEXT, (A,), None),
        (NEXT, (A, D), None),
        (NEXT, (A, B), (B, C)),
        (next_view(VIEW, A, {C}, (), {}, (), "without c"), (A, B), (B, C)),
        (next_view(VIEW, A, {C}, (), {2: D}, (), "d for c"), (B, C), (B, C, D)),
    ],
)
def test_a_chosen_view_is_taken_up_and_told_to_members_old_and_new(
    chosen: View, voices: tuple[Peer, ...], told: tuple[Peer, ...] | None
) -> None:
    role, s, out = election(A), situation(), Outcome()
    role.balloting_of(VIEW).propose(chosen, NOW)
    for peer in voices:
        out.extend(role.on_vote(s, peer, Accepted("lineage", 4, Ballot(0, A), chosen.digest())))
    proof = Proof(Ballot(0, A), tuple(Signed(peer, "") for peer in voices))
    assert out == ([] if told is None else [TakeUp(chosen, proof, told)])


def test_promises_and_an_outbid_reach_the_proposer() -> None:
    role, s = election(B), situation(me=B, liveness=alive(B, C))
    balloting = role.balloting_of(VIEW)
    balloting.propose(NEXT, NOW)
    assert role.on_vote(s, C, Outbid("lineage", 4, Ballot(6, C))) == []
    balloting.propose(NEXT, NOW)
    ballot = Ballot(7, B)
    assert balloting.ballot == ballot
    assert role.on_vote(s, B, Promise("lineage", 4, ballot, None, None)) == []
    out = role.on_vote(s, C, Promise("lineage", 4, ballot, None, None))
    assert answers(out) == [(peer, Propose) for peer in (A, B, C)]


@pytest.mark.parametrize(
    ("known", "asked", "expected"),
    [(3, 2, 3), (3, 0, 3), (3, 3, 3), (3, 4, 4), (None, 2, 2)],
)
def test_views_never_go_back(known: int | None, asked: int, expected: int) -> None:
    role = Election(C)
    if known is not None:
        role.balloting_of(replace(VIEW, number=known))
    assert role.newest_of(replace(VIEW, number=asked)) == replace(VIEW, number=expected)


def test_what_was_promised_holds_when_we_come_back_to_a_view_and_not_in_the_next_one() -> None:
    role = Election(C)
    first = role.balloting_of(VIEW)
    first.on_prepare(B, Prepare("lineage", 4, BALLOT))
    role.balloting_of(view_of((A,), (B,), (C,), lineage=Lineage("other", 0, 3)))
    assert role.balloting_of(VIEW).promised == BALLOT
    assert role.balloting_of(NEXT).promised is None


@pytest.mark.parametrize(("others", "kept"), [(BALLOTINGS_KEPT - 1, True), (BALLOTINGS_KEPT, False)])
def test_votes_of_few_lineages_are_kept_those_used_last(others: int, kept: bool) -> None:
    role = election(C)
    role.balloting_of(VIEW).on_prepare(B, Prepare("lineage", 4, BALLOT))
    for n in range(others):
        role.balloting_of(view_of((A,), (B,), (C,), lineage=Lineage(f"other {n}", 0, 3)))
    assert (role.balloting_of(VIEW).promised == BALLOT) == kept
