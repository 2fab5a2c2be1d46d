"""Signatures are made when votes and certificates leave, and verified before the core hears of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ftnode.node.home.identity import peer_id_of, verify
from ftnode.node.links import signatures
from ftnode.node.links.seals import Seals
from ftnode.protocol.views.succession import genesis
from ftnode.protocol.words.errors import LocalError, PeerError
from ftnode.protocol.words.messages import (
    Accepted,
    Ballot,
    Certificate,
    Convicted,
    Judge,
    Link,
    MembersOrder,
    Message,
    Poisoned,
    Proof,
    Ready,
    Resign,
    Roll,
    Rolled,
    Share,
    Signed,
    UndoVote,
    Verdict,
    founding_proof,
)
from ftnode.protocol.words.types import Attempt, Peer, Version

KEYS = [Ed25519PrivateKey.generate() for _ in range(3)]
A, B, C = PEERS = [Peer(peer_id_of(key.public_key().public_bytes_raw()), 7) for key in KEYS]
VIEW, OTHER = genesis("r", A, (0, 1, 2), 3), genesis("r", A, (0, 1, 2), 3, 1)
BALLOT = Ballot(2, B)


def of(peer: Peer) -> Seals:
    return Seals(peer, KEYS[PEERS.index(peer)].sign)


def proof(*peers: Peer) -> Proof:
    """As the core of the last one has it, which had the others' signatures from the wire."""
    made = [Signed(peer, "" if peer == peers[-1] else vote(peer).signature) for peer in peers]
    return Proof(BALLOT, tuple(made))


def vote(peer: Peer) -> Accepted:
    sealed = of(peer).sealed(Accepted("l", 1, BALLOT, VIEW.digest()))
    assert isinstance(sealed, Accepted)
    return sealed


def shown(made: Proof | None, between: tuple[Link, ...] = ()) -> Certificate:
    return Certificate(VIEW, True, (), 0, made, between)


def test_what_leaves_is_signed_and_what_comes_is_verified() -> None:
    Seals(C).check(A, vote(A))
    sealed = of(B).sealed(shown(proof(A, B), (Link(VIEW, proof(B)),)))
    Seals(C).check(C, sealed)
    founded = of(A).sealed(Certificate(OTHER, True, (), 0, founding_proof(A)))
    Seals(C).check(B, founded)


@pytest.mark.parametrize(
    "lie",
    [
        replace(vote(A), digest=OTHER.digest()),
        replace(vote(A), ballot=Ballot(3, B)),
        replace(vote(A), signature=""),
        replace(vote(A), signature="no base64!"),
        replace(vote(A), signature=vote(B).signature),
        shown(Proof(BALLOT, (Signed(A, ""),))),
        shown(Proof(BALLOT, (Signed(A, vote(A).signature), Signed(B, vote(A).signature)))),
        shown(Proof(Ballot(3, B), (Signed(A, vote(A).signature),))),
        Certificate(OTHER, True, (), 0, Proof(BALLOT, (Signed(A, vote(A).signature),))),
        shown(Proof(BALLOT, (Signed(A._replace(nonce=8), vote(A).signature),))),
        shown(None, (Link(OTHER, Proof(BALLOT, (Signed(A, vote(A).signature),))),)),
        shown(Proof(BALLOT, (Signed(Peer("no id", 1), vote(A).signature),))),
    ],
)
def test_a_signature_of_something_else_is_an_offence(lie: Message) -> None:
    with pytest.raises(PeerError, match="a signature that is not by"):
        Seals(C).check(A, lie)


def test_the_vote_is_the_senders() -> None:
    with pytest.raises(PeerError):
        Seals(C).check(B, vote(A))


def test_each_signature_is_verified_once_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def verify(peer_id: str, data: bytes, signature: bytes) -> bool:
        nonlocal asked
        asked += 1
        return True

    monkeypatch.setattr(signatures, "VERIFIED_MAX", 10)
    here, sealed = Seals(C, verify=verify), of(B).sealed(shown(proof(A, B)))
    for _ in range(5):
        here.check(B, sealed)
    assert asked == 2
    for number in range(100):
        here.check(A, replace(vote(A), ballot=Ballot(number, B)))
    assert asked == 101 and len(here._signatures._verified) == 10


def test_each_vote_is_signed_once_and_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def sign(data: bytes) -> bytes:
        asked.append(data)
        return KEYS[1].sign(data)

    monkeypatch.setattr(signatures, "MADE_MAX", 10)
    here = Seals(B, sign)

    def said(number: int) -> str:
        sealed = here.sealed(Accepted("l", 1, Ballot(number, B), VIEW.digest()))
        assert isinstance(sealed, Accepted)
        Seals(C).check(B, sealed)
        return sealed.signature

    assert said(2) is said(2) and len(asked) == 1
    shown_with_it = here.sealed(shown(proof(A, B)))
    Seals(C).check(C, shown_with_it)
    assert len(asked) == 1, "the same vote, in a certificate"
    assert said(3) != said(2)
    for number in range(100, 120):
        said(number)
    assert len(asked) == 22 and len(here._signatures._made) == 10
    said(2)
    assert len(asked) == 23, "forgotten, and signed anew"


def test_what_is_not_signed_passes_and_without_a_key_nothing_is_signed() -> None:
    resign = Resign("l", 3, (1,), False, False, "tired")
    assert Seals(A).sealed(resign) is resign and Seals(A).sealed(shown(None)) == shown(None)
    Seals(A).check(B, resign)
    with pytest.raises(LocalError):
        Seals(A).sealed(Accepted("l", 1, BALLOT, VIEW.digest()))


ROLL = Roll(VIEW, Version(10, "commit", Attempt(1, 10)), ("x", "y", "z"), ())


def signed_roll(*peers: Peer) -> Roll:
    """As each of them sends it."""
    roll = ROLL
    for peer in peers:
        sealed = of(peer).sealed(Rolled("l", 1, replace(roll, signed=(*roll.signed, Signed(peer, ""))), False))
        assert isinstance(sealed, Rolled)
        roll = sealed.roll
    return roll


def test_a_roll_is_signed_like_a_view_and_checked_wherever_it_is_shown() -> None:
    roll = signed_roll(A, B)
    for message in (Rolled("l", 1, roll, True), replace(shown(None), roll=roll)):
        Seals(C).check(A, message)
    other = replace(ROLL.version, step=11)
    for false in (
        replace(roll, version=other), replace(roll, digests=("x", "y", "w")), replace(roll, view=OTHER),
        replace(roll, signed=(Signed(C, roll.signed[0].signature),)), replace(roll, signed=(Signed(C, ""),)),
    ):  # fmt: skip
        for message in (Rolled("l", 1, false, True), replace(shown(None), roll=false)):
            with pytest.raises(PeerError, match="a signature that is not by"):
                Seals(C).check(A, message)


def test_a_vote_is_no_signature_of_a_roll() -> None:
    false = replace(ROLL, signed=(Signed(A, vote(A).signature),))
    with pytest.raises(PeerError):
        Seals(C).check_roll(false)


ORDER = MembersOrder(VIEW, 1, 40, ())


def voted(peer: Peer, order: MembersOrder = ORDER) -> UndoVote:
    """As it leaves the voter."""
    sealed = of(peer).sealed(UndoVote("l", 1, order.view.digest(), order.number, order.step, 0))
    assert isinstance(sealed, UndoVote)
    Seals(C).check(peer, sealed)
    return sealed


def test_an_order_of_members_is_made_of_their_votes_and_shown_with_a_certificate() -> None:
    """The voter's own is filled in when it shows the order."""
    mine = replace(ORDER, signed=(Signed(A, ""), Signed(B, voted(B).signature)))
    sealed = of(A).sealed(replace(shown(None), order=mine))
    assert isinstance(sealed, Certificate) and sealed.order == of(A).sealed_order(mine) != mine
    Seals(C).check(A, sealed)
    assert of(C).sealed_order(mine) == mine


@pytest.mark.parametrize(
    "change", [{"number": 2}, {"step": 41}, {"view": OTHER}, {"signed": (Signed(A, voted(B).signature),)}]
)
def test_a_vote_is_for_one_order_in_one_view_by_one_voter(change: dict[str, Any]) -> None:
    order = replace(ORDER, signed=(Signed(B, voted(B).signature),))
    Seals(C).check_order(order)
    false = replace(order, **change)
    for message in (replace(shown(None), order=false), replace(voted(B), step=39)):
        with pytest.raises(PeerError, match="a signature that is not by"):
            Seals(C).check(B, message)


SAID = Poisoned("l", 1, 7, Attempt(1, 2), 1, -1, "it is far off", B, 1.0)
WORD = Verdict(Judge.of(A, SAID, B), True, "")


def test_what_is_said_of_somebody_is_signed_and_shown_to_others() -> None:
    said, word = of(A).sealed(SAID), of(C).sealed(WORD)
    assert isinstance(said, Poisoned) and isinstance(word, Verdict) and said.signature and word.signature
    Seals(B).check(A, said)
    Seals(B).check(C, word)
    Seals(B).check(B, Convicted(A, said, ((C, word),)))
    assert of(A).sealed(replace(SAID, distance=0.0)) == replace(SAID, distance=0.0)
    by_its_judge = of(C).sealed(Convicted(A, said, ((C, WORD),)))
    assert by_its_judge == Convicted(A, said, ((C, word),))


def test_nobody_can_change_what_another_said_of_somebody() -> None:
    said, word = of(A).sealed(SAID), of(C).sealed(WORD)
    assert isinstance(said, Poisoned) and isinstance(word, Verdict)
    for sender, message in (
        (A, replace(said, giver=C)), (A, replace(said, distance=2.0)), (B, said), (A, SAID), (C, WORD),
        (C, replace(word, guilty=False)), (A, word), (C, replace(word, about=replace(word.about, accused=A))),
        (B, Convicted(A, replace(said, step=8), ((C, word),))), (B, Convicted(A, said, ((B, word),))),
        (B, Convicted(C, said, ((C, word),))), (B, Convicted(A, said, ((C, WORD),))),
    ):  # fmt: skip
        with pytest.raises(PeerError, match="a signature that is not by"):
            Seals(B).check(sender, message)


SHARE = Share("l", 1, 7, Attempt(1, 2), 1, ((0, 1),), "")
READY = Ready("l", 1, 7, Attempt(1, 2), (), 0.0, 0, None)


def test_what_somebody_has_accumulated_is_signed_and_shown_to_others() -> None:
    share = of(A).sealed(SHARE)
    assert isinstance(share, Share) and share.signature
    Seals(B).check(A, share)
    ready = of(B).sealed(replace(READY, claims=((A, share), (B, replace(SHARE, visits=((1, 1),))))))
    assert isinstance(ready, Ready) and all(claim.signature for _, claim in ready.claims)
    Seals(C).check(B, ready)
    judge = Judge.of(C, SAID, A, share)
    Seals(B).check(C, judge)
    Seals(C).check(B, of(B).sealed(Verdict(judge, True, "")))
    unsigned = replace(SHARE, signature=None)
    assert of(A).sealed(unsigned) == unsigned, "in a run without checks"


def test_nobody_can_say_what_another_has_accumulated() -> None:
    share = of(A).sealed(SHARE)
    assert isinstance(share, Share)
    other = replace(share, visits=((1, 1),))
    word = of(C).sealed(Verdict(Judge.of(C, SAID, A, other), True, ""))
    for sender, message in (
        (B, share), (A, other), (A, SHARE), (B, replace(READY, claims=((A, other),))),
        (B, replace(READY, claims=((A, replace(SHARE, signature=None)),))), (C, word),
        (B, replace(READY, claims=((B, share),))), (B, Judge.of(C, SAID, A, other)), (B, Judge.of(C, SAID, B, share)),
    ):  # fmt: skip
        with pytest.raises(PeerError, match="a signature that is not by"):
            Seals(C).check(sender, message)


def test_what_a_member_says_to_all_is_signed_once() -> None:
    made: list[bytes] = []

    def sign(data: bytes) -> bytes:
        made.append(data)
        return KEYS[0].sign(data)

    here = Seals(A, sign)
    told = here.sealed(SHARE)
    ready = here.sealed(replace(READY, claims=((A, SHARE),)))
    assert isinstance(ready, Ready) and here.sealed(SHARE) == told == ready.claims[0][1] and len(made) == 1


def test_what_a_member_said_is_verified_once_whoever_says_it_again() -> None:
    verified: list[str] = []

    def count(peer_id: str, data: bytes, signature: bytes) -> bool:
        verified.append(peer_id)
        return verify(peer_id, data, signature)

    here, told = Seals(C, KEYS[2].sign, count), of(A).sealed(SHARE)
    assert isinstance(told, Share)
    here.check(A, told)
    here.check(B, replace(READY, claims=((A, told),)))
    assert verified == [A.id]
    ours = here.sealed(SHARE)
    assert isinstance(ours, Share)
    here.check(B, replace(READY, claims=((C, ours),)))
    assert verified == [A.id], "our own"
    for lie in (replace(told, visits=((1, 1),)), replace(told, view=4), SHARE):
        with pytest.raises(PeerError):
            here.check(B, replace(READY, claims=((A, lie),)))
    with pytest.raises(PeerError):
        here.check(B, replace(READY, claims=((B, told),)))
