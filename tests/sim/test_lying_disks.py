"""Disks that lie: of a later step, of other weights, and of what those have who were killed (rule 46).

The liar's core decides as all others do; what its disk tells and lends is made up. Invariant I4 sees each stage that is
filled with it. It starts a little later than the others, since nobody can judge whoever is there first (SECURITY.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from ftnode.protocol.leader import restart
from ftnode.protocol.recovery import rolls
from ftnode.protocol.words.messages import Roll, Signed
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Rung, Snapshot, Version
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation
from tests.sim.disks import Saved
from tests.sim.planted import patched
from tests.sim.targets import best_view
from tests.sim.test_groups import final_weights
from tests.sim.test_restart import SETTINGS, Swarm

LATER = Version(13, "a lie", Attempt(2, 13))
LIAR = "liar"
"""With the lowest PeerId it founds the run again and looks at the disks."""
FOLLOWER = "zliar"
FALSE = 1
"""A history that nobody has."""


def made_up(settings: Settings, version: Version) -> list[Saved]:
    """Every stage, with digests that go before all others when they are counted."""
    return [Saved(Snapshot(stage, version, "0", 1), FALSE) for stage in range(settings.stage_count)]


def switched_off(seed: int, settings: Settings = SETTINGS, step: int = 10) -> tuple[Swarm, View, Version]:
    """A swarm without power, the view that it had, and the newest version that all disks have."""
    swarm = Swarm(settings, seed=seed)
    swarm.until(step)
    swarm.world.run(swarm.world.now + 1.0)
    view = best_view(swarm.world)
    assert view is not None
    every = [{saved.snapshot.version for saved in disk} for disk in swarm.world.disks.held.values()]
    newest = max(set.intersection(*every), key=lambda version: version.step)
    for host in swarm.world.live():
        swarm.world.kill(host, "power", silently=False)
    swarm.installed.clear()
    return swarm, view, newest


def start(swarm: Swarm, away: tuple[str, ...] = (), liar: str = LIAR) -> None:
    """All but those who stay away; the liar when the others have found each other."""
    names = [name for name in sorted(swarm.world.disks.held) if name not in (*away, liar)]
    for index, name in enumerate(names):
        swarm.world.at(swarm.world.now + 0.5 + 0.4 * index, swarm.world.start, (name, 1, True))
    swarm.world.at(swarm.world.now + 4.0, swarm.world.start, (liar, 1, True))


def forged(peer: Peer, view: View, version: Version) -> Roll:
    """What a liar can sign by itself."""
    mine = (peer,)
    alone = replace(view, number=view.number + 5, leader=peer, voters=mine, holders=(mine,) * len(view.holders))
    return Roll(alone, version, ("0",) * len(view.holders), (Signed(peer, ""),))


def later_step(seed: int, liar: str, *, roll: bool) -> None:
    """A disk has every stage of a step that never was, with a roll of its own making or without."""
    swarm, view, newest = switched_off(seed)
    world = swarm.world
    world.disks.held[liar] = made_up(world.settings, LATER)
    if roll:
        peer = Peer(liar, 7)
        world.disks.rolls[liar] = (world.seals.sealed_roll(peer, forged(peer, view, LATER)),)
    start(swarm, liar=liar)
    swarm.until(SETTINGS.steps)
    assert {base for *_, base in swarm.installed} == {newest}
    world.run(world.now + 2.0)
    assert final_weights(world) == undisturbed_of(seed)


_UNDISTURBED: dict[int, dict[int, set[int]]] = {}


def undisturbed_of(seed: int) -> dict[int, set[int]]:
    if seed not in _UNDISTURBED:
        swarm = Swarm(seed=seed)
        swarm.until(SETTINGS.steps)
        swarm.world.run(swarm.world.now + 2.0)
        _UNDISTURBED[seed] = final_weights(swarm.world)
    return _UNDISTURBED[seed]


def other_weights(seed: int) -> None:
    """A disk has other weights of a step that was."""
    swarm, _, newest = switched_off(seed)
    swarm.world.disks.held[FOLLOWER] = made_up(swarm.world.settings, newest)
    start(swarm, liar=FOLLOWER)
    swarm.until(SETTINGS.steps)
    assert {base for *_, base in swarm.installed} == {newest}


def forced_amnesia(seed: int) -> None:
    """Whoever has a stage does not come back, and a liar has it. The stage is rebuilt from others instead."""
    swarm, view, newest = switched_off(seed)
    stage = 1 + seed % SETTINGS.stages
    gone = tuple(peer.id for peer in view.holders[stage])
    swarm.world.disks.held[FOLLOWER] = [
        saved for saved in made_up(swarm.world.settings, newest) if saved.snapshot.stage == stage
    ]
    start(swarm, gone, FOLLOWER)
    swarm.until(SETTINGS.steps)
    ways = swarm.rungs()
    assert ways.pop(stage) not in (Rung.SNAPSHOT, Rung.INITIAL), ways
    assert {base for *_, base in swarm.installed} == {newest} and {*ways.values()} == {Rung.SNAPSHOT}


SEEDS = range(1, 5)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("roll", [False, True])
def test_a_disk_that_tells_of_a_later_step_is_not_believed(seed: int, roll: bool) -> None:
    later_step(seed, FOLLOWER, roll=roll)


@pytest.mark.parametrize("roll", [False, True])
def test_nor_when_the_liar_looks_at_the_disks_itself(roll: bool) -> None:
    """With a roll of its own it goes on from its lie. The others do not follow, and go on without it."""
    later_step(1, LIAR, roll=roll)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_disk_with_other_weights_is_not_asked_for_them(seed: int) -> None:
    other_weights(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_whoever_kills_the_honest_holders_does_not_get_its_copy_taken(seed: int) -> None:
    forced_amnesia(seed)


def without_rolls(seed: int, version: Version | None, *names: str) -> tuple[Version, set[Version]]:
    """All but rolls is on honest disks. These liars have made-up snapshots of that version, or of the newest one. The
    newest that there was, and what the swarm goes on from."""
    swarm, _, newest = switched_off(seed)
    world = swarm.world
    assert world.disks.rolls
    world.disks.rolls.clear()
    for name in names:
        world.disks.held[name] = made_up(world.settings, version or newest)
    start(swarm, liar=names[0])
    swarm.until(SETTINGS.steps)
    return newest, {base for *_, base in swarm.installed}


@pytest.mark.parametrize("seed", SEEDS)
def test_who_has_no_roll_believes_two_that_lie_and_not_one(seed: int) -> None:
    """It is not defended, as SECURITY.md says."""
    newest, base = without_rolls(seed, LATER, FOLLOWER)
    assert base == {newest}
    _, base = without_rolls(seed, LATER, FOLLOWER, "zzliar")
    assert base == {LATER}


def test_who_has_no_roll_takes_other_weights_of_a_step_that_was() -> None:
    """It is not defended, as SECURITY.md says: no digest is known."""
    with pytest.raises(Violation):
        for seed in SEEDS:
            without_rolls(seed, None, FOLLOWER)


def no_rolls() -> Any:
    """As before there were rolls."""
    return patched(
        (restart, "believed", lambda known, _: (dict(known), set())), (restart, "witnessed", lambda found, _: found)
    )


def signatures_do_not_count() -> Any:
    """Whoever has signed a roll, it follows."""
    return patched((rolls, "_signed_for", lambda view, roll: True))


def digests_are_not_compared() -> Any:
    return patched((rolls, "agreed", lambda roll, stage: ""))


def nobody_doubts() -> Any:
    """Members follow their leader to whatever it says that disks have."""
    return patched((rolls.OwnRolls, "doubts", lambda self, *asked: False))


@contextmanager
def planted(plant: Callable[[], Any]) -> Iterator[None]:
    with plant():
        yield


@pytest.mark.parametrize(
    ("plant", "schedule"),
    [
        (no_rolls, lambda seed: later_step(seed, FOLLOWER, roll=False)),
        (no_rolls, other_weights),
        (no_rolls, forced_amnesia),
        (signatures_do_not_count, lambda seed: later_step(seed, FOLLOWER, roll=True)),
        (digests_are_not_compared, other_weights),
        (digests_are_not_compared, forced_amnesia),
        (nobody_doubts, lambda seed: later_step(seed, LIAR, roll=True)),
    ],
)
def test_a_planted_bug_is_found(plant: Callable[[], Any], schedule: Callable[[int], None]) -> None:
    with planted(plant), pytest.raises((Violation, AssertionError)):
        for seed in SEEDS:
            schedule(seed)
