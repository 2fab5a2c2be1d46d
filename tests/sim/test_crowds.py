"""Many identities of one machine: they are no quorum, no majority of a group, and cost nothing that grows (rule 44)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final
from zlib import crc32

import pytest

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.views import succession
from ftnode.protocol.words.view import View
from tests.sim.host import Host
from tests.sim.planted import patched
from tests.sim.scenario import Scenario
from tests.sim.test_bad_newcomers import SETTINGS, two_of_each
from tests.sim.test_duty import seen
from tests.sim.world import World

CROWD: Final = 50
HERE, THERE = "198.51.0.0/16", "203.0.0.0/16"
SEEDS: Final = range(1, 5)
GROWING: Final = replace(SETTINGS, replicas=8, lease_seconds=3.0)


class Watch:
    """Of every view: is the crowd a quorum by itself, or most of a group that has others?"""

    def __init__(self, world: World) -> None:
        self.quorums: list[int] = []
        self.majorities: list[int] = []
        self.members = 0
        world.on_view = self.on_view

    def on_view(self, host: Host, view: View) -> None:
        theirs = {peer for peer in view.members() if peer.id.startswith("crowd")}
        self.members = max(self.members, len(theirs))
        if view.is_quorum(theirs):
            self.quorums.append(view.number)
        for group in view.holders:
            if len(group) > len(theirs & {*group}) and 2 * len(theirs & {*group}) > len(group):
                self.majorities.append(view.number)


def honest(world: World, networks: int) -> None:
    """One peer for each stage, at so many networks."""
    for index in range(world.settings.stage_count):
        name = f"peer{index}"
        world.networks[name] = HERE if networks == 1 else f"10{index % networks}.0.0.0/16"
        world.at(0.1 * index, world.start, (name, 1, True))


def crowd(world: World, hold: int = 1, networks: int = 1) -> None:
    for index in range(CROWD):
        name = f"crowd{index}"
        world.networks[name] = THERE if networks == 1 else f"172.{index % networks}.0.0/16"
        world.at(world.now + 0.2 * index, world.start, (name, hold, True))


def swarm(seed: int, networks: int, theirs: int = 1) -> tuple[World, Watch]:
    """It trains, and a crowd comes, at so many networks of its own."""
    world = World(GROWING, seed, delay_max=0.03)
    watch = Watch(world)
    honest(world, networks)
    world.run(20.0)
    crowd(world, networks=theirs)
    world.run(80.0, lambda: theirs > 1 and bool(watch.quorums and watch.majorities))
    return world, watch


@pytest.mark.parametrize("networks", [1, 3])
@pytest.mark.parametrize("seed", SEEDS)
def test_fifty_of_one_machine_are_no_quorum_and_no_majority_of_a_group(seed: int, networks: int) -> None:
    world, watch = swarm(seed, networks)
    assert watch.members >= world.settings.stage_count, "they do take part"
    assert (watch.quorums, watch.majorities) == ([], [])
    done = world.ledger.top_commit()
    world.run(world.now + 10.0)
    assert world.ledger.top_commit() > done


def test_fifty_at_as_many_networks_become_a_quorum() -> None:
    """It is not defended, as SECURITY.md says."""
    watch = swarm(1, 3, theirs=CROWD)[1]
    assert watch.quorums and watch.majorities


def test_the_run_goes_on_without_the_crowd() -> None:
    """Its machine is switched off."""
    world, _ = swarm(1, 3)
    theirs = [host for host in world.live() if host.peer.id.startswith("crowd")]
    for host in theirs:
        world.kill(host, "kill", silently=False)
    done = world.ledger.top_commit()
    world.run(world.now + 60.0)
    assert world.ledger.top_commit() > done + 5
    assert not {host.peer for host in theirs} & {*seen(world).members()}


ANY_GROUP: Final = (Learners, "_crowded", lambda self, s, peer: [])
ANY_VOTER: Final = (succession, "bounded", lambda order, leader, first, crowds: tuple(order))


@pytest.mark.parametrize("networks", [1, 3])
def test_without_a_look_at_groups_they_are_most_of_one_and_no_quorum(networks: int) -> None:
    with patched(ANY_GROUP):
        watch = swarm(1, networks)[1]
    assert watch.majorities and not watch.quorums


def test_without_the_bound_they_choose_the_next_view() -> None:
    with patched(ANY_GROUP, ANY_VOTER):
        assert swarm(1, 3)[1].quorums


class Anywhere(dict[str, str]):
    """Half of all peers are at one network, the others at three."""

    def __contains__(self, peer_id: object) -> bool:
        return True

    def __getitem__(self, peer_id: str) -> str:
        return f"10{max(0, crc32(peer_id.encode()) % 6 - 2)}.0.0.0/16"


@pytest.mark.parametrize("seed", range(24))
def test_the_world_keeps_its_rules_where_not_all_vote(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under all faults."""
    made = World.__init__

    def made_anywhere(self: World, *given: Any, **more: Any) -> None:
        made(self, *given, **more)
        self.networks = Anywhere()

    monkeypatch.setattr(World, "__init__", made_anywhere)
    outcome = Scenario(seed).run()
    assert not outcome.violation, outcome.report()


def votes_of_one_place(seed: int, told: bool) -> tuple[Any, ...]:
    world = World(GROWING, seed, delay_max=0.03)
    for index in range(12):
        if told:
            world.networks[f"peer{index}"] = HERE
        world.at(0.1 * index, world.start, (f"peer{index}", 1, True))
    world.run(60.0)
    return world.ledger.top_commit(), seen(world).holders, seen(world).voters


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_swarm_of_which_nothing_is_known_has_all_votes(seed: int) -> None:
    _, holders, voters = votes_of_one_place(seed, told=False)
    assert {*voters} == {peer for group in holders for peer in group}


LIFE_SECONDS: Final = 10.0
TOGETHER: Final = 5
CHURN_SECONDS: Final = 150.0


def comes_and_goes(world: World, until: float) -> None:
    """Every ten seconds five identities that nobody has seen come, and the last five go."""
    world.remark("another wave")
    for _ in range(TOGETHER):
        name = f"crowd{len(world.networks)}"
        world.networks[name] = THERE
        host = world.start(name, 1, True)
        world.at(world.now + LIFE_SECONDS, ends, (world, host))
    if world.now + LIFE_SECONDS < until:
        world.at(world.now + LIFE_SECONDS, comes_and_goes, (world, until))


def ends(world: World, host: Host) -> None:
    if host.alive:
        world.kill(host, "kill", silently=False)


def steps_and_offers(seed: int, churn: bool) -> tuple[int, list[float], World]:
    """Steps, and when the leader asked one of them."""
    world = two_of_each(seed)
    done, begun = world.ledger.top_commit(), world.now
    if churn:
        comes_and_goes(world, begun + CHURN_SECONDS)
    world.run(begun + CHURN_SECONDS)
    asked = [float(note.split()[0]) - begun for note in world.notes if " learner: asks " in note]
    return world.ledger.top_commit() - done, [at for at in asked if at >= 0], world


@pytest.mark.parametrize("seed", [1, 2])
def test_coming_and_going_every_ten_seconds_costs_little_and_nothing_that_grows(seed: int) -> None:
    steps, asked, world = steps_and_offers(seed, churn=True)
    assert len(world.networks) >= CROWD and asked
    assert steps >= 0.9 * steps_and_offers(seed, churn=False)[0]
    late = [at for at in asked if at > CHURN_SECONDS / 2]
    assert len(late) <= 2 * TOGETHER and len(asked) <= 25
    leader = next(host.participant for host in world.live() if host.participant.leader is not None)
    assert len(leader.memory.crowds_failed) == 1 and leader.memory.joined.keys() <= {*seen(world).members()}


def test_without_a_pause_for_the_crowd_each_of_them_is_asked() -> None:
    with patched((LeaderMemory, "crowd_failed", lambda self, network, now, lease_seconds: None)):
        assert len(steps_and_offers(1, churn=True)[1]) > 40
