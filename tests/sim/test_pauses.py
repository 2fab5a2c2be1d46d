"""Whoever pauses comes back: where nobody is left to take over what it holds, it stays, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import pytest

from ftnode.protocol.holder.own_departure import OwnDeparture
from ftnode.protocol.situation import Situation
from ftnode.protocol.words.events import Leave, Stay
from ftnode.protocol.words.types import Rung
from tests.sim.host import Host
from tests.sim.test_restart import SETTINGS, Swarm

RUN = replace(SETTINGS, steps=4000, snapshot_every=0)
WORD = Leave("pauses, on battery", pauses=True)
STAGES = tuple(range(RUN.stage_count))


def two(seed: int) -> tuple[Swarm, Host, Host]:
    """Two members with room for everything, who train; who leads, and the other one."""
    swarm = Swarm(RUN, peers=0, seed=seed)
    world = swarm.world
    one, other = world.start("one", 4, True), world.start("other", 4, True)

    def are_in() -> bool:
        view = one.view
        return view is not None and len(view.voters) == 2 and all(view.holders)

    world.run(60.0, are_in)
    assert are_in()
    swarm.goes_on()
    world.rebuilding.seconds = 4.0
    return swarm, *((one, other) if one.participant.leader is not None else (other, one))


def alone(seed: int, learner: bool) -> tuple[Swarm, Host, Host | None]:
    """One who holds everything, and perhaps one who learns from it."""
    swarm = Swarm(RUN, peers=0, seed=seed)
    world = swarm.world
    host = world.start("one", 4, True)
    swarm.until(6)
    world.rebuilding.seconds = 20.0
    if not learner:
        return swarm, host, None
    heir = world.start("zlate", 1, True)
    world.run(world.now + 30.0, lambda: bool(host.participant.leader and host.participant.leader.learners.learners))
    assert host.participant.leader is not None and host.participant.leader.learners.learners
    return swarm, host, heir


def stays(swarm: Swarm, host: Host, seconds: float = 60.0) -> None:
    """It is there, holds all stages of the newest step as they were, and is not leaving; it could go on."""
    world = swarm.world
    world.run(world.now + seconds, lambda: host.participant.departure.stayed > 0 and host.participant.mine == STAGES)
    world.run(world.now + 5.0)
    core = host.participant
    assert host.alive and core.departure.stayed and not core.departure.leaving, "\n".join(list(world.notes)[-20:])
    assert core.mine == STAGES and core.members == {core.me}
    rebuilt = [rung for _, _, rung, _ in swarm.installed if rung not in (Rung.INITIAL, Rung.REPLICA)]
    assert not rebuilt, "\n".join(list(world.notes)[-20:])
    before = world.ledger.top_commit()
    assert {version.step for version in core.holder.versions.values()} <= {before, before - 1}
    world.run(world.now + 20.0)
    assert world.ledger.top_commit() > before


def both_pause(seed: int) -> None:
    swarm, leads, other = two(seed)
    for host in (leads, other) if seed % 2 else (other, leads):
        swarm.world.deliver(host, WORD)
        swarm.world.run(swarm.world.now + 0.05 * (seed % 5))
    swarm.world.run(swarm.world.now + 90.0, lambda: not (leads.alive and other.alive))
    (left,) = swarm.world.live()
    stays(swarm, left)


def only_the_other_pauses(seed: int) -> None:
    """The leader takes over, which takes longer than a lease."""
    swarm, leads, other = two(seed)
    swarm.world.rebuilding.seconds = RUN.lease_seconds + 0.5 * seed
    swarm.world.deliver(other, WORD)
    swarm.world.run(swarm.world.now + 90.0, lambda: not other.alive)
    assert not other.alive
    swarm.world.deliver(leads, WORD)
    stays(swarm, leads)


def the_other_is_killed(seed: int) -> None:
    """One of both holds all when it does; otherwise the rest is rebuilt, and not our business here."""
    swarm, leads, other = two(seed)
    world = swarm.world
    world.deliver(leads, WORD)
    world.at(world.now + 0.3 * seed, lambda: world.kill(other, "power", silently=False), ())
    world.run(world.now + 60.0, lambda: not leads.alive)
    if leads.alive:
        assert leads.participant.members == {leads.participant.me} and not leads.participant.departure.leaving
    else:
        assert world.ledger.top_commit() >= 6 and seed > 3, "it had handed over before"


def the_learner_pauses_too(seed: int) -> None:
    swarm, host, heir = alone(seed, True)
    assert heir is not None
    swarm.world.deliver(host, WORD)
    swarm.world.run(swarm.world.now + 0.1 * seed)
    swarm.world.deliver(heir, WORD)
    stays(swarm, host)


def the_learner_is_slow(seed: int) -> None:
    swarm, host, heir = alone(seed, True)
    assert heir is not None
    swarm.world.deliver(host, WORD)
    swarm.world.run(swarm.world.now + 2.0)
    assert host.participant.departure.leaving
    swarm.world.deliver(host, Stay())
    swarm.world.run(swarm.world.now + 0.1)
    assert host.alive and not host.participant.departure.leaving and host.participant.departure.stayed == 1
    swarm.world.kill(heir, "power", silently=False)
    stays(swarm, host)


def nobody_else_is_there(seed: int) -> None:
    swarm, host, _ = alone(seed, False)
    swarm.world.deliver(host, WORD)
    stays(swarm, host)


WAYS = (
    both_pause,
    only_the_other_pauses,
    the_other_is_killed,
    the_learner_pauses_too,
    the_learner_is_slow,
    nobody_else_is_there,
)


@pytest.mark.parametrize("seed", range(1, 9))
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_pause_loses_nothing(way: Callable[[int], None], seed: int) -> None:
    way(seed)


@pytest.mark.parametrize("seed", range(1, 21))
def test_of_several_who_pause_in_the_same_seconds_one_stays_with_all_of_it(seed: int) -> None:
    """Whoever was left earlier has handed over, or goes when the last one has it."""
    swarm, chance = Swarm(RUN, peers=0, seed=seed), Random(seed)
    world = swarm.world
    hosts = [world.start(f"peer{number}", 4, True) for number in range(chance.choice([2, 3, 4]))]
    swarm.until(5)
    spread = chance.choice([0.05, 1.0, 4.0])
    for host in hosts:
        world.at(world.now + spread * chance.random(), world.deliver, (host, WORD))
    world.run(world.now + 90.0, lambda: len(world.live()) == 1)
    (left,) = world.live()
    stays(swarm, left)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_a_core_that_stops_all_the_same_would_be_noticed(
    way: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def only_stops(self: OwnDeparture, s: Situation) -> bool:
        return False

    monkeypatch.setattr(OwnDeparture, "_loses_all", only_stops)
    monkeypatch.setattr(OwnDeparture, "_stay", lambda self, s, reason: self._go(s))
    with pytest.raises((AssertionError, ValueError)):
        for seed in range(1, 4):
            way(seed)


def test_who_leaves_for_good_goes_alone_as_well() -> None:
    swarm, host, _ = alone(1, False)
    swarm.world.deliver(host, Leave("Ctrl-C"))
    swarm.world.run(swarm.world.now + 1.0)
    assert not host.alive


def test_asked_to_leave_in_a_pause_it_goes() -> None:
    swarm, host, heir = alone(1, True)
    assert heir is not None
    for word in (WORD, Leave("Ctrl-C"), WORD):
        swarm.world.deliver(host, word)
    swarm.world.kill(heir, "power", silently=False)
    swarm.world.run(swarm.world.now + 60.0, lambda: not host.alive)
    assert not host.alive
