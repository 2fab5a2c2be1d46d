"""Schedules that no seed drew and a reader found: each of these cost a run its weights, its steps or its life."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.recovery.standing import DONE_AGAIN
from ftnode.protocol.words import effects as fx
from ftnode.protocol.words.effects import Send
from ftnode.protocol.words.messages import Status
from ftnode.protocol.words.types import Attempt, Version
from tests.sim import reduction
from tests.sim import world as world_module
from tests.sim.compute import Poison
from tests.sim.host import Host
from tests.sim.targets import holders
from tests.sim.test_comings_and_goings import LONG, held, seen
from tests.sim.test_groups import SETTINGS, leave, sizes
from tests.sim.world import World

PATIENT = replace(LONG, head_every=1, lease_seconds=4.0, minority_wait_seconds=6.0)


def started(world: World, count: int) -> World:
    for index in range(count):
        world.start(f"peer{index}", 1, True)
    world.run(30.0)
    return world


def pairs(one: str, others: list[str]) -> set[tuple[str, str]]:
    return {pair for other in others if other != one for pair in ((one, other), (other, one))}


def goes_on(world: World, seconds: float = 60.0, steps: int = 5) -> None:
    commit = world.ledger.top_commit()
    world.run(world.now + seconds)
    assert world.ledger.top_commit() >= commit + steps, [host.participant.waiting() for host in world.live()]


@pytest.mark.parametrize("leases", [2.6, 3.0, 3.6])
@pytest.mark.parametrize("minority", [1.0, 1.5])
def test_a_majority_does_not_yield_to_a_leader_that_was_deaf_and_founded_a_lineage_alone(
    leases: float, minority: float
) -> None:
    world = started(World(replace(PATIENT, minority_wait_seconds=minority * 4.0), 3, delay_max=0.01), 4)
    leader = seen(world).leader
    world.network.block({(f"peer{n}", leader.id) for n in range(4) if f"peer{n}" != leader.id})
    world.run(world.now + leases * 4.0)
    world.network.heal(set(world.network.blocked))
    goes_on(world, 200.0)


def test_a_leader_that_comes_back_to_the_view_that_it_led_is_told_where_everybody_stands() -> None:
    world = started(World(PATIENT, 3, delay_max=0.01), 6)
    view, everybody = seen(world), [f"peer{n}" for n in range(6)]
    leader = view.leader
    other = next(peer for peer in view.voters if peer != leader)
    world.network.block(pairs(other.id, everybody))
    world.run(world.now + 30.0)  # it founds a lineage alone; the others go on with a standby
    view = seen(world)
    core = world.by_id[leader.id].participant
    lineage = world.by_id[other.id].participant.view
    assert lineage is not None and lineage.lineage != view.lineage and view.leader == leader
    world.network.block({(peer, leader.id) for peer in everybody if peer not in (leader.id, other.id)})
    world.run(world.now + 30.0, lambda: not core.situation._replace(now=world.now).quorate)
    world.network.heal({(other.id, leader.id), (leader.id, other.id)})
    world.run(world.now + 10.0, lambda: core.view is not None and core.view.lineage == lineage.lineage)
    world.network.heal({(peer, leader.id) for peer in everybody})
    world.run(world.now + 10.0, lambda: core.view is not None and core.view.lineage == view.lineage)
    world.network.heal(set(world.network.blocked))
    goes_on(world)


def test_a_validation_that_is_not_finite_costs_no_step() -> None:
    settings = replace(SETTINGS, replicas=1)
    world = World(settings, 3, delay_max=0.01)
    skipped: list[int] = []
    world.on_commit = lambda lineage, version, skip: skipped.extend([version.step] * skip)
    world.poisons += [Poison(step, settings.microbatches, 2, False, 10**6) for step in range(6, 18)]
    for index in range(4):
        world.start(f"peer{index}", 1, True)
    world.run(200.0)
    assert world.ledger.top_commit() == settings.steps and skipped == []
    leader = world.by_id[seen(world).leader.id].participant.leader
    assert leader is not None and leader.finished and not leader.chronicle.validation


def test_a_sum_may_take_as_long_as_its_gradient_takes_on_a_slow_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reduction, "PATIENCE_SECONDS", 1000.0)
    world = World(
        replace(LONG, replicas=2, lease_seconds=10.0, state_bytes=300_000_000, gradient_bytes=100_000_000),
        3,
        delay_max=0.01,
    )
    skipped: list[bool] = []
    world.on_commit = lambda lineage, version, skip: skipped.append(skip)
    for index in range(8):
        world.at(0.1 * index, world.start, (f"peer{index}", 1, True))
    world.run(60.0)
    world.reductions.seconds = 60.0
    goes_on(world, 600.0)
    assert not any(skipped)


@pytest.mark.parametrize("peers", [1, 4])
def test_a_suspended_machine_does_not_take_its_compute_for_hung(peers: int) -> None:
    world = World(replace(LONG, head_every=1, lease_seconds=10.0, microbatches=2), 3, delay_max=0.01)
    world.forward_seconds = 3.0
    for index in range(peers):
        world.start(f"peer{index}", 4, True)
    world.run(400.0)
    hosts = world.live()
    for host in hosts:
        world.pause(host)
    world.run(world.now + 70.0)
    for host in hosts:
        world.resume(host)
    goes_on(world, 600.0)
    assert not any("compute is lost" in note for note in world.notes)


def test_a_member_that_lies_about_a_commit_is_the_one_that_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    world = started(World(replace(LONG, head_every=1), 3, delay_max=0.01), 9)
    view = seen(world)
    liar, victim = (world.by_id[peer.id] for peer in sorted(set(view.members()) - {view.leader})[:2])

    def lie(self: World, host: Host, effect: Any) -> None:
        message = effect.message
        if host is liar and isinstance(message, Status) and message.base is not None:
            base = Version(message.base.step + 1, "x", Attempt(0, 1))
            effect = Send(effect.to, replace(message, base=base), None)
        World._send(self, host, effect)

    monkeypatch.setitem(world_module.CARRY_OUT, fx.Send, lie)
    world.kill(victim, "kill", silently=False)
    world.run(world.now + 5.0)
    assert any("which was not without us" in note and str(liar.peer) in note for note in world.notes)
    monkeypatch.undo()
    goes_on(world)


def test_a_leader_that_lost_its_stage_gets_another_and_replicas_are_repaired_in_place_meanwhile() -> None:
    world = World(replace(LONG, replicas=3, head_every=1), 3, delay_max=0.01)
    for index in range(8):
        world.at(0.1 * index, world.start, (f"peer{index}", 1, True))
    world.run(60.0)
    leader = world.by_id[seen(world).leader.id]
    world.lose_compute(leader, "out of memory")
    world.run(world.now + 120.0)
    assert held(world)[leader.peer.id] and sum(sizes(world)) == 8
    for _ in range(3):
        view = seen(world)
        group = next(group for group in view.holders if len(group) > 1)
        victim = next(peer for peer in group if peer != view.leader)
        world.kill(world.by_id[victim.id], "kill", silently=False)
        world.run(world.now + 10.0)
    assert world.losses == 0 and not any(DONE_AGAIN in note for note in world.notes)


@pytest.mark.parametrize("who", ["member", "leader"])
def test_who_leaves_in_the_last_step_waits_for_nobody_while_others_have_its_stage(who: str) -> None:
    settings = replace(SETTINGS, replicas=2, evaluate_every=0, steps=40)
    world = World(settings, 3, delay_max=0.01)
    for index in range(2 * settings.stage_count):
        world.start(f"peer{index}", 1, True)
    world.run(100.0, lambda: world.ledger.top_commit() >= settings.steps - 1)
    view = seen(world)
    assert [len(group) for group in view.holders] == [2] * settings.stage_count
    host = world.by_id[view.leader.id] if who == "leader" else holders(world, view)[2][0]
    leave(world, host)
    begun = world.now
    world.run(begun + 600.0, lambda: not host.alive)
    assert not host.alive and world.now - begun < 10.0
