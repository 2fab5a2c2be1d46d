"""Schedules of those who come, go and move that earlier versions got wrong, found by reading; each of these failed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.holder.holder import Holder
from ftnode.protocol.step.routes import neighbours
from ftnode.protocol.wire.admission import objection
from ftnode.protocol.words.messages import Contact, Offer
from ftnode.protocol.words.types import Peer, initial_version
from ftnode.protocol.words.view import Lineage, View
from tests.sim.host import Host
from tests.sim.targets import best_view, holders
from tests.sim.test_groups import SETTINGS, leave, sizes
from tests.sim.world import World

LONG = replace(SETTINGS, steps=100_000, replicas=1, head_every=0, evaluate_every=0)


def started(world: World, count: int, hold: int = 1) -> World:
    for index in range(count):
        world.start(f"peer{index}", hold, True)
    world.run(30.0)
    return world


def seen(world: World) -> View:
    view = best_view(world)
    assert view is not None
    return view


def held(world: World) -> dict[str, tuple[int, ...]]:
    view = seen(world)
    return {peer.id: view.stages_of(peer) for peer in view.members()}


def rungs(world: World) -> set[str]:
    return {rung for _, rung in world.met}


def learner_of(world: World, stage: int) -> Host | None:
    return next((host for host in world.live() if stage in host.participant.holder.learning), None)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_member_that_missed_a_sum_is_taken_in_with_its_weights_only(seed: int) -> None:
    """It had them, missed one sum and got the next while it fetched anew; its last heartbeat spoke of before."""
    world = World(replace(LONG, lease_seconds=10.0), seed, delay_max=0.01)
    for index in range(4):
        world.start(f"peer{index}", 2, True)
    world.run(100.0)
    view = seen(world)
    stage = next(stage for stage in (1, 2, 3) if view.holders[stage][0] != view.leader)
    giver = holders(world, view)[stage][0]
    world.rebuilding.seconds = 2.0
    leave(world, giver)
    world.run(world.now + 30.0, lambda: learner_of(world, stage) is not None)
    learner = learner_of(world, stage)
    assert learner is not None
    world.run(world.now + 60.0, lambda: stage in learner.participant.holder.versions)
    world.reductions.seconds = 60.0
    commit = world.ledger.top_commit()
    world.run(
        world.now + 60.0,
        lambda: world.ledger.top_commit() > commit and stage not in learner.participant.holder.versions,
    )
    world.reductions.seconds = 0.02
    world.run(world.now + 40.0)
    assert not giver.alive and stage in held(world)[learner.peer.id]
    assert rungs(world) <= {"initial", "replica"} and world.losses == 0


@pytest.mark.parametrize("every", [1, 5])
def test_a_copy_may_take_longer_than_a_step(every: int) -> None:
    world = World(replace(LONG, head_every=every), 3, delay_max=0.01)
    world.rebuilding.copy_seconds = 2.0
    started(world, 5)
    assert sum(0 in host.copies for host in world.live()) == 2
    world.kill(holders(world, seen(world))[0][0], "kill", silently=False)
    commit = world.ledger.top_commit()
    world.run(world.now + 30.0)
    assert world.ledger.top_commit() > commit and "head" in rungs(world)


@pytest.mark.parametrize("transfer", [0.5, 2.5, 6.0])
def test_a_fetch_of_the_stage_that_is_reduced_last_may_take_longer_than_a_step(transfer: float) -> None:
    """The holders are Ready, and the next step begins, before the head's sum has reached the learner."""
    assert seconds_to_take_over_the_head(transfer) < 30.0


def test_planted_a_learner_begins_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Holder, "_waits_for_sum", lambda self, s, begin: False)
    assert seconds_to_take_over_the_head(6.0) >= 60.0


def seconds_to_take_over_the_head(transfer: float) -> float:
    """From the order to leave until the head's holder is gone; 60 at most."""
    world = World(replace(LONG, microbatches=2, window=2, head_every=1), 1, delay_max=0.02)
    world.forward_seconds = 0.1
    for index in range(4):
        world.start(f"peer{index}", 1, True)
    world.run(20.0)
    world.rebuilding.seconds, world.reductions.seconds = transfer, 0.05
    world.start("heir", 1, True)
    world.run(world.now + 6.0)
    (giver,) = holders(world, seen(world))[0]
    since = world.now
    leave(world, giver)
    world.run(since + 60.0, lambda: not giver.alive)
    assert world.losses == 0
    return world.now - since


def test_a_standby_that_was_cut_off_for_a_while_is_asked_again() -> None:
    world = started(World(replace(LONG, replicas=2), 3, delay_max=0.01), 4)
    late = world.start("late", 1, True)
    world.run(31.8)
    world.network.block({pair for index in range(4) for pair in ((f"peer{index}", "late"), ("late", f"peer{index}"))})
    world.run(world.now + 8.0)
    world.network.heal(set(world.network.blocked))
    world.run(world.now + 60.0)
    assert late.peer in seen(world).members() and sum(sizes(world)) == 5


def test_a_leaver_whose_learner_dies_is_waited_for_while_a_member_has_room() -> None:
    world = started(World(LONG, 3, delay_max=0.01), 4)
    view = seen(world)
    late = world.start("late", 1, True)
    world.run(world.now + 10.0)
    groups = holders(world, view)
    roomy = next(groups[stage][0] for stage in (1, 3) if groups[stage][0].peer != view.leader)
    roomy.hold = roomy.participant.hold = roomy.participant.holder.capacity = 2
    roomy.participant.presence_changed = True
    world.run(world.now + 10.0)
    world.rebuilding.seconds = 15.0
    leaver = holders(world, seen(world))[2][0]
    leave(world, leaver)
    world.run(world.now + 8.0)
    assert learner_of(world, 2) is late
    world.kill(late, "kill", silently=False)
    world.rebuilding.seconds = 1.0
    world.run(world.now + 90.0, lambda: not leaver.alive)
    assert not leaver.alive and 2 in held(world)[roomy.peer.id]
    assert rungs(world) <= {"initial", "replica"} and world.losses == 0


def test_a_learner_that_fills_a_vacancy_learns_no_more() -> None:
    world = started(World(replace(LONG, replicas=2), 3, delay_max=0.01), 4)
    world.rebuilding.seconds = 3.0
    late = world.start("late", 1, True)
    world.run(60.0, lambda: bool(late.participant.holder.learning))
    view, learning = seen(world), late.participant.holder.learning
    other = next(s for s in (1, 2, 3) if s not in learning and view.holders[s][0] != view.leader)
    world.kill(holders(world, view)[other][0], "kill", silently=False)
    world.run(world.now + 60.0)
    assert held(world)["late"] == (other,)
    assert max(map(len, held(world).values())) == 1


def test_a_replica_is_asked_for_one_lost_stage_at_a_time() -> None:
    """Two sole holders die together, one group has two."""
    world = World(replace(LONG, stages=4, replicas=2), 3, delay_max=0.01)
    started(world, 6)
    world.run(40.0)
    view, groups = seen(world), holders(world, seen(world))
    large = next(stage for stage, group in groups.items() if len(group) == 2)
    sole = [groups[s][0] for s in (1, 2, 3, 4) if s != large and view.holders[s][0] != view.leader]
    for host in sole[:2]:
        world.kill(host, "kill", silently=False)
    world.run(world.now + 20.0)
    assert max(map(len, held(world).values())) == 1, held(world)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_leader_does_not_move_itself(seed: int) -> None:
    """It would be a member without a stage, whom nobody asks."""
    settings = replace(LONG, replicas=3, microbatches=8, window=8)
    world = World(settings, seed, delay_max=0.01)
    for index in range(6):
        world.at(0.3 * index, world.start, (f"peer{index}", 1, True))
    world.run(60.0)
    view = seen(world)
    sole = [group[0] for group in view.holders[1:] if len(group) == 1 and group[0] != view.leader]
    world.by_id[sole[0].id].forward_seconds *= 10
    world.run(world.now + 200.0)
    assert all(held(world).values()), held(world)


def test_who_is_alone_hands_over_to_those_who_have_come() -> None:
    """One peer holds everything; another has begun to learn a stage of it."""
    world = World(replace(LONG, replicas=2, head_every=1), 3, delay_max=0.01)
    founder = world.start("founder", 4, True)
    world.run(60.0)
    other = world.start("other", 4, True)
    world.rebuilding.seconds = 4.0
    world.run(world.now + 60.0, lambda: bool(other.participant.holder.learning))
    leave(world, founder)
    world.run(world.now + 120.0, lambda: not founder.alive)
    assert not founder.alive and held(world) == {"other": (0, 1, 2, 3)}
    commit = world.ledger.top_commit()
    world.run(world.now + 20.0)
    assert world.ledger.top_commit() > commit and rungs(world) <= {"initial", "replica"} and world.losses == 0


def test_who_is_alone_and_stays_so_leaves_at_once() -> None:
    world = World(LONG, 3, delay_max=0.01)
    founder = world.start("founder", 4, True)
    world.run(30.0)
    leave(world, founder)
    assert not founder.alive


@pytest.mark.parametrize(("replicas", "swap", "stage"), [(16, True, 0), (64, False, 2), (64, True, 2)])
def test_an_offer_names_the_neighbours_of_the_largest_groups(replicas: int, swap: bool, stage: int) -> None:
    stages = 4
    groups = tuple(tuple(Peer(f"p{at}-{n}", 1) for n in range(replicas)) for at in range(stages + 1))
    leader = groups[1][0]
    view = View("sim", Lineage("x", 0, stages + 1), 1, "", leader, groups, (leader,), (0,) * (stages + 1), "")
    near = {*neighbours(view, stage, swap), *view.holders[stage]}
    assert len(near) > 64
    offer = Offer("x", 1, (stage,), initial_version("x"), tuple(Contact(peer, ()) for peer in sorted(near)), True)
    settings = replace(SETTINGS, stages=stages, replicas=replicas, swap=swap)
    assert not objection(leader, offer, view, settings)
