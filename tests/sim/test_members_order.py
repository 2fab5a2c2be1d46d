"""Swarms that go back to a snapshot because most of their voters want it, without the author (rule 47)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.leader.undoing import Undoing
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.views import undoing_votes
from ftnode.protocol.views.following import Following
from ftnode.protocol.views.proofs import Proofs
from ftnode.protocol.views.succession import fork
from ftnode.protocol.views.undoing_votes import UndoingVotes, next_number
from ftnode.protocol.words.events import Ordered, Received, WantsUndo
from ftnode.protocol.words.messages import NO_STEP, Certificate, MembersOrder, Signed, UndoVote, founding_proof
from ftnode.protocol.words.types import Peer, RollbackOrder
from tests.sim.checks import Violation
from tests.sim.disks import Disks
from tests.sim.planted import patched
from tests.sim.targets import best_view
from tests.sim.test_restart import Swarm
from tests.sim.test_rollback import BACK_AT, ORDER, OVER, SEEDS, SETTINGS, SPOILT_AT, ends_at_the_order, halves, spoilt

WANTED = ORDER.step
LEASE = SETTINGS.lease_seconds


def voters(swarm: Swarm) -> list[Peer]:
    """Who votes; the leader comes last."""
    view = best_view(swarm.world)
    assert view is not None
    return sorted(view.voters, key=lambda peer: (peer == view.leader, peer))


def want(swarm: Swarm, peers: Collection[Peer], step: int = WANTED) -> None:
    for peer in peers:
        swarm.world.deliver(swarm.world.by_id[peer.id], WantsUndo(step))


def numbers(swarm: Swarm) -> set[int]:
    return {host.participant.order.number for host in swarm.world.live()}


def nothing_happens(swarm: Swarm, seconds: float = 20.0) -> None:
    lineage = best_view(swarm.world)
    swarm.world.run(swarm.world.now + seconds)
    after = best_view(swarm.world)
    assert lineage is not None and after is not None and after.lineage == lineage.lineage
    assert numbers(swarm) == {0} and not swarm.installed


def in_mid_step(seed: int, after: float = 0.0) -> None:
    swarm = spoilt(seed, after)
    want(swarm, voters(swarm)[:3])
    ends_at_the_order(swarm)
    assert {base.step for *_, base in swarm.installed} == {BACK_AT}


def half_is_too_few(seed: int) -> None:
    """Two of four, also where the leader is one of them."""
    swarm = spoilt(seed)
    want(swarm, voters(swarm)[2:])
    nothing_happens(swarm)


def they_want_other_steps(seed: int) -> None:
    swarm = spoilt(seed)
    want(swarm, voters(swarm)[:2])
    want(swarm, voters(swarm)[2:], WANTED - 1)
    nothing_happens(swarm)


def comes_back(seed: int) -> None:
    """A member that was away comes with weights and a disk of later steps."""
    swarm = spoilt(seed, settings=replace(SETTINGS, replicas=2), peers=8)
    world = swarm.world
    away, *others = voters(swarm)
    world.pause(world.by_id[away.id])
    want(swarm, others)
    world.at(world.now + 20.0, world.resume, (world.by_id[away.id],))
    ends_at_the_order(swarm)


def split(seed: int) -> None:
    """Half of the swarm was cut off, and has gone on by itself, farther than the others. Its voters never signed: what
    the other half ordered, which is too few of all, binds them no more than before the split."""
    swarm = spoilt(seed, settings=replace(SETTINGS, replicas=2), peers=8)
    world = swarm.world
    far, links = halves(swarm)
    world.network.block(links)
    world.run(world.now + 15.0)  # each half knows its own voters
    want(swarm, [host.peer for host in world.live() if host.peer.id not in far])
    world.run(world.now + 25.0)
    assert {host.peer.id: host.participant.order.number for host in world.live()} == {
        host.peer.id: int(host.peer.id not in far) for host in world.live()
    }
    farthest = max(world.by_id[name].participant.situation.highest_step for name in far)
    world.network.heal(links)
    is_one(swarm)
    assert numbers(swarm) == {0} and not world.disks.orders and world.ledger.top_commit() > farthest


def is_one(swarm: Swarm) -> None:
    """All go by one lineage, which trains."""
    world = swarm.world
    world.run(world.now + 40.0)
    assert len({host.view.lineage.id if host.view else "" for host in world.live()}) == 1
    swarm.goes_on()


def alone(seed: int) -> None:
    """A member was cut off, went on by itself, and its owner wanted to roll back. It comes home, and leads later."""
    swarm = spoilt(seed, settings=replace(SETTINGS, replicas=2), peers=8)
    world, one = swarm.world, voters(swarm)[0]
    others = [host.peer.id for host in world.live() if host.peer != one]
    links = {pair for other in others for pair in ((one.id, other), (other, one.id))}
    world.network.block(links)
    world.run(world.now + 20.0)
    want(swarm, [one])
    world.run(world.now + 1.0)
    assert numbers(swarm) == {0, 1}
    world.network.heal(links)
    world.run(world.now + 40.0, lambda: numbers(swarm) == {0})  # a member again
    assert numbers(swarm) == {0} and not world.disks.orders
    swarm.goes_on()


def comes_later(seed: int) -> None:
    """Somebody stands by, and somebody else comes when all is over."""
    swarm = spoilt(seed, peers=5)
    want(swarm, voters(swarm)[:3])
    swarm.until(BACK_AT + 2, 60.0)
    swarm.world.start("later", 1, True)
    ends_at_the_order(swarm)
    assert numbers(swarm) == {ORDER.number}


def the_author_orders_too(seed: int, before: bool) -> None:
    """At the same moment, when neither knows of the other. It is told to one member alone."""
    swarm = spoilt(seed)
    world, (first, *others) = swarm.world, voters(swarm)
    told = Ordered(RollbackOrder(2, 11))
    if before:
        world.deliver(world.by_id[first.id], told)
    want(swarm, others)
    world.run(world.now + 0.05)
    world.deliver(world.by_id[first.id], told)
    is_one(swarm)
    for host in world.live():  # the manifest goes round
        world.deliver(host, told)
    is_one(swarm)
    view = best_view(world)
    assert view is not None and view.lineage.order == 2
    assert view.lineage.start is not None and view.lineage.start.step == 8


def starts_again(seed: int) -> None:
    """All are switched off after they have gone back, and their disks have later steps that are undone as well."""
    swarm = spoilt(seed)
    want(swarm, voters(swarm)[:3])
    swarm.until(BACK_AT + 3, 60.0)
    swarm.commits.clear()
    swarm.until(BACK_AT + 4)
    swarm.power_cut()
    swarm.until(OVER)
    assert {base.step for *_, base in swarm.installed} == {BACK_AT}
    view = best_view(swarm.world)
    assert view is not None and view.lineage.order == ORDER.number


@pytest.mark.parametrize("after", [0.0, 0.3])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_swarm_goes_back_when_most_of_its_voters_want_it(seed: int, after: float) -> None:
    in_mid_step(seed, after)


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_the_voters_are_too_few(seed: int) -> None:
    half_is_too_few(seed)


def test_nothing_happens_while_they_want_other_steps() -> None:
    they_want_other_steps(1)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_comes_back_with_the_undone_lineage_gives_it_up(seed: int) -> None:
    comes_back(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_half_of_a_split_swarm_binds_the_other_half_no_more_than_before(seed: int) -> None:
    split(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_who_was_alone_brings_no_order_home(seed: int) -> None:
    alone(seed)


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_orders_of_the_author_and_of_members_at_one_moment_split_nobody(seed: int, before: bool) -> None:
    the_author_orders_too(seed, before)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restart_does_not_go_on_from_what_is_undone(seed: int) -> None:
    starts_again(seed)


def test_a_wish_that_is_taken_back_does_not_count() -> None:
    swarm = spoilt(1)
    first, *others = voters(swarm)[:3]
    want(swarm, [first])
    want(swarm, [first], NO_STEP)
    swarm.world.run(swarm.world.now + 0.1)
    want(swarm, others)
    nothing_happens(swarm)
    want(swarm, [first])
    ends_at_the_order(swarm)


def test_what_is_wanted_once_more_before_it_is_done_is_no_second_order() -> None:
    swarm = spoilt(1)
    want(swarm, voters(swarm)[:3])
    swarm.world.run(swarm.world.now + 0.05)
    want(swarm, voters(swarm))
    ends_at_the_order(swarm)
    assert [host.participant.undoing_votes.wants() for host in swarm.world.live()] == [None] * 4


def test_an_authors_order_ends_what_was_wanted_before() -> None:
    swarm = spoilt(1)
    want(swarm, voters(swarm)[:2])
    for host in swarm.world.live():
        swarm.world.deliver(host, Ordered(ORDER))
    ends_at_the_order(swarm)
    assert [host.participant.undoing_votes.wants() for host in swarm.world.live()] == [None] * 4


def test_a_wish_outlives_changes_of_the_view() -> None:
    """Votes are of one view; whoever wants it votes again in the next."""
    swarm = spoilt(2, settings=replace(SETTINGS, replicas=2), peers=8)
    world = swarm.world
    one, two, three, *others, _ = voters(swarm)
    want(swarm, [one, two, three])
    world.kill(world.by_id[others[0].id], "power", silently=False)
    world.run(world.now + 4 * LEASE)
    view = best_view(world)
    assert view is not None and others[0] not in view.voters and numbers(swarm) == {0}
    want(swarm, others[1:2])  # with those of before they are four of seven
    ends_at_the_order(swarm)


def test_who_is_gone_does_not_vote_any_more() -> None:
    swarm = spoilt(1)
    first, second, *_ = voters(swarm)
    want(swarm, [first, second])
    world = swarm.world
    world.run(world.now + 1.0)
    s = world.by_id[voters(swarm)[-1].id].participant
    assert {step: len(peers) for step, peers in s.undoing_votes.standing(s.situation).items()} == {WANTED: 2}
    want(swarm, [first, second], NO_STEP)
    world.run(world.now + 1.0)
    assert s.undoing_votes.standing(s.situation) == {}


def test_who_stands_by_follows_and_who_comes_later_too() -> None:
    comes_later(1)


def test_a_leader_that_takes_no_notice_cannot_hide_it() -> None:
    """All know the order though the leader hears no vote; whoever leads next follows it."""
    swarm = spoilt(1)
    leader = voters(swarm)[-1]
    with patched((Undoing, "beat", lambda self, s: Outcome())):
        want(swarm, voters(swarm)[:3])
        swarm.world.run(swarm.world.now + 20.0)
        assert numbers(swarm) == {ORDER.number} and swarm.world.ledger.top_commit() > SPOILT_AT + 5
    swarm.world.kill(swarm.world.by_id[leader.id], "power", silently=False)
    swarm.world.at(swarm.world.now + 8.0, swarm.world.start, (leader.id, 1, True))
    ends_at_the_order(swarm)


def test_the_author_has_the_last_word() -> None:
    swarm = spoilt(2)
    want(swarm, voters(swarm)[:3])
    swarm.until(BACK_AT + 2, 60.0)
    for host in swarm.world.live():
        swarm.world.deliver(host, Ordered(RollbackOrder(2, 15)))
    swarm.until(OVER)
    view = best_view(swarm.world)
    assert view is not None and view.lineage.order == 2
    assert view.lineage.start is not None and view.lineage.start.step == 8


def test_a_second_order_of_members_goes_further_back() -> None:
    swarm = spoilt(2)
    want(swarm, voters(swarm)[:3])
    swarm.until(BACK_AT + 2, 60.0)
    want(swarm, voters(swarm)[:3], 15)
    swarm.until(OVER)
    view = best_view(swarm.world)
    assert view is not None and (view.lineage.order, view.lineage.start and view.lineage.start.step) == (3, 8)


def forged(seed: int) -> None:
    """One member shows an order with the names of the others, one that only it has signed, and a lineage of its own
    that follows such an order."""
    swarm = spoilt(seed)
    world, (liar, *_) = swarm.world, voters(swarm)
    core = world.by_id[liar.id].participant
    view = core.view
    assert view is not None
    names = [MembersOrder(view, 1, WANTED, tuple(Signed(peer, "") for peer in signers))
             for signers in ([liar], sorted(view.voters))]  # fmt: skip
    names.append(MembersOrder(replace(view, voters=(liar,), leader=liar), 1, WANTED, (Signed(liar, ""),)))
    alone = fork(view, liar, 1, [liar], "forged")
    alone = replace(alone, lineage=replace(alone.lineage, order=1))
    follows = Certificate(alone, True, (), SPOILT_AT, founding_proof(liar))
    shows = [replace(core.certificate(), order=order) for order in names]
    shows.append(replace(follows, order=MembersOrder(alone, 1, WANTED, (Signed(liar, ""),))))
    for shown in (world.seals.sealed(liar, each) for each in shows):
        for other in world.live():
            if other.peer != liar and not world.seals.objection(liar, shown):
                world.deliver(other, Received(liar, shown, None))
    for number in range(3):
        vote = UndoVote(view.lineage.id, view.number, view.digest(), 1, WANTED + number, number)
        for other in world.live():
            world.deliver(other, Received(liar, world.seals.sealed(liar, vote), None))
    nothing_happens(swarm)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_member_cannot_make_an_order(seed: int) -> None:
    forged(seed)


# -- planted bugs


def half_suffices() -> Any:
    def settle(self: UndoingVotes, s: Any) -> Outcome:
        for step, peers in self.standing(s).items():
            if 2 * len(peers) >= len(s.view.voters):
                signed = tuple(Signed(peer, "") for peer in sorted(peers))
                return self._believe(MembersOrder(s.view, next_number(s.order), step, signed), sure=True)
        return Outcome()

    return patched((UndoingVotes, "_settle", settle))


def any_step_counts() -> Any:
    standing = UndoingVotes.standing

    def together(self: UndoingVotes, s: Any) -> dict[int, frozenset[Peer]]:
        found = standing(self, s)
        return {max(found): frozenset().union(*found.values())} if found else {}

    return patched((UndoingVotes, "standing", together))


def nobody_shows_it() -> Any:
    return patched((UndoingVotes, "in_force", lambda self, order: None))


def only_ones_own_voters_are_believed() -> Any:
    return patched((UndoingVotes, "followed_by", lambda self, s, shown, proofs: RollbackOrder()))


def nobody_keeps_it() -> Any:
    return patched((Disks, "keep_order", lambda self, host, order: None))


def its_own_view_is_enough() -> Any:
    return patched((undoing_votes, "_signed_by_ours", lambda s, order: True))


def few_bind_all() -> Any:
    """Whoever has followed an order wins, however few of the others have signed it."""
    return patched((Proofs, "by_most", lambda self, signers, mine: True))


def it_binds_for_ever() -> Any:
    return patched((Following, "_as_bound", lambda self, s, view: s))


def it_is_kept_in_any_lineage() -> Any:
    return patched((undoing_votes, "_is_foreign", lambda s, order, proofs: False))


def anybody_votes() -> Any:
    return patched(
        (undoing_votes, "counts", lambda order: True), (undoing_votes, "_signed_by_ours", lambda s, order: True)
    )


@pytest.mark.parametrize(
    ("plant", "schedule"),
    [
        (half_suffices, half_is_too_few),
        (any_step_counts, they_want_other_steps),
        (nobody_shows_it, comes_later),
        (only_ones_own_voters_are_believed, comes_later),
        (few_bind_all, forged),
        (few_bind_all, split),
        (it_binds_for_ever, split),
        (it_is_kept_in_any_lineage, alone),
        (nobody_keeps_it, starts_again),
        (its_own_view_is_enough, forged),
        (anybody_votes, forged),
    ],
)
def test_a_planted_bug_is_found(
    plant: Callable[[], AbstractContextManager[None]], schedule: Callable[[int], None]
) -> None:
    with plant(), pytest.raises((Violation, AssertionError)):
        for seed in SEEDS:
            schedule(seed)


def test_votes_are_said_once_a_lease() -> None:
    """And not more often, however long the wish stands."""
    swarm, said = spoilt(1), list[int]()
    world, say = swarm.world, UndoingVotes._say

    def counted(self: UndoingVotes, s: Situation, step: int) -> Outcome:
        out = say(self, s, step)
        said.append(len(out))
        return out

    first = voters(swarm)[0]
    with patched((UndoingVotes, "_say", counted)):
        want(swarm, [first])
        world.run(world.now + 10 * LEASE)
    assert 9 <= len(said) <= 12 and {*said} == {3}
