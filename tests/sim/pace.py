"""How long the core takes for an event of the virtual world, beside another checkout of this tree.

    python -m tests.sim.pace                       this tree alone
    python -m tests.sim.pace --against FOLDER      this tree and the one in FOLDER, and how much slower this one is

Times are those of the processor, since others may use the machine. Each tree has a process of its own. The processes
take turns, seed by seed, and each seed counts with its fastest turn. `core` is `Participant.handle`; `world` is all the
rest: machines, networks and checks of the virtual world itself.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ftnode.protocol.participant import Participant
from tests.sim.scenario import run_seed

HERE = Path(__file__).parents[2]


class Pace(NamedTuple):
    events: int
    core: float
    """Seconds."""
    world: float

    def __str__(self) -> str:
        core, world = (seconds / self.events * 1e6 for seconds in (self.core, self.world))
        return f"{self.events} events, {core:.1f} µs in the core and {world:.1f} µs in the world per event"


def pace_of(seed: int) -> Pace:
    """Of one turn, in this process."""
    handle, clock = Participant.handle, time.process_time
    events, core = 0, 0.0

    def timed(participant: Participant, event: Any, now: float) -> Any:
        nonlocal events, core
        started = clock()
        effects = handle(participant, event, now)
        core += clock() - started
        events += 1
        return effects

    Participant.handle = timed  # type: ignore[method-assign]
    try:
        started = clock()
        run_seed(seed)
        return Pace(events, core, clock() - started - core)
    finally:
        Participant.handle = handle  # type: ignore[method-assign]


@contextmanager
def runner(tree: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that answers each seed with its pace in this tree. The tree is `ftnode` there, by a link."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "ftnode").symlink_to(tree)
        command = [sys.executable, "-P", __file__, "--answer"]
        environment = os.environ | {"PYTHONPATH": f"{folder}:{tree}"}
        with subprocess.Popen(
            command, cwd=tree, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            yield process


def ask(process: subprocess.Popen[str], seed: int) -> Pace:
    assert process.stdin is not None and process.stdout is not None
    print(seed, file=process.stdin, flush=True)
    events, core, world = process.stdout.readline().split()
    return Pace(int(events), float(core), float(world))


def fastest(turns: list[Pace]) -> Pace:
    return Pace(turns[0].events, min(turn.core for turn in turns), min(turn.world for turn in turns))


def total(seeds: list[list[Pace]]) -> Pace:
    """`seeds`: the turns of each."""
    best = [fastest(turns) for turns in seeds]
    return Pace(sum(one.events for one in best), sum(one.core for one in best), sum(one.world for one in best))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, metavar="FOLDER")
    parser.add_argument("--seeds", type=int, default=25)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        for line in sys.stdin:
            print(*pace_of(int(line)), flush=True)
        return
    seeds, turns = range(1, options.seeds + 1), range(options.turns)
    other = options.against.resolve() if options.against is not None else HERE
    with runner(HERE) as ours, runner(other) as theirs:
        processes = [ours, theirs] if options.against is not None else [ours]
        found = [[[ask(process, seed) for process in processes] for _ in turns] for seed in seeds]
    paces = [total([[turn[place] for turn in seed] for seed in found]) for place in range(len(processes))]
    for tree, pace in zip((HERE, other), paces, strict=False):
        print(f"{tree}: {pace}")
    if len(paces) == 2:
        here, there = (pace.core / pace.events for pace in paces)
        print(f"the core of this tree takes {here / there - 1:+.1%}")


if __name__ == "__main__":
    main()
