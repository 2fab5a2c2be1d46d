"""Deaths at every event of a step and before every message of it, not at some: of the leader, the first holder of each
group, or several at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.view import View
from tests.sim.branches import Branches, at_every_event, before_every_send
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.planted import dead_ends
from tests.sim.reduction import ALONE_SECONDS
from tests.sim.targets import best_view, holders
from tests.sim.test_groups import SETTINGS, final_weights, sizes
from tests.sim.world import World
from tests.tiers import at_night

QUIET = replace(
    SETTINGS, replicas=2, steps=8, head_every=0, microbatches=3, window=3, evaluate_every=0, evaluation_microbatches=0
)
"""Three microbatches, since one holder of the head then has two and gives work to both holders of each stage."""
pytestmark = pytest.mark.timeout(600)
SLEEP_SECONDS = 2.05 * QUIET.lease_seconds
"""Longer than the first voters need to miss the leader, and shorter than it takes to be taken for dead without one."""
EVERY = int(os.environ.get("FTNODE_EVERY", "6" if at_night() else "12"))
"""Events of a step between two deaths of the same peer. The first of them differs from peer to peer, so that somebody
dies at every second event; FTNODE_EVERY=1 looks at all deaths."""
EVERY_MESSAGE = 6
"""Messages of a step between two deaths, but in the night, which looks at all."""
SEEDS = range(3, 103)
"""Not every world comes to what is looked at here."""
Victims = Callable[[World, View], list[Host]]
Weights = dict[int, set[int]]


class OtherWorld(Exception):
    """It did not come to what is looked at here."""


@kept
def begun(settings: Settings = QUIET) -> World:
    """All groups full, no view between the steps that follow, and a leader that is the second of its group:
    the founder is dead, and the first holders slept when the others chose another."""
    for seed in SEEDS:
        with suppress(OtherWorld):
            return begun_with(settings, seed)
    raise AssertionError(f"no world of {len(SEEDS)} comes to it")


def begun_with(settings: Settings, seed: int) -> World:
    """Raises OtherWorld."""
    world = World(settings, seed, delay_max=0.02)
    world.forward_seconds = 0.05
    full = [settings.replicas] * settings.stage_count
    for index in range(sum(full)):
        world.start(f"peer{index}", 1, True)
    world.start("late", 1, True)
    world.run(60.0, lambda: sizes(world) == full and len(view_of(world).voters) == sum(full))
    world.run(world.now + 0.1)  # everybody is shown the view
    view = view_of(world)
    for host in world.live():
        if host.peer == view.leader:
            world.kill(host, "kill", silently=False)
        elif host.peer in firsts(view):
            world.pause(host)
            world.at(world.now + SLEEP_SECONDS, world.resume, (host,))
    world.run(60.0, lambda: sizes(world) == full and len(settled_voters(world)) == sum(full))
    view, commit = view_of(world), world.ledger.top_commit()
    world.run(60.0, lambda: world.ledger.top_commit() > commit)
    if view_of(world) != view or sizes(world) != full or view.leader in firsts(view):
        raise OtherWorld
    return world


def view_of(world: World) -> View:
    view = best_view(world)
    assert view is not None
    return view


def settled_voters(world: World) -> set[object]:
    return {peer for peer in view_of(world).voters if any(peer == host.peer for host in world.live())}


def firsts(view: View) -> set[object]:
    return {group[0] for group in view.holders}


def leader(world: World, view: View) -> list[Host]:
    return [host for host in world.live() if host.peer == view.leader]


def first_of(stage: int) -> Victims:
    return lambda world, view: holders(world, view)[stage][:1]


def several(world: World, view: View) -> list[Host]:
    """One of each group at once, the leader among them: no quorum is left, so the others found a lineage and redo the
    step."""
    groups = holders(world, view).values()
    return [next((host for host in group if host.peer == view.leader), group[-1]) for group in groups]


def ended(world: World) -> World:
    steps = world.settings.steps
    world.run(world.now + 120.0, lambda: world.ledger.top_commit() >= steps)
    world.run(world.now + 2.0)
    return world


@kept
def undisturbed(settings: Settings = QUIET) -> Weights:
    return final_weights(ended(begun(settings)))


def trace(world: World, wanted: Weights) -> str:
    """What shows of a death when the run has come to its end: nothing if the weights are as `wanted`."""
    commit = ended(world).ledger.top_commit()
    if commit < world.settings.steps:
        return f"no commit after {commit}"
    return "a stage was lost" if world.losses else "" if final_weights(world) == wanted else "other weights"


def next_step(world: World) -> Callable[[], bool]:
    """The end of the step in progress."""
    commit = world.ledger.top_commit()
    return lambda: world.ledger.top_commit() > commit


WHO: dict[str, Victims] = {
    "leader": leader, "several": several, **{f"first of {stage}": first_of(stage) for stage in range(4)}
}  # fmt: skip


def traces(
    who: str, every: int = 1, settings: Settings = QUIET, *, first: int = 0,
    sum_seconds: float = ALONE_SECONDS, slower: float = 1.0, one: bool = False,
) -> dict[str, str]:  # fmt: skip
    """The events of a step at which a death shows afterwards. `every`, `first`: how far apart the events are that are
    looked at, and which is the first; `sum_seconds`: that a group's sum takes; `slower`: compute and lines, so that the
    step goes on while the next view is chosen; `one`: one such event is enough."""
    wanted, world, branches = undisturbed(settings), begun(settings), Branches(one)
    world.reductions.seconds = sum_seconds
    for host in world.live():
        host.forward_seconds *= slower
        for link in host.links.values():
            link.delay *= slower

    def dies() -> str:
        victims = WHO[who](world, view_of(world))
        assert victims
        for host in victims:
            world.kill(host, "kill", silently=False)
        return trace(world, wanted)

    def look(event: int) -> None:
        if event % every == first:
            branches.off(f"event {event}", dies)

    at_every_event(world, next_step(world), 60.0, look)
    assert branches.moments * every > 100 and world.ledger.top_commit() + 1 < settings.steps
    return branches.wrong()


@pytest.mark.parametrize("who", WHO)
def test_whoever_dies_at_whichever_event_of_a_step_leaves_no_trace(who: str) -> None:
    assert traces(who, EVERY, first=list(WHO).index(who) * EVERY // len(WHO)) == {}


@pytest.mark.parametrize("in_flight", [True, False], ids=["in flight arrives", "in flight is lost"])
def test_whoever_dies_before_whichever_message_of_a_step_leaves_no_trace(in_flight: bool) -> None:
    wanted, world, branches, messages = undisturbed(), begun(), Branches(), count()
    senders: dict[str, set[object]] = {}
    every = 1 if at_night() else EVERY_MESSAGE

    def look(host: Host, kind: str, moment: str) -> None:
        def dies() -> str:
            world.on_send = None
            world.kill(host, "kill", silently=False, in_flight=in_flight)
            return trace(world, wanted)

        senders.setdefault(kind, set()).add(host.peer)
        if next(messages) % every == in_flight % every:
            branches.off(moment, dies)

    before_every_send(world, next_step(world), 60.0, look)
    assert senders.keys() >= {"Begin", "Boundary", "Stored", "Share", "Ready"} and branches.moments * every > 100
    assert senders["Boundary"] == set(view_of(world).members()), "everybody works"
    assert branches.wrong() == {}


def test_it_would_be_seen_if_visits_were_left_with_the_dead() -> None:
    with dead_ends():
        assert traces("leader", every=10, one=True)
