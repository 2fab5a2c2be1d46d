"""What follows from a view that we trust: signatures of a quorum of its voters, over as many views as they reach."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.views.proofs import LINEAGES_KEPT, VIEWS_KEPT, Known, Proofs, follows
from ftnode.protocol.views.succession import fork, next_view
from ftnode.protocol.wire.admission import BETWEEN_MAX
from ftnode.protocol.words.messages import Ballot, Certificate, Link, Proof, Signed
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View
from tests.protocol.situations import VIEW, A, B, C, D, view_of

E = Peer("e", 1)
FOUR = view_of((A,), (B,), (C,), (D,))
NEXT = next_view(VIEW, A, (), (), {}, (), "why")


def signed_by(*peers: Peer) -> Proof:
    return Proof(Ballot(0, peers[0]), tuple(Signed(peer, "") for peer in peers))


@pytest.mark.parametrize(
    ("trusted", "later", "signers", "result"),
    [
        (VIEW, NEXT, (A, B), True),
        (VIEW, NEXT, (B, C), True),
        (VIEW, NEXT, (A,), False),
        (VIEW, NEXT, (D, E, Peer("f", 1)), False),
        (VIEW, NEXT, (A, D, E), False),
        (VIEW, NEXT, (A, Peer("b", 2)), False),
        (VIEW, replace(NEXT, previous="another"), (A, B, C), False),
        (VIEW, replace(NEXT, number=9, previous="far"), (A, B), True),
        (VIEW, replace(NEXT, number=9, previous="far"), (C, D, E), False),
        (VIEW, replace(NEXT, number=2**48 - 1, previous="far"), (D,), False),
        (VIEW, VIEW, (A, B, C), False),
        (VIEW, replace(VIEW, number=2), (A, B, C), False),
        (VIEW, replace(NEXT, lineage=Lineage("other", 0, 3)), (A, B, C), False),
        (VIEW, replace(NEXT, lineage=replace(VIEW.lineage, exact_stages=9)), (A, B, C), False),
        (FOUR, next_view(FOUR, A, (), (), {}, (), "why"), (A, B), True),
        (FOUR, next_view(FOUR, A, (), (), {}, (), "why"), (C, D), False),
    ],
)  # fmt: skip
def test_a_view_follows_that_a_quorum_of_the_trusted_voters_has_signed(
    trusted: View, later: View, signers: tuple[Peer, ...], result: bool
) -> None:
    assert follows(trusted, Known(later, signed_by(*signers))) == result
    assert not follows(trusted, Known(later, None))


def chain(length: int) -> list[Link]:
    """Views from VIEW on in which two more of the voters are others each time, so that each proof leads to the next
    view only."""
    view, links = VIEW, list[Link]()
    for index in range(length):
        new = tuple(Peer(f"n{index}{stage}", 1) for stage in range(3))
        signers = view.voters[:2]
        leader = new[0]
        view = View(view.run, view.lineage, view.number + 1, view.digest(), leader, tuple((p,) for p in new), new,
                    (view.number,) * 3, "others")  # fmt: skip
        links.append(Link(view, signed_by(*signers)))
    return links


def certificate(links: list[Link]) -> Certificate:
    """Of the last, with those before it."""
    return Certificate(links[-1].view, True, (), 0, links[-1].proof, tuple(links[:-1]))


@pytest.mark.parametrize(
    ("shown", "reaches"), [([0, 1, 2], 2), ([1, 2], None), ([0, 2], 0), ([2], None), ([2, 1, 0], 0)]
)
def test_the_views_between_lead_as_far_as_each_follows(shown: list[int], reaches: int | None) -> None:
    links, proofs = chain(3), Proofs()
    proofs.keep(VIEW, signed_by(A))
    found = proofs.follow(VIEW, certificate([links[index] for index in shown]))
    assert found == (None if reaches is None else Known(links[reaches].view, links[reaches].proof))


def test_who_went_by_all_of_them_shows_those_that_are_needed() -> None:
    links, proofs = chain(4), Proofs()
    proofs.keep(VIEW, signed_by(A, B, C))
    for link in links:
        proofs.keep(link.view, link.proof)
    shown = proofs.between(VIEW.number, links[3].view)
    assert shown == tuple(links[:3])
    other = Proofs()
    other.keep(VIEW, signed_by(A, B, C))
    assert other.follow(VIEW, certificate([*shown, links[3]])) == Known(links[3].view, links[3].proof)
    assert other.of(links[1].view) == links[1].proof, "they are remembered, for others who ask"


def test_nothing_comes_along_while_most_voters_stay() -> None:
    proofs, view = Proofs(), VIEW
    proofs.keep(view, signed_by(A, B, C))
    for _ in range(20):
        view = next_view(view, A, (), (), {}, (), "again")
        proofs.keep(view, signed_by(A, B))
    assert proofs.between(VIEW.number, view) == ()


def test_what_comes_along_is_bounded_and_so_is_what_is_kept() -> None:
    links, proofs = chain(VIEWS_KEPT + 20), Proofs()
    proofs.keep(VIEW, signed_by(A, B, C))
    for link in links:
        proofs.keep(link.view, link.proof)
    last, oldest = links[-1].view, links[-VIEWS_KEPT].view
    assert len(proofs.between(oldest.number, last)) == BETWEEN_MAX
    assert proofs.between(VIEW.number, last) == () and proofs.of(VIEW) is None, "too long ago"
    for index in range(LINEAGES_KEPT):
        proofs.keep(replace(VIEW, lineage=Lineage(f"l{index}", 0, 3)), signed_by(A))
    assert proofs.of(last) is None


def test_a_proof_is_of_one_view() -> None:
    proofs = Proofs()
    proofs.keep(VIEW, signed_by(A))
    assert proofs.of(VIEW) == signed_by(A)
    assert proofs.of(replace(VIEW, reason="another")) is None and proofs.of(NEXT) is None


@pytest.mark.parametrize(("signers", "result"), [((D, B), True), ((D,), False), ((Peer("a", 2),), False)])
def test_who_signs_is_known_from_a_view_that_was_proved(signers: tuple[Peer, ...], result: bool) -> None:
    proofs = Proofs()
    proofs.keep(view_of((D,), (D,), (D,), number=1, lineage=Lineage("shown", 0, 3)), None)
    proofs.keep(VIEW, signed_by(A, B))
    assert proofs.akin(signed_by(*signers)) == result
    assert not proofs.akin(None)


def test_the_view_before_a_proved_one_is_as_good() -> None:
    proofs, without = Proofs(), next_view(VIEW, A, {C}, (), {}, (), "without c")
    proofs.keep(VIEW, None)
    assert not proofs.akin(signed_by(C))
    proofs.keep(without, signed_by(A, B))
    assert proofs.akin(signed_by(C))
    proofs.keep(replace(VIEW, reason="another"), None)
    assert not proofs.akin(signed_by(C))


def test_a_fork_that_is_proved_vouches_for_the_view_that_it_comes_out_of() -> None:
    """Which the directory alone has shown us; also when we come by a later view of the fork."""
    shown = replace(VIEW, number=5)
    forked = fork(shown, B, 1, {B}, "no quorum")
    later = replace(forked, number=forked.number + 1, previous=forked.digest())
    for first in (forked, later):
        proofs = Proofs()
        proofs.keep(shown, None)
        assert not proofs.akin(signed_by(C))
        proofs.keep(first, None)
        assert not proofs.akin(signed_by(C)), "a fork that nobody has proved shows nothing"
        proofs.keep(first, signed_by(B))
        assert proofs.akin(signed_by(C))
        assert not proofs.akin(signed_by(D))
