"""The vote on the next view: who may propose at which ballot, what a voter promises, what a quorum chooses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from ftnode.protocol.views.ballot import Balloting, adopt
from ftnode.protocol.views.succession import next_view
from ftnode.protocol.words.effects import Effect, Send
from ftnode.protocol.words.messages import (
    Accepted,
    Ballot,
    Link,
    Message,
    Outbid,
    Prepare,
    Promise,
    Proof,
    Propose,
    Signed,
)
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.protocol.situations import NOW, VIEW, A, B, C, D, view_of

FOUR = view_of((A,), (B,), (C,), (D,))
BY_A, BY_B, BY_C = (next_view(VIEW, leader, (), (), {}, (), f"by {leader.id}") for leader in (A, B, C))


def sent(effects: Iterable[Effect]) -> dict[Peer, Message]:
    return {each.to: each.message for each in effects if isinstance(each, Send)}


def promise(ballot: Ballot, accepted: Ballot | None = None, view: View | None = None) -> Promise:
    return Promise("lineage", 4, ballot, accepted, view)


def accepted(ballot: Ballot, view: View = BY_A, signature: str = "") -> Accepted:
    return Accepted("lineage", 4, ballot, view.digest(), signature)


def prepare(number: int, proposer: Peer) -> Prepare:
    return Prepare("lineage", 4, Ballot(number, proposer))


# -- the proposer


@pytest.mark.parametrize(
    ("me", "promised", "outbid", "before", "expected"),
    [
        (A, None, None, 0, Propose(Ballot(0, A), BY_A)),
        (A, None, None, 1, prepare(1, A)),
        (A, None, None, 2, prepare(2, A)),
        (A, Ballot(5, C), None, 0, prepare(6, A)),
        (A, Ballot(0, A), None, 0, prepare(1, A)),
        (B, None, None, 0, prepare(1, B)),
        (B, None, None, 1, prepare(2, B)),
        (B, Ballot(3, C), None, 0, prepare(4, B)),
        (B, None, Ballot(7, C), 1, prepare(8, B)),
        (B, Ballot(9, C), Ballot(7, C), 1, prepare(10, B)),
    ],
)  # fmt: skip
def test_ballot_0_is_the_leaders_first_and_all_others_go_above_what_was_seen(
    me: Peer, promised: Ballot | None, outbid: Ballot | None, before: int, expected: Message
) -> None:
    role = Balloting(me, VIEW)
    for _ in range(before):
        role.propose(BY_A, NOW)
    if promised is not None:
        assert sent(role.on_prepare(C, Prepare("lineage", 4, promised)))
    if outbid is not None:
        role.on_outbid(C, Outbid("lineage", 4, outbid))
    assert sent(role.propose(BY_A, NOW)) == dict.fromkeys((A, B, C), expected)
    assert role.proposing and role.since == NOW


QUORUMS = [
    (VIEW, (B,), False),
    (VIEW, (B, B), False),
    (VIEW, (B, D), False),
    (VIEW, (B, C), True),
    (VIEW, (A, C), True),
    (FOUR, (C, D), False),
    (FOUR, (A, B), True),
    (FOUR, (B, C, D), True),
]


@pytest.mark.parametrize(("view", "sayers", "enough"), QUORUMS)
def test_more_than_half_or_half_with_the_leader_have_to_promise(
    view: View, sayers: tuple[Peer, ...], enough: bool
) -> None:
    role, proposal = Balloting(B, view), next_view(view, B, (), (), {}, (), "why")
    role.propose(proposal, NOW)
    *early, last = [sent(role.on_promise(peer, promise(Ballot(1, B)))) for peer in sayers]
    assert last == (dict.fromkeys(view.voters, Propose(Ballot(1, B), proposal)) if enough else {})
    assert not any(early)


@pytest.mark.parametrize(
    "odd",
    [
        replace(BY_A, number=9),
        replace(BY_A, number=VIEW.number),
        replace(BY_A, previous="another"),
        replace(BY_A, lineage=replace(VIEW.lineage, id="another")),
        replace(BY_A, lineage=replace(VIEW.lineage, forks=1)),
        VIEW,
    ],
)
def test_a_view_that_does_not_follow_was_accepted_by_nobody(odd: View) -> None:
    role = Balloting(C, VIEW)
    role.propose(BY_C, NOW)
    assert not role.on_promise(B, promise(Ballot(1, C), Ballot(0, A), odd)) and role.preparing
    assert not role.on_promise(C, promise(Ballot(1, C)))
    assert sent(role.on_promise(A, promise(Ballot(1, C)))) == dict.fromkeys((A, B, C), Propose(Ballot(1, C), BY_C))
    assert not Balloting(B, VIEW).on_propose(A, Propose(Ballot(0, A), odd))


@pytest.mark.parametrize(("view", "sayers", "enough"), QUORUMS)
def test_more_than_half_or_half_with_the_leader_have_to_accept(
    view: View, sayers: tuple[Peer, ...], enough: bool
) -> None:
    role, proposal = Balloting(A, view), next_view(view, A, (), (), {}, (), "why")
    role.propose(proposal, NOW)
    said = [accepted(Ballot(0, A), proposal, f"by {peer.id}") for peer in sayers]
    *early, last = [role.on_accepted(peer, each) for peer, each in zip(sayers, said, strict=True)]
    signed = tuple(Signed(peer, f"by {peer.id}") for peer in sayers)
    assert last == (Link(proposal, Proof(Ballot(0, A), signed)) if enough else None)
    assert not any(early)


def test_who_accepts_another_view_than_ours_does_not_count() -> None:
    role = Balloting(A, VIEW)
    role.propose(BY_A, NOW)
    assert role.on_accepted(A, accepted(Ballot(0, A))) is None
    assert role.on_accepted(B, accepted(Ballot(0, A), BY_B)) is None
    assert role.on_accepted(C, accepted(Ballot(0, A))) is not None


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([], BY_C),
        ([None, None], BY_C),
        ([(Ballot(0, A), BY_A), None], BY_A),
        ([(Ballot(0, A), BY_A), (Ballot(2, B), BY_B)], BY_B),
        ([(Ballot(2, B), BY_B), (Ballot(0, A), BY_A)], BY_B),
        ([(Ballot(2, A), BY_A), (Ballot(2, B), BY_B)], BY_B),
    ],
)
def test_the_view_accepted_at_the_highest_ballot_is_adopted(
    told: list[tuple[Ballot, View] | None], expected: View
) -> None:
    said = [promise(Ballot(3, C), *(each or (None, None))) for each in told]
    assert adopt(dict(zip((A, B), said, strict=False)), BY_C) == expected
    role = Balloting(C, VIEW)
    role.on_outbid(B, Outbid("lineage", 4, Ballot(2, B)))
    role.propose(BY_C, NOW)
    effects = [role.on_promise(peer, each) for peer, each in zip((A, B), said, strict=False)]
    if told:
        assert sent(effects[-1]) == dict.fromkeys((A, B, C), Propose(Ballot(3, C), expected))


@pytest.mark.parametrize(
    ("sender", "answer"),
    [
        (B, promise(Ballot(2, C))),
        (B, promise(Ballot(1, A))),
        (D, promise(Ballot(1, C))),
        (B, accepted(Ballot(1, C), BY_C)),
        (D, Outbid("lineage", 4, Ballot(9, D))),
    ],
)
def test_an_answer_to_another_ballot_or_of_a_stranger_or_too_early_counts_for_nothing(
    sender: Peer, answer: Promise | Accepted | Outbid
) -> None:
    role = Balloting(C, VIEW)
    role.propose(BY_C, NOW)
    if isinstance(answer, Promise):
        assert role.on_promise(sender, answer) == []
    elif isinstance(answer, Accepted):
        assert role.on_accepted(sender, answer) is None
    else:
        role.on_outbid(sender, answer)
    assert role.preparing and sent(role.resend()).keys() == {A, B, C}
    assert sent(role.propose(BY_C, NOW))[A] == prepare(2, C)


def test_only_voters_that_have_not_answered_are_asked_again() -> None:
    role = Balloting(B, VIEW)
    assert role.resend() == [] and not role.proposing
    role.propose(BY_B, NOW)
    role.on_promise(A, promise(Ballot(1, B)))
    assert sent(role.resend()) == {B: prepare(1, B), C: prepare(1, B)}
    role.on_promise(C, promise(Ballot(1, B)))
    role.on_accepted(C, accepted(Ballot(1, B), BY_B))
    assert sent(role.resend()) == dict.fromkeys((A, B), Propose(Ballot(1, B), BY_B))


# -- the voter


@pytest.mark.parametrize(
    ("me", "promised", "sender", "asked", "expected"),
    [
        (B, None, A, Ballot(0, A), promise(Ballot(0, A))),
        (B, None, C, Ballot(1, C), promise(Ballot(1, C))),
        (B, Ballot(1, C), C, Ballot(1, C), promise(Ballot(1, C))),
        (B, Ballot(1, C), A, Ballot(2, A), promise(Ballot(2, A))),
        (B, Ballot(1, C), A, Ballot(1, A), Outbid("lineage", 4, Ballot(1, C))),
        (B, Ballot(2, C), C, Ballot(1, C), Outbid("lineage", 4, Ballot(2, C))),
        (B, None, D, Ballot(1, D), None),
        (D, None, A, Ballot(1, A), None),
    ],
)
def test_a_voter_promises_a_ballot_that_is_not_below_its_last_promise(
    me: Peer, promised: Ballot | None, sender: Peer, asked: Ballot, expected: Message | None
) -> None:
    role = Balloting(me, VIEW)
    if promised is not None:
        role.on_prepare(promised.proposer, Prepare("lineage", 4, promised))
    answer = sent(role.on_prepare(sender, Prepare("lineage", 4, asked)))
    assert answer == ({} if expected is None else {sender: expected})
    assert role.promised == (asked if isinstance(expected, Promise) else promised)


OTHER_PARENT = next_view(view_of((A,), (C,), (B,)), A, (), (), {}, (), "of another view")
TOO_FAR = next_view(BY_A, A, (), (), {}, (), "one later")


@pytest.mark.parametrize(
    ("me", "promised", "sender", "ballot", "view", "answer"),
    [
        (B, None, A, Ballot(0, A), BY_A, accepted(Ballot(0, A))),
        (B, None, C, Ballot(1, C), BY_C, accepted(Ballot(1, C), BY_C)),
        (B, Ballot(1, C), C, Ballot(1, C), BY_C, accepted(Ballot(1, C), BY_C)),
        (B, Ballot(1, C), A, Ballot(0, A), BY_A, Outbid("lineage", 4, Ballot(1, C))),
        (B, None, C, Ballot(0, C), BY_C, None),
        (B, None, D, Ballot(1, D), BY_C, None),
        (D, None, A, Ballot(0, A), BY_A, None),
        (B, None, A, Ballot(0, A), OTHER_PARENT, None),
        (B, None, A, Ballot(0, A), TOO_FAR, None),
    ],
)
def test_a_voter_accepts_what_follows_its_view_unless_it_promised_more(
    me: Peer, promised: Ballot | None, sender: Peer, ballot: Ballot, view: View, answer: Message | None
) -> None:
    role = Balloting(me, VIEW)
    if promised is not None:
        role.on_prepare(promised.proposer, Prepare("lineage", 4, promised))
    assert sent(role.on_propose(sender, Propose(ballot, view))) == ({} if answer is None else {sender: answer})
    assert role.accepted == ((ballot, view) if isinstance(answer, Accepted) else None)


def test_a_promise_tells_what_was_accepted_before() -> None:
    role = Balloting(B, VIEW)
    role.on_propose(A, Propose(Ballot(0, A), BY_A))
    assert sent(role.on_prepare(C, prepare(1, C))) == {C: promise(Ballot(1, C), Ballot(0, A), BY_A)}
    role.on_propose(C, Propose(Ballot(1, C), BY_C))
    assert sent(role.on_prepare(A, prepare(2, A))) == {A: promise(Ballot(2, A), Ballot(1, C), BY_C)}
