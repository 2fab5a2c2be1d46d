"""Deaths at every event of what takes longer than a step: somebody learns and joins, a stage is handed over, and a
second death while the survivors of a first one elect a leader."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace

import pytest

from ftnode.protocol.words.events import Leave
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer
from tests.sim.branches import Branches, at_every_event, before_every_send
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.targets import best_view, holders
from tests.sim.test_every_moment import QUIET, Weights, begun, ended, leader, next_step, trace, undisturbed, view_of
from tests.sim.test_groups import final_weights, sizes
from tests.sim.world import World

pytestmark = pytest.mark.timeout(600)
THREE = replace(QUIET, replicas=3, steps=12, microbatches=2, window=2)
ALONE = replace(QUIET, replicas=1, steps=14, microbatches=2, window=2, head_every=1)
EVERY = int(os.environ.get("FTNODE_EVERY", "6"))
"""Events between two deaths of the same peer, of which the first differs; FTNODE_EVERY=1 looks at all of them."""
WHO_LEARNS = ("leader", "learner", "first donor", "second donor")
WHO_HANDS_OVER = ("leader", "learner", "giver")
ELECTION = frozenset({"Prepare", "Promise", "Propose", "Accepted", "Certificate", "Status", "Begin", "Suspect", "Poll",
                      "PollReply", "Resign", "Offer", "Answer"})  # fmt: skip
"""What is said from a death until the step goes on."""


@kept
def world_of(settings: Settings, peers: int, room: int = 1) -> World:
    """So many peers hold all stages, and have trained for a while."""
    world = World(settings, 2, delay_max=0.02)
    world.forward_seconds = 0.05
    for index in range(peers):
        world.start(f"peer{index}", room, True)
    each = max(1, peers // settings.stage_count)
    world.run(60.0, lambda: sizes(world) == [each] * settings.stage_count and world.ledger.top_commit() >= 3)
    assert sizes(world) == [each] * settings.stage_count and len(view_of(world).members()) == peers
    return world


def learner(world: World) -> tuple[int, Peer, Peer | None] | None:
    """(stage, who learns it, in whose place)."""
    for host in leader(world, view_of(world)):
        leads = host.participant.leader
        for (stage, peer), item in leads.memory.learners.items() if leads is not None else ():
            return stage, peer, item.giver
    return None


def asked(world: World) -> tuple[int, Peer, Peer | None]:
    """Let the world run until somebody is asked to learn a stage."""
    world.run(world.now + 30.0, lambda: learner(world) is not None)
    found = learner(world)
    assert found is not None
    return found


def joined(world: World, stage: int, peer: Peer) -> Callable[[], bool]:
    """It has joined, and the step in progress then is done."""
    since: list[int] = []

    def ends() -> bool:
        view = best_view(world)
        if view is not None and peer in view.holders[stage] and not since:
            since.append(world.ledger.top_commit())
        return bool(since) and world.ledger.top_commit() > since[0]

    return ends


def host_of(world: World, peer: Peer) -> Host:
    return next(host for host in world.hosts if host.peer == peer)


def outcome(world: World, wanted: Weights) -> str:
    """As trace, but a stage may be lost: then all weights are equal among those who hold them, whatever they are."""
    wrong = trace(world, wanted)
    if wrong != "a stage was lost":
        return wrong
    found = final_weights(world)
    return "" if set(found) == set(wanted) and all(len(found[stage]) == 1 for stage in found) else f"at odds: {found}"


def deaths_until_it_joined(
    world: World, who: Callable[[tuple[int, Peer, Peer | None]], Peer], judge: Callable[[World], str], first: int
) -> dict[str, str]:
    """One peer dies, at every EVERY-th event from the offer until the learner has joined and worked. `first`: a number
    of the test's own."""
    branches, found = Branches(), asked(world)
    victim = host_of(world, who(found))

    def dies() -> str:
        world.kill(victim, "kill", silently=False)
        return judge(world)

    def look(event: int) -> None:
        if victim.alive and event % EVERY == first % EVERY:
            branches.off(f"event {event}", dies)

    at_every_event(world, joined(world, found[0], found[1]), 60.0, look)
    assert branches.moments * EVERY > 100 and world.ledger.top_commit() < world.settings.steps
    return branches.wrong()


@pytest.mark.parametrize("who", WHO_LEARNS)
def test_a_death_while_a_replica_learns_leaves_no_trace(who: str) -> None:
    """Whoever it fetches from has another beside it."""
    wanted, world = final_weights(ended(world_of(THREE, 8))), world_of(THREE, 8)
    view = view_of(world)
    world.start("newcomer", 1, True)

    def victim(found: tuple[int, Peer, Peer | None]) -> Peer:
        stage, peer, _ = found
        one, other = view.holders[stage]
        return {"leader": view.leader, "learner": peer, "first donor": one, "second donor": other}[who]

    first = WHO_LEARNS.index(who)
    assert deaths_until_it_joined(world, victim, lambda world: trace(world, wanted), first) == {}


@pytest.mark.parametrize("leaves", [False, True], ids=["of several stages one", "by one that leaves"])
@pytest.mark.parametrize("who", WHO_HANDS_OVER)
def test_a_death_while_a_stage_is_handed_over(who: str, leaves: bool) -> None:
    """Its giver is the only one who has it: what is lost is rebuilt, and what is not is exact."""
    peers, room = (4, 1) if leaves else (3, 2)
    wanted, world = final_weights(ended(world_of(ALONE, peers, room))), world_of(ALONE, peers, room)
    view = view_of(world)
    if leaves:
        host = holders(world, view)[2][0]
        assert host.peer != view.leader
        world.deliver(host, Leave("its owner wants the machine back"))
        world.start("another", 1, True)
    world.start("newcomer", 2, True)

    def victim(found: tuple[int, Peer, Peer | None]) -> Peer:
        _, peer, giver = found
        assert giver is not None
        return {"leader": view.leader, "learner": peer, "giver": giver}[who]

    first = 3 * leaves + WHO_HANDS_OVER.index(who)
    assert deaths_until_it_joined(world, victim, lambda world: outcome(world, wanted), first) == {}


@pytest.mark.parametrize("in_flight", [True, False], ids=["in flight arrives", "in flight is lost"])
@pytest.mark.parametrize("part", [0.1, 0.5, 0.9], ids=["early", "in the middle", "late"])
def test_a_second_death_before_whichever_message_of_an_election(part: float, in_flight: bool) -> None:
    """The leader dies early in a step, in its middle or late, and then whoever is about to say something about it."""
    wanted, world, branches = undisturbed(), begun(), Branches()
    measured = begun()
    measured.run(measured.now + 60.0, next_step(measured))
    moment = world.events + int(part * (measured.events - world.events))
    world.run(world.now + 60.0, lambda: world.events >= moment)
    for host in leader(world, view_of(world)):
        world.kill(host, "kill", silently=False)
    kinds: set[str] = set()

    def look(host: Host, kind: str, moment: str) -> None:
        def dies() -> str:
            world.on_send = None
            world.kill(host, "kill", silently=False, in_flight=in_flight)
            return outcome(world, wanted)

        if kind in ELECTION:
            kinds.add(kind)
            branches.off(moment, dies)

    before_every_send(world, next_step(world), 60.0, look)
    assert kinds >= {"Prepare", "Promise", "Propose", "Accepted", "Status", "Begin"} and branches.moments > 30
    assert branches.wrong() == {}
