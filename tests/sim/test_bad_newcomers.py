"""Newcomers that cannot do their part cost little, and are not asked again and again (rules 26, 38)."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import replace
from typing import Any, Final

import pytest

from ftnode.lab.hostile import traitor
from ftnode.protocol.leader.duty import Duty
from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.words.effects import Note
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.planted import patched
from tests.sim.test_duty import LONG, betrays, seen
from tests.sim.world import World

SETTINGS: Final = replace(LONG, replicas=4, lease_seconds=10.0)
BEFORE_SECONDS: Final = 60.0
WATCHED_SECONDS: Final = 600.0
BURST_SECONDS: Final = 70.0
"""What newcomers that come together may cost before they are gone: one for each stage, some heartbeats and a view each,
and a lease besides for one that holds the head."""
LEAST: Final = 0.9 - BURST_SECONDS / WATCHED_SECONDS
UNREADY_SECONDS: Final = 300.0
"""With one newcomer, which a leader that waits for it for ever then waits for three quarters of the time."""
SLOW_SECONDS: Final = 60.0
"""Of a newcomer, for a forward."""


@kept
def two_of_each(seed: int) -> World:
    world = World(SETTINGS, seed, delay_max=0.03)
    world.notes = deque()
    for index in range(2 * SETTINGS.stage_count):
        world.at(0.1 * index, world.start, (f"peer{index}", 1, True))
    world.run(BEFORE_SECONDS)
    return world


def comes(world: World, name: str, says_so: bool = False) -> Host:
    """A newcomer that is slow, and says in the directory that it is fast, or does not."""
    host = world.start(name, 1, True)
    if says_so:
        host.forward_seconds = SLOW_SECONDS
    else:
        world.at(world.now + 2.0, setattr, (host, "forward_seconds", SLOW_SECONDS))
    return host


def rate(world: World, seconds: float = WATCHED_SECONDS) -> float:
    """Steps a second."""
    before, begun = world.ledger.top_commit(), world.now
    world.run(begun + seconds)
    return (world.ledger.top_commit() - before) / seconds


def rate_with(count: int, seed: int = 1, says_so: bool = False) -> tuple[float, World]:
    world = two_of_each(seed)
    for index in range(count):
        comes(world, f"slow{index}", says_so)
    return rate(world), world


@kept
def usual_rate(seed: int = 1, seconds: float = WATCHED_SECONDS) -> float:
    """Where nobody is slow."""
    return rate(two_of_each(seed), seconds)


def asked(world: World) -> list[str]:
    return [note for note in world.notes if " learner: asks slow" in note]


def lost(world: World) -> set[str]:
    """Of notes like `87.868 peer0 lost: slow3 with stage 2 is lost`."""
    found = (re.match(r" *[\d.]+ \S+ lost: (\S+)", note) for note in world.notes)
    return {match[1] for match in found if match is not None}


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("count", [1, 4, 8])
def test_slow_newcomers_cost_a_tenth_and_what_the_last_of_them_cost(count: int, seed: int) -> None:
    slow, world = rate_with(count, seed)
    assert asked(world) and any(name.startswith("slow") for name in lost(world)), "none of them came in"
    assert slow >= LEAST * usual_rate(seed)
    assert all(name.startswith("slow") for name in lost(world))


def test_who_says_that_it_is_slow_is_not_asked() -> None:
    slow, world = rate_with(4, says_so=True)
    assert asked(world) == [] and lost(world) == set() and slow >= 0.95 * usual_rate()


def test_it_still_fills_a_stage_that_is_lost() -> None:
    world = two_of_each(1)
    host = comes(world, "slow", says_so=True)
    world.run(world.now + 10.0)
    view = seen(world)
    stage = next(stage for stage in (1, 2, 3) if view.leader not in view.holders[stage])
    for peer in view.holders[stage]:
        world.kill(world.by_id[peer.id], "kill", silently=False)
    world.run(world.now + 60.0, lambda: host.peer in seen(world).members())
    assert seen(world).holders[stage] != view.holders[stage]


def test_without_a_bound_they_cost_more() -> None:
    with patched((LeaderMemory, "failed_newcomers", lambda self, now, seconds: None)):
        slow, _ = rate_with(8)
    assert slow < LEAST * usual_rate()


def seconds_until_one_is_gone() -> float:
    """From the first answer that it learns."""
    world = two_of_each(1)
    for index in range(4):
        comes(world, f"slow{index}")
    world.run(world.now + 60.0)
    learns, gone = (
        min(float(note.split()[0]) for note in world.notes if kind in note and "slow" in note)
        for kind in (" learns ", " lost: ")
    )
    return gone - learns


def test_without_probation_it_may_owe_for_longer() -> None:
    sooner = seconds_until_one_is_gone()
    with patched((Duty, "_on_probation", lambda self, peer: False)):
        assert sooner < seconds_until_one_is_gone() - SETTINGS.heartbeat_seconds


def never_ready(world: World, name: str) -> Host:
    host = comes(world, name)
    betrays(host, traitor.unready)
    return host


def offers(world: World, host: Host) -> int:
    return sum(f" learner: asks {host.peer} to" in note for note in world.notes)


def test_a_learner_that_is_never_ready_is_dropped() -> None:
    world = two_of_each(1)
    host = never_ready(world, "unready")
    with_it = rate(world, UNREADY_SECONDS)
    assert any("it is never ready" in note for note in world.notes)
    assert 0 < offers(world, host) <= 3 and lost(world) == set()
    assert with_it >= 0.85 * usual_rate(seconds=UNREADY_SECONDS)


def test_a_leader_that_waits_for_it_for_ever_is_slower() -> None:
    with patched((Learners, "late", late_for_ever)):
        world = two_of_each(1)
        never_ready(world, "unready")
        slow = rate(world, UNREADY_SECONDS)
    assert slow < 0.85 * usual_rate(seconds=UNREADY_SECONDS)


def late_for_ever(self: Learners, s: Any, out: list[Note], base: int) -> None:
    """Nobody is dropped."""
    self._join.passed()
    self.waits_no_longer(out)  # type: ignore[arg-type]
