"""`ftnode lab world`: how fast the virtual world runs a large swarm.

50 peers, 8 block stages, 8 microbatches, a step about every 10 virtual seconds, a crash every 2 minutes, for one
virtual hour. The world itself is part of the tests, so this needs a clone of the repository.
"""

from __future__ import annotations

import importlib
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

from ftnode.protocol.words.errors import UserError
from ftnode.protocol.words.settings import Settings

PEERS = 50
CRASH_SECONDS = 120.0
FORWARD_SECONDS = 0.19
"""(10 visits + 8 microbatches - 1) x 3 of these are about 10 s, by 1F1B's formula with backward twice forward."""


def run(json_output: bool = False, virtual_seconds: float = 3600.0, seed: int = 1) -> dict[str, Any]:
    """Run the bench, print its figures, and return them. Raises UserError outside a clone, Violation on a finding."""
    figures = measure(virtual_seconds, seed)
    if json_output:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name.replace('_', ' '):<28} {value}")
    return figures


def measure(virtual_seconds: float, seed: int) -> dict[str, Any]:
    """One world; only the running is timed, not the imports."""
    world_of, targets = of_the_clone("world").World, of_the_clone("targets")
    settings = Settings(run="bench", stages=8, steps=1_000_000, microbatches=8, window=8, lease_seconds=30.0)
    world = world_of(settings, seed)
    world.forward_seconds = FORWARD_SECONDS
    chance = random.Random(seed)
    for index in range(PEERS):
        world.at(index * 0.2, world.start, (f"peer{index}", 1))
    crashes = 0
    started = time.perf_counter()
    while world.now < virtual_seconds:
        world.run(min(world.now + CRASH_SECONDS, virtual_seconds))
        view = targets.best_view(world)
        victims = [] if view is None else [
            host
            for stage, group in targets.holders(world, view).items()
            for host in group
            if stage and not targets.would_halt(world, {host.peer.id})
        ]  # fmt: skip
        if victims and world.now < virtual_seconds:
            crashes += 1
            world.kill(chance.choice(victims), "kill", silently=False)
            world.start(f"new{crashes}", 1)
    seconds = time.perf_counter() - started
    return {
        "wall_seconds": round(seconds, 2),
        "virtual_seconds": virtual_seconds,
        "peers": PEERS,
        "stages": settings.stages,
        "microbatches": settings.microbatches,
        "commits": world.ledger.top_commit(),
        "crashes": crashes,
        "losses_of_a_sole_holder": world.losses,
        "events": world.events,
        "microseconds_per_event": round(1e6 * seconds / max(1, world.events), 2),
    }


def of_the_clone(name: str) -> Any:
    """This module of tests/sim. Raises UserError (69) outside a clone."""
    root = Path(__file__).resolve().parents[2]
    if not (root / "tests" / "sim" / "world.py").is_file():
        raise UserError("the virtual world is not part of the installed package: run this from a clone", 69)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return importlib.import_module(f"tests.sim.{name}")
