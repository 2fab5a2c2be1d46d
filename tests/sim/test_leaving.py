"""Several that leave at once: who stays, or comes, ends with everything that it has room for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftnode.protocol.words.events import Leave
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Rung, Version
from tests.sim.host import Host
from tests.sim.targets import best_view
from tests.sim.test_restart import SETTINGS, Swarm

RUN = replace(SETTINGS, steps=4000, snapshot_every=0, replicas=1)
WORD = Leave("Ctrl-C")


def spread(rooms: list[int], seed: int, settings: Settings = RUN) -> tuple[Swarm, list[Host]]:
    """So many peers with these rooms, of whom each has one stage; the first has begun with as many as fit."""
    swarm = Swarm(settings, peers=0, seed=seed)
    world = swarm.world
    world.forward_seconds = 0.1  # who learns has twelve steps for it
    hosts = [world.start("peer0", rooms[0], True)]
    world.run(6.0)
    hosts += [world.start(f"peer{index}", room, True) for index, room in enumerate(rooms) if index]

    def each_has_one() -> bool:
        view = best_view(world)
        return view is not None and len(view.members()) == len(rooms) and all(map(view.stages_of, view.members()))

    world.run(world.now + 100.0, each_has_one)
    assert each_has_one()
    world.run(world.now + 5.0)
    swarm.installed.clear()
    return swarm, hosts


def took_over(swarm: Swarm, heir: Host, seconds: float) -> None:
    """It alone is left, with everything, and nothing was rebuilt."""
    world = swarm.world
    world.run(world.now + seconds, lambda: world.live() == [heir])
    assert world.live() == [heir], "\n".join(world.notes)
    assert heir.participant.mine == tuple(range(RUN.stage_count)), "\n".join(world.notes)
    assert {rung for _, _, rung, _ in swarm.installed} == {Rung.REPLICA}
    assert {name for name, *_ in swarm.installed} == {heir.peer.id}, "nobody that leaves takes anything over"
    swarm.goes_on()


@pytest.mark.parametrize("transfer", [0.5, 2.5, 6.0])
@pytest.mark.parametrize("seed", range(1, 5))
def test_the_one_that_stays_learns_all_of_it_side_by_side(seed: int, transfer: float) -> None:
    swarm, (stays, *leave) = spread([4, 1, 1, 1], seed)
    world = swarm.world
    world.rebuilding.seconds = transfer
    for host in leave:
        world.deliver(host, WORD)
    asked = world.now
    took_over(swarm, stays, 60.0)
    assert world.now - asked < 60.0
    asks = [note for note in world.notes if " asks " in note and (" to learn " in note or " to take " in note)]
    offers = [note for note in asks if float(note.split()[0]) >= asked]
    assert len(offers) == 1, "\n".join(offers)


@pytest.mark.parametrize("transfer", [0.5, 2.5])
@pytest.mark.parametrize("seed", range(1, 5))
def test_a_newcomer_with_room_learns_all_of_it(seed: int, transfer: float) -> None:
    swarm, hosts = spread([4, 1, 1, 1], seed)
    world = swarm.world
    world.rebuilding.seconds = transfer
    heir = world.start("heir", 4, True)
    world.run(world.now + 6.0)
    for host in hosts:
        world.deliver(host, WORD)
    took_over(swarm, heir, 90.0)


@pytest.mark.parametrize("seed", range(1, 5))
def test_one_after_the_other_is_as_good(seed: int) -> None:
    """Each asks while what the one before holds is under way."""
    swarm, (stays, *leave) = spread([4, 1, 1, 1], seed)
    world = swarm.world
    world.rebuilding.seconds = 6.0
    for index, host in enumerate(leave):
        world.at(world.now + 3.0 * index, world.deliver, (host, WORD))
    took_over(swarm, stays, 90.0)


@pytest.mark.parametrize("seed", range(1, 5))
@pytest.mark.parametrize("after", [0.5, 2.0, 4.0])
def test_who_learns_and_leaves_too_is_no_heir(seed: int, after: float) -> None:
    """It was asked before its own owner wanted it to go."""
    swarm, (stays, *others) = spread([4, 2, 2, 1], seed)
    world = swarm.world
    world.rebuilding.seconds = 6.0
    *learn, first = others
    world.deliver(first, WORD)
    world.run(world.now + after)
    for host in learn:
        world.deliver(host, WORD)
    world.run(world.now + 90.0, lambda: world.live() == [stays])
    assert world.live() == [stays] and stays.participant.mine == tuple(range(RUN.stage_count))
    assert {rung for _, _, rung, _ in swarm.installed} == {Rung.REPLICA}


@pytest.mark.parametrize("seed", range(1, 5))
def test_who_has_nobody_to_take_over_goes_last(seed: int) -> None:
    """The one that stays has room for two of three stages: the third is given up when it has these."""
    swarm, (stays, *leave) = spread([3, 1, 1, 1], seed)
    world = swarm.world
    world.rebuilding.seconds = 6.0
    for host in leave:
        world.deliver(host, WORD)
    world.run(world.now + 90.0, lambda: world.live() == [stays])
    assert world.live() == [stays] and len(stays.participant.mine) == 3, "\n".join(world.notes)
    assert {rung for _, _, rung, _ in swarm.installed} == {Rung.REPLICA}


KEPT = replace(RUN, snapshot_every=3)


def switched_off(swarm: Swarm, hosts: list[Host]) -> Version:
    """All that were there are gone. The commit at which all stages are on their disks, which is the newest one."""
    held, world = swarm.world.disks.held, swarm.world
    told = [saved.snapshot for host in hosts for saved in held.get(host.peer.id, ())]
    newest = {snapshot.stage: snapshot.version for snapshot in sorted(told, key=lambda each: each.version.step)}
    versions = {*newest.values()}
    assert len(newest) == RUN.stage_count and len(versions) == 1, "\n".join((*world.notes, str(newest)))
    (version,) = versions
    assert version.step == world.ledger.top_commit()
    return version


def starts_again(swarm: Swarm, hosts: list[Host], version: Version) -> None:
    swarm.installed.clear()
    for index, host in enumerate(hosts):
        swarm.world.at(swarm.world.now + 0.4 * index, swarm.world.start, (host.peer.id, host.hold, True))
    swarm.until(version.step + 2)
    assert {(rung, base) for *_, rung, base in swarm.installed} == {(Rung.SNAPSHOT, version)}


def hurried(seed: int, room: int = 1) -> tuple[Swarm, list[Host]]:
    """With snapshots, and a commit every few messages: hardly ever do all members stand at the same one."""
    swarm, hosts = spread([room, 1, 1, 1], seed, KEPT)
    for host in hosts:
        host.forward_seconds = 0.002
    swarm.world.delay_max = 0.3
    swarm.world.network.delays.clear()
    swarm.world.run(swarm.world.now + 5.0)
    return swarm, hosts


@pytest.mark.parametrize("seed", range(1, 9))
def test_all_pause_with_room_for_nothing_and_the_run_goes_on_from_their_disks(seed: int) -> None:
    """The leader stays, as ever, and stands still: it writes what it holds as it is."""
    swarm, hosts = hurried(seed)
    world = swarm.world
    for index, host in enumerate(hosts):
        world.at(world.now + 0.1 * (seed % 4) * index, world.deliver, (host, Leave("pauses, on battery", pauses=True)))
    world.run(world.now + 60.0, lambda: len(world.live()) == 1)
    (last,) = world.live()
    world.run(world.now + 1.0)
    assert last.participant.departure.stayed and last.participant.members == {last.peer}
    world.disks.save(last, last.participant.mine)
    world.kill(last, "power", silently=False)
    starts_again(swarm, hosts, switched_off(swarm, hosts))


@pytest.mark.parametrize("seed", range(1, 9))
def test_all_leave_for_good_with_room_for_nothing_and_the_run_goes_on_from_their_disks(seed: int) -> None:
    swarm, hosts = hurried(seed)
    world = swarm.world
    for index, host in enumerate(hosts):
        world.at(world.now + 0.1 * (seed % 4) * index, world.deliver, (host, WORD))
    world.run(world.now + 60.0, lambda: not world.live())
    assert not world.live()
    starts_again(swarm, hosts, switched_off(swarm, hosts))


@pytest.mark.parametrize("seed", range(1, 9))
def test_who_has_room_for_some_takes_that_over_and_the_rest_is_saved_with_it(seed: int) -> None:
    swarm, (stays, *leave) = hurried(seed, 3)
    world = swarm.world
    for host in leave:
        world.deliver(host, WORD)
    world.run(world.now + 60.0, lambda: world.live() == [stays])
    world.run(world.now + 1.0)
    assert len(stays.participant.mine) == 3, "\n".join(world.notes)
    world.disks.save(stays, stays.participant.mine)
    version = switched_off(swarm, [stays, *leave])
    back = next(
        host for host in leave if version in [saved.snapshot.version for saved in world.disks.held[host.peer.id]]
    )
    swarm.installed.clear()
    world.start(back.peer.id, 1, True)
    swarm.until(version.step + 2)
    assert [(rung, base) for *_, rung, base in swarm.installed] == [(Rung.SNAPSHOT, version)], (
        "it was never switched off"
    )
