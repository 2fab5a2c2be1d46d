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
from ftnode.protocol.views.undoing_votes import UndoingVotes
from ftnode.protocol.words.events import Ordered, Received, WantsUndo
from ftnode.protocol.words.messages import NO_STEP, MembersOrder, Signed, UndoVote
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
    """Half of the swarm was cut off, and has gone on by itself, farther than the others. Its voters never signed."""
    swarm = spoilt(seed, settings=replace(SETTINGS, replicas=2), peers=8)
    world = swarm.world
    far, links = halves(swarm)
    world.network.block(links)
    world.run(world.now + 15.0)  # each half knows its own voters
    want(swarm, [host.peer for host in world.live() if host.peer.id not in far])
    world.at(world.now + 25.0, world.network.heal, (links,))
    world.run(world.now + 24.0)
    assert {world.by_id[name].participant.order.number for name in far} == {0}
    ends_at_the_order(swarm, founded=2)


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
def test_a_half_that_did_not_vote_follows_the_other_half(seed: int) -> None:
    split(seed)


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
    swarm = spoilt(1, peers=5)
    want(swarm, voters(swarm)[:3])
    swarm.until(BACK_AT + 2, 60.0)
    swarm.world.start("later", 1, True)
    ends_at_the_order(swarm)
    assert numbers(swarm) == {ORDER.number}


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
    assert view is not None and (view.lineage.order, view.lineage.start and view.lineage.start.step) == (2, 8)


def forged(seed: int) -> None:
    """One member shows an order with the names of the others, and one that only it has signed."""
    swarm = spoilt(seed)
    world, (liar, *_) = swarm.world, voters(swarm)
    core = world.by_id[liar.id].participant
    view = core.view
    assert view is not None
    names = [MembersOrder(view, 1, WANTED, tuple(Signed(peer, "") for peer in signers))
             for signers in ([liar], sorted(view.voters))]  # fmt: skip
    names.append(MembersOrder(replace(view, voters=(liar,), leader=liar), 1, WANTED, (Signed(liar, ""),)))
    for order in names:
        shown = world.seals.sealed(liar, replace(core.certificate(), order=order))
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
                return self._believe(MembersOrder(s.view, s.order.number + 1, step, signed), sure=True)
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
    return patched((UndoingVotes, "followed_by", lambda self, s, shown, akin: RollbackOrder()))


def nobody_keeps_it() -> Any:
    return patched((Disks, "keep_order", lambda self, host, order: None))


def its_own_view_is_enough() -> Any:
    return patched((undoing_votes, "_signed_by_ours", lambda s, order: True))


def anybody_votes() -> Any:
    return patched(
        (undoing_votes, "counts", lambda order: True), (undoing_votes, "_signed_by_ours", lambda s, order: True)
    )


@pytest.mark.parametrize(
    ("plant", "schedule"),
    [
        (half_suffices, half_is_too_few),
        (any_step_counts, they_want_other_steps),
        (nobody_shows_it, split),
        (only_ones_own_voters_are_believed, split),
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
