"""Who votes where members belong together (rule 44)."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from ftnode.protocol.views.succession import genesis, next_view
from ftnode.protocol.views.votes import bounded
from ftnode.protocol.words.crowds import Crowds
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import Lineage, View


def peers(names: str) -> list[Peer]:
    return [Peer(f"{name}{number}", 1) for number, name in enumerate(names)]


def at(order: list[Peer]) -> Crowds:
    """Each at the network that its name begins with."""
    return Crowds(networks={peer: peer.id[0] for peer in order if peer.id[0] != "-"})


def voting(names: str, leader: int = 0) -> str:
    order = peers(names)
    return "".join(peer.id[0] for peer in bounded(order, order[leader], (), at(order)))


@pytest.mark.parametrize(
    ("names", "leader", "votes"),
    [
        ("a", 0, "a"),
        ("aaaa", 0, "aaaa"),  # one crowd votes as it is
        ("----", 0, "----"),  # of which nothing is known
        ("aabbbbbb", 0, "aabb"),  # the leader's half is a quorum
        ("aabbbbbb", 2, "aab"),
        ("aaaaaab", 0, "aaaaaab"),  # of two, the older one stays as it is
        ("abc" + 50 * "d", 0, "abcddd"),
        ("abc" + 50 * "d", 10, "abcdd"),
        ("abc" + 50 * "-", 0, "abc---"),
        (50 * "a" + "bc", 0, "abc"),
        ("aabbc", 0, "aabbc"),
    ],
)
def test_no_crowd_is_a_quorum_while_others_could_vote(names: str, leader: int, votes: str) -> None:
    assert voting(names, leader) == votes


def test_those_vouched_for_count_with_the_listed_volunteer_that_they_come_from() -> None:
    order = peers("abc" + 20 * "d")
    crowds = Crowds(vouchers={peer.id: order[1].id for peer in order[3:]})
    votes = bounded(order, order[0], (), crowds)
    assert votes == (order[0], order[1], order[2], order[3])[: len(votes)] and len(votes) == 4


def view_of(voters: tuple[Peer, ...], leader: Peer) -> View:
    return View("run", Lineage("l", 0, 1), 1, "", leader, (voters,), voters, (0,), "")


@pytest.mark.parametrize("seed", range(300))
def test_a_crowd_is_no_quorum_where_there_are_three(seed: int) -> None:
    chance = Random(seed)
    order = peers("".join(chance.choices("abcd-", (1, 2, 3, 8, 2), k=chance.randint(1, 40))))
    leader, crowds = chance.choice(order), at(order)
    vouched = {peer.id: chance.choice(order[:3]).id for peer in order[3:] if chance.random() < 0.3}
    crowds = crowds._replace(vouchers=vouched)
    votes = bounded(order, leader, (), crowds)
    assert leader in votes and list(votes) == [peer for peer in order if peer in votes]
    assert bounded(votes, leader, (), crowds) == votes, "what is bounded stays as it is"
    for crowd_of in crowds.kinds(order):
        sizes = Counter(crowd_of[peer] for peer in votes)
        for crowd in sizes if len(sizes) > 2 else ():
            theirs = [peer for peer in votes if crowd_of[peer] == crowd]
            assert not view_of(votes, leader).is_quorum(theirs)


def test_who_will_be_alone_with_a_stage_votes_before_others_of_its_crowd() -> None:
    """It was Ready for the commit that the view settles, and nobody else has the stage."""
    a, old, new = peers("abb")
    view = genesis("run", a, (0, 1), 2)
    view = next_view(view, a, (), [(1, a)], {}, [a, old], "", [(1, old)])
    after = next_view(view, a, (), [(1, old)], {}, [a, old], "", [(1, new)], (), at([a, old, new]))
    assert after.holders[1] == (new,) and new in after.voters
