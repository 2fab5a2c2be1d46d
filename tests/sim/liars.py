"""Kinds of lies in the virtual world, for `ftnode lab liars` and its tests: `python -m tests.sim.liars KIND WORLDS`.

In each world a liar is one of three holders of a stage, with eight visits a step and the default share of checks. All
lies about a gradient are one kind here, for numbers have no size.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from random import Random
from typing import Any, Final

from ftnode.lab.hostile import traitor
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View
from tests.sim.checks import Violation
from tests.sim.compute import Gradients
from tests.sim.host import Host
from tests.sim.kept_worlds import kept
from tests.sim.planted import other_sums
from tests.sim.targets import best_view
from tests.sim.test_duty import LONG, betrays
from tests.sim.world import World

CHECKS: Final = 0.02
STAGE: Final = 1
SETTLED_SECONDS: Final = 20.0
STEPS: Final = 300
SECONDS_MAX: Final = 600.0
SETTINGS: Final = replace(LONG, stages=2, replicas=3, microbatches=8, window=4, checks=CHECKS)
LATER: Final = 200
LARGE_GROUP: Final = 5
"""Of which two liars are no majority."""
IDENTITIES: Final = 50
HONEST: Final = 5
CROWD: Final = "x"
"""What names of the crowd begin with."""


@dataclass
class Seen:
    """Of one world. `steps`: until a leader had let all liars go; None: they stayed. `removed`: honest members that
    leaders let go. `harmless`: nothing came of the lie, though nobody was found."""

    steps: int | None
    removed: int
    harmless: bool = False


def measure(kind: str, worlds: int, checks: float = CHECKS) -> dict[str, Any]:
    return summed(seen_in(kind, range(1, worlds + 1), checks))


def seen_in(kind: str, seeds: Iterable[int], checks: float = CHECKS) -> list[dict[str, Any]]:
    """What `summed` takes, of each world."""
    return [asdict(KINDS[kind](seed, replace(SETTINGS, checks=checks))) for seed in seeds]


def summed(seen: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """`steps_until_found`: the mean of those worlds in which the liars were found."""
    rows = [*seen]
    steps = [row["steps"] for row in rows if row["steps"] is not None]
    return {
        "worlds": len(rows),
        "found": len(steps),
        "steps_until_found": round(sum(steps) / len(steps), 1) if steps else None,
        "steps_at_most": max(steps, default=None),
        "honest_removed": sum(row["removed"] for row in rows),
        "harmless": sum(row["harmless"] for row in rows),
    }


@kept
def grown(seed: int, settings: Any, peers: int, spare: int = 1, networked: bool = False) -> World:
    """A world that trains, with this many peers and some that stand by. `networked`: each at a network of its own."""
    world = World(settings, seed, delay_max=0.03)
    world.notes = deque()
    for index in range(peers + spare):
        world.networks |= {f"peer{index}": f"10{index}.0.0.0/16"} if networked else {}
        world.at(0.1 * index, world.start, (f"peer{index}", 1, True))
    world.run(SETTLED_SECONDS)
    world.run(10 * SETTLED_SECONDS, lambda: full(world, peers))
    return world


def full(world: World, peers: int) -> bool:
    view = best_view(world)
    return view is not None and len(view.members()) >= peers and world.ledger.top_commit() > 0


def view_of(world: World) -> View:
    view = best_view(world)
    assert view is not None
    return view


def lost(world: World) -> list[str]:
    return [note.split(" lost: ")[1].split()[0] for note in world.notes if " lost: " in note]


def liars_of(world: World, count: int) -> list[Host]:
    """Of one group, those that do not lead."""
    view = view_of(world)
    group = [peer for peer in view.holders[STAGE] if peer != view.leader]
    return [world.by_id[peer.id] for peer in group[-count:]]


def watched(world: World, liars: list[Host], around: AbstractContextManager[Any] | None = None) -> Seen:
    """From now on until the liars are gone, or had their steps."""
    names, begun = {str(host.peer) for host in liars}, world.ledger.top_commit()
    world.notes.clear()
    with around or nullcontext():
        world.run(
            world.now + SECONDS_MAX,
            lambda: names <= {*lost(world)} or world.ledger.top_commit() >= begun + STEPS,
        )
    gone = lost(world)
    found = world.ledger.top_commit() - begun if names <= {*gone} else None
    return Seen(found, sum(name not in names for name in gone))


# -- lies about gradients


def turned(gradients: Gradients) -> Gradients:
    """Another number for each visit."""
    return {visit: ~chain for visit, chain in gradients.items()}


def some(seed: int, share: float) -> Callable[[Gradients], Gradients]:
    """Another number for this share of the visits."""
    chance = Random(f"visits {seed}")

    def lie(gradients: Gradients) -> Gradients:
        return {visit: ~chain if chance.random() < share else chain for visit, chain in gradients.items()}

    return lie


def gradients(seed: int, settings: Any, later: int = 0, share: float = 1.0, liars: int = 1) -> Seen:
    world = grown(seed, settings, settings.replicas * settings.stage_count)
    world.run(world.now + 10 * SECONDS_MAX, lambda: world.ledger.top_commit() >= later)
    world.liars = True
    chosen = liars_of(world, liars)
    for host in chosen:
        host.lies = turned if share >= 1.0 else some(seed, share)
        host.agrees = liars > 1
    return watched(world, chosen)


# -- lies of a core


def of_core(make: Callable[[], traitor.Way], seed: int, settings: Any) -> Seen:
    world = grown(seed, settings, settings.replicas * settings.stage_count)
    world.liars = True
    (host,) = liars_of(world, 1)
    way = make()
    before = traitor.Unworked.watch if isinstance(way, traitor.Unworked) else None
    if before is not None:  # it has seen what a Ready is
        betrays(host, way.watch)  # type: ignore[attr-defined]
        step = world.ledger.top_commit()
        world.run(world.now + SETTLED_SECONDS, lambda: world.ledger.top_commit() > step + 1)
    betrays(host, way)
    return watched(world, [host])


def hashes(seed: int, settings: Any) -> Seen:
    world = grown(seed, settings, settings.replicas * settings.stage_count)
    world.alike = False
    (host,) = liars_of(world, 1)
    return watched(world, [host], other_sums(lambda owner, task: owner == str(host.peer) and task.stage == STAGE))


# -- copies and crowds


def copies(seed: int, settings: Any) -> Seen:
    """One of the two who keep copies of the head lends others than it was lent; then the head's holder is lost.
    Harmless: the run goes on, and nothing of the liar's gets in."""
    world = grown(seed, replace(settings, replicas=1), settings.stage_count, spare=1)
    world.run(world.now + SETTLED_SECONDS)
    keepers = [host for host in world.live() if 0 in host.copies]
    liar = keepers[seed % len(keepers)]
    liar.bend_copies(lambda weights: weights._replace(history=weights.history ^ 1))
    head = world.by_id[view_of(world).holders[0][0].id]
    before = world.ledger.top_commit()
    world.kill(head, "kill", silently=False)
    try:
        world.run(world.now + 5 * SETTLED_SECONDS, lambda: world.ledger.top_commit() >= before + 3)
    except Violation:
        return Seen(None, 0)
    return Seen(None, 0, harmless=world.ledger.top_commit() >= before + 3)


def donors(seed: int, settings: Any) -> Seen:
    """Each stage has one holder. The middle one is lost, and one beside it lends other weights for it.

    Harmless: the run goes on, nothing of the liar's gets in, and the stage is made of others."""
    world = grown(seed, replace(settings, replicas=1, stages=5), 6, spare=2)
    made: list[tuple[int, ...]] = []
    world.on_installed = lambda host, effect: made.append(tuple(donor.stage for donor in effect.plan.donors))
    beside, lost_stage = (2, 4)[seed % 2], 3
    world.liars = True
    world.by_id[view_of(world).holders[beside][0].id].lends = lambda history: ~history
    (gone,) = view_of(world).holders[lost_stage]
    before = world.ledger.top_commit()
    world.notes.clear()
    world.kill(world.by_id[gone.id], "kill", silently=False)
    try:
        world.run(world.now + 5 * SETTLED_SECONDS, lambda: world.ledger.top_commit() >= before + 3)
    except Violation:
        return Seen(None, 0)
    asked = any(beside in lenders for lenders in made) and beside not in made[-1]
    removed = sum(" is lost (" in note and f"lost: {gone} " not in note for note in world.notes)
    return Seen(None, removed, harmless=asked and world.ledger.top_commit() >= before + 3)


def fifty(seed: int, settings: Any) -> Seen:
    """Fewer honest ones than places, at a network each; then fifty identities of one machine come. Harmless: they are
    no majority."""
    world = grown(seed, settings, HONEST, spare=0, networked=True)
    for index in range(IDENTITIES):
        world.networks[f"{CROWD}{index}"] = "203.0.0.0/16"
        world.at(world.now + 0.05 * index, world.start, (f"{CROWD}{index}", 1, True))
    world.notes.clear()
    world.run(world.now + 6 * SETTLED_SECONDS)
    view, removed = view_of(world), sum(not name.startswith(CROWD) for name in lost(world))
    return Seen(None, removed, harmless=not any(map(majority, (view.voters, *view.holders))))


def majority(group: tuple[Peer, ...]) -> bool:
    """Of identities of the crowd."""
    return 2 * sum(peer.id.startswith(CROWD) for peer in group) > len(group)


KINDS: Final[dict[str, Callable[[int, Any], Seen]]] = {
    "gradients": gradients,
    "tenth": lambda seed, settings: gradients(seed, settings, share=0.1),
    "later": lambda seed, settings: gradients(seed, settings, later=LATER),
    "friends": lambda seed, settings: gradients(seed, replace(settings, replicas=LARGE_GROUP), liars=2),
    "majority": lambda seed, settings: gradients(seed, settings, liars=2),
    "hashes": hashes,
    "unworked": lambda seed, settings: of_core(traitor.Unworked, seed, settings),
    "accuser": lambda seed, settings: of_core(traitor.Accusing, seed, settings),
    "donors": donors,
    "copies": copies,
    "fifty": fifty,
}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
