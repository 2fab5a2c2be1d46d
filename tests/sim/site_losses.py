"""A site of three is lost with all its peers, once: what becomes of the run, where peers say where they are, and where
nobody does.

    python -m tests.sim.site_losses 1 300

says of these seeds how many runs came through by what, with the loss of a quorum told apart.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from statistics import median

from ftnode.protocol.recovery.rungs import REBUILT
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Rung
from tests.sim.targets import best_view
from tests.sim.world import World

SITES = 3
STEPS_BEFORE, SECONDS_BEFORE = 12, 40.0
"""The swarm is whole and has trained for so long."""
STEPS_AFTER, SECONDS_AFTER = 6, 120.0
ENDED = ("unhurt", "copies", "rebuilt", "halted")
"""All stages have other holders; one at least came back from a copy; from other stages; nothing goes on."""


@dataclass(frozen=True, slots=True)
class Loss:
    """What one of ENDED came of it; `seconds` until the next commit; `quorum`: the voters that were left had one."""

    ended: str
    seconds: float
    quorum: bool


def settings_of(chance: Random) -> Settings:
    stages = chance.randint(4, 8)
    return Settings(
        run="sites", stages=stages, steps=100_000, microbatches=4, window=4, live_activations=4, listed=True,
        replicas=chance.choice([1, 1, 2, 3]), head_every=chance.choice([1, 2, 4]), shadow_every=chance.choice([1, 3]),
        lease_seconds=3.0, minority_wait_seconds=6.0,
    )  # fmt: skip


def swarm(seed: int, told: bool, changed: dict[str, int] | None = None) -> World:
    """A swarm that has settled; peers come one after the other, each at a site of its own choice."""
    chance = Random(f"site losses {seed}")
    settings = replace(settings_of(chance), **(changed or {}))  # type: ignore[arg-type]
    world = World(settings, seed, delay_max=0.01)
    world.sites, world.sites_told = SITES, told
    for number in range(settings.stage_count * settings.replicas + chance.randint(0, 2)):
        world.at(chance.uniform(0.0, 20.0), world.start, (f"{seed}-{number}", chance.choice([1, 1, 2]), True))
    world.run(SECONDS_BEFORE)
    world.run(SECONDS_BEFORE * 10, lambda: world.ledger.top_commit() >= STEPS_BEFORE)
    world.run(world.now + chance.uniform(1.0, 3.0))
    return world


def strike(world: World, site: str) -> bool:
    """All that are there go; nothing comes back there, and as many come elsewhere. False: no quorum is left."""
    view = best_view(world)
    assert view is not None
    there = [host for host in world.live() if world.site(host.peer.id) == site]
    for host in there:
        world.kill(host, "site", silently=False)
    names = (name for name in (f"new{world.seed}-{number}" for number in range(1000)) if world.site(name) != site)
    for _, name in zip(there, names):
        world.at(world.now + world.chance.uniform(0.1, 6.0), world.start, (name, 2))
    return view.is_quorum(voter for voter in view.voters if world.site(voter.id) != site)


def lost(seed: int, told: bool) -> Loss | None:
    """None: no site has some of the members and not all of them."""
    world = swarm(seed, told)
    view = best_view(world)
    assert view is not None
    sites = Counter(world.site(peer.id) for peer in view.members())
    struck = Random(f"struck {seed}").choice([f"site{number}" for number in range(SITES)])
    if not 0 < sites[struck] < len(view.members()):
        return None
    began, last = world.now, world.ledger.top_commit()
    quorum = strike(world, struck)
    world.run(began + SECONDS_AFTER, lambda: world.ledger.top_commit() > last)
    seconds = world.now - began
    if world.ledger.top_commit() == last:
        return Loss("halted", seconds, quorum)
    world.run(began + SECONDS_AFTER, lambda: world.ledger.top_commit() >= last + STEPS_AFTER)
    rungs = {rung for fault, rung in world.met if fault == "site"}
    if rungs & REBUILT:
        return Loss("rebuilt", seconds, quorum)
    return Loss("copies" if rungs & {Rung.HEAD, Rung.SHADOW} else "unhurt", seconds, quorum)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--processes", type=int, default=1)
    options = parser.parse_args()
    seeds = range(options.first, options.last + 1)
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        for told in (True, False):
            found = [loss for loss in pool.map(partial(lost, told=told), seeds, chunksize=4) if loss is not None]
            counts = Counter(loss.ended for loss in found)
            shares = ", ".join(f"{ended} {counts[ended] / len(found):.1%}" for ended in ENDED)
            print(f"{'sites are told' if told else 'nobody tells'}: {len(found)} runs: {shares}")
            for quorum in (True, False):
                went = [loss.seconds for loss in found if loss.quorum == quorum and loss.ended != "halted"]
                if went:
                    print(f"  quorum {'left' if quorum else 'lost'}: {len(went)} went on, in {median(went):.1f} s")


if __name__ == "__main__":
    main()
