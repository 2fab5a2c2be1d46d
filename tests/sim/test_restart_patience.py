"""How long is waited for disks, who is believed how long, and what a swarm that has not begun yet is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.words.events import Snapshots
from ftnode.protocol.words.types import Attempt, Rung, Snapshot, Version
from ftnode.protocol.words.view import View
from tests.sim.host import Host
from tests.sim.planted import the_past_is_waited_for
from tests.sim.scenario import run_seed
from tests.sim.targets import best_view
from tests.sim.test_restart import SETTINGS, Swarm, TwoSides, cut
from tests.sim.test_restart_misfortunes import from_disks


def test_the_first_who_could_do_without_the_others_is_given_time_for_them() -> None:
    """Two without the head have halted for long when the head comes, and the last one seconds later."""
    swarm = Swarm(replace(SETTINGS, steps=60))
    swarm.until(8)
    head, late = swarm.holder_of(0), swarm.holder_of(2)
    swarm.power_cut(away=[head, late])
    for index in range(3):
        swarm.world.start(f"without{index}", 1, True)
    swarm.world.run(swarm.world.now + 10 * SETTINGS.restart_wait_seconds)
    assert any("halted" in text for text in swarm.waiting())
    swarm.world.start(head, 1, True)
    swarm.world.at(swarm.world.now + 5.0, swarm.world.start, (late, 1, True))
    swarm.until(9, 300.0)
    assert from_disks(swarm, 6) and len(swarm.installed) == 4


@pytest.mark.parametrize("outage", [60.0, 200.0])
def test_a_lender_whose_line_was_down_is_asked_again(outage: float) -> None:
    """The head's only snapshot lies with somebody who holds nothing, and its receiver does not reach it for a while."""
    swarm = Swarm(replace(SETTINGS, steps=200))
    world = swarm.world
    swarm.until(8)
    head = swarm.holder_of(0)
    swarm.power_cut(away=[head])
    world.start(head, 0, True)
    world.start("vol", 1, True)
    world.directory.shelves.clear()
    blocked: set[tuple[str, str]] = set()

    def cut_off(host: Host, view: View) -> None:
        receiver = view.holders[0][0].id if view.holders[0] else head
        if receiver != head and view.number == 1 and not blocked:
            blocked.update({(receiver, head), (head, receiver)})
            world.network.block(set(blocked))
            world.at(world.now + outage, world.network.heal, (set(blocked),))

    world.on_view = cut_off
    swarm.until(9, 900.0)
    assert blocked and {rung for _, _, rung, _ in swarm.installed} == {Rung.SNAPSHOT}


def test_a_liar_that_tells_of_another_step_each_time_is_not_listened_to_for_long() -> None:
    swarm = Swarm(replace(SETTINGS, steps=400))
    swarm.until(8)
    world, count = swarm.world, 0
    swarm.power_cut()

    def lie() -> None:
        nonlocal count
        count += 1
        version = Version(399, f"lie{count}", Attempt(1, 1))
        world.deliver(world.by_id["liar"], Snapshots(tuple(Snapshot(stage, version, "1", 1) for stage in range(4))))
        world.at(world.now + 6.0, lie, ())

    world.start("liar", 1, True)
    world.at(world.now + 0.1, lie, ())
    past = len(swarm.commits)
    world.run(world.now + 600.0, lambda: any(6 < step < 50 for _, step in swarm.commits[past:]))
    assert any(6 < step < 50 for _, step in swarm.commits[past:])
    assert count > 1, "it has told of another one before the swarm went on, which has rolls and does not wait for it"


def strangers_meet(swarm: Swarm, apart: TwoSides, names: set[str], count: int) -> None:
    """They begin anew, take some steps, and then the two swarms hear of each other."""
    world, strangers = swarm.world, {f"stranger{index}" for index in range(count)}
    pairs = {pair for a in names for b in strangers for pair in ((a, b), (b, a))}
    world.network.block(pairs)
    for name in sorted(strangers):
        world.start(name, 1, True)
    world.run(world.now + 8.0)
    apart.near = set()
    world.network.heal(pairs)
    world.run(world.now + 60.0)


def followed(swarm: Swarm) -> set[str]:
    return {host.view.lineage.origin for host in swarm.world.live() if host.view is not None}


def test_who_has_disks_and_waits_for_a_volunteer_does_not_yield_to_strangers() -> None:
    swarm = Swarm(replace(SETTINGS, steps=2000))
    swarm.until(60)
    names = set(swarm.power_cut(away=[swarm.holder_of(3)]))
    apart = swarm.world.directory = TwoSides(swarm.world, names)
    swarm.world.run(swarm.world.now + 140.0)
    assert "a volunteer for stage 3" in swarm.waiting()
    mine = followed(swarm)
    strangers_meet(swarm, apart, names, 5)
    yielded = [note for note in swarm.world.notes if "the run was split: leaves" in note]
    assert yielded and not any(note.split()[1] in names for note in yielded), yielded
    assert len(mine) == 1


def test_nor_who_goes_on_from_disks_and_lost_somebody_before_it_began() -> None:
    swarm = Swarm(replace(SETTINGS, steps=2000))
    world = swarm.world
    swarm.until(60)
    names = set(swarm.power_cut())
    apart = world.directory = TwoSides(world, names)
    founded: list[View] = []

    def strike(host: Host, view: View) -> None:
        if view.lineage.from_disks and not founded:
            founded.append(view)
            others = (each for each in world.live() if each.peer in view.members() and each.peer != view.leader)
            world.kill(next(each for each in others if 0 not in view.stages_of(each.peer)), "kill", silently=True)

    world.on_view = strike
    world.run(world.now + 200.0, lambda: bool(founded))
    world.run(world.now + 25.0)
    strangers_meet(swarm, apart, names, 4)
    assert followed(swarm) == {founded[0].lineage.origin}


LIARS = (190, 268, 477, 519, 1038, 2000, 2160, 2163, 2334, 2363, 2385, 2510)
"""Seeds with a liar among those who tell of disks. With each change of timing another one ends with its lie."""


def test_the_head_that_only_a_liar_has_is_not_given_and_taken_again_and_again() -> None:
    """Who leads a lineage from disks knows what it goes on from before all have told where they stand."""
    outcome = next(each for each in map(run_seed, LIARS) if each.halted)
    assert not outcome.violation
    assert outcome.losses < 300, "ten a second, were it offered as if nothing had been committed"


USUAL = replace(SETTINGS, steps=60, lease_seconds=10.0, minority_wait_seconds=60.0)


def all_start_again_at_once() -> None:
    """Within two seconds of each other, and the next step is done in less than four leases."""
    swarm = Swarm(USUAL)
    swarm.until(8)
    swarm.power_cut()
    swarm.until(7, 4 * USUAL.lease_seconds)
    assert swarm.rungs() == dict.fromkeys(range(4), Rung.SNAPSHOT)


def test_who_starts_again_does_not_look_for_its_own_past() -> None:
    all_start_again_at_once()


def test_planted_the_past_is_waited_for() -> None:
    with the_past_is_waited_for(), pytest.raises(AssertionError):
        all_start_again_at_once()


def test_who_does_not_come_back_may_live_on_elsewhere_and_is_looked_for() -> None:
    swarm = Swarm(USUAL)
    swarm.until(8)
    (before,) = followed(swarm)
    swarm.power_cut(away=[swarm.holder_of(3)])
    swarm.world.run(swarm.world.now + USUAL.minority_wait_seconds)
    assert followed(swarm) == {before}
    swarm.world.run(swarm.world.now + 6 * USUAL.lease_seconds)
    assert len(followed(swarm) - {before}) == 1


def one_lives_on(phase: float) -> set[int]:
    """Cut off from the others, which go on without it and lose power at once. It has a stage, the copy of the head, and
    an older view than they had; its line comes back with them, and nothing is on disks yet. Steps done after that."""
    swarm = Swarm(replace(USUAL, steps=3000, stages=2, snapshot_every=10**6))
    world = swarm.world
    swarm.until(20)
    world.run(world.now + phase)
    alone, leader = swarm.holder_of(1), best_view(world)
    assert leader is not None and leader.leader.id != alone
    near = {host.peer.id for host in world.live()} - {alone}
    pairs = cut(swarm, near, {alone})
    left = world.by_id[leader.leader.id]
    world.run(world.now + 60.0, lambda: left.view is not None and alone not in {p.id for p in left.view.members()})
    done = len(swarm.commits)
    for name in sorted(near):
        world.kill(world.by_id[name], "power", silently=False)
        world.at(world.now + 0.5, world.start, (name, 1, True))
    world.network.heal(pairs)
    world.run(world.now + 150.0)
    return {step for _, step in swarm.commits[done:]}


PHASES = (0.0, 2.5, 5.0, 7.5)
"""It reads the directory now and then."""


@pytest.mark.parametrize("phase", PHASES)
def test_who_lives_on_with_weights_is_not_taken_for_the_past(phase: float) -> None:
    assert min(one_lives_on(phase)) > 10
