"""A digest of everything that the core decides, so that a change which should change nothing can show that it does not.

    python -m tests.sim.digest                 compare 1,000 seeds and all transcripts with `digests.txt`
    python -m tests.sim.digest --seeds 50      compare the first 50 only
    python -m tests.sim.digest --write         write `digests.txt` anew, after a change of behaviour

Each line has a name and two hashes over all calls of `Participant.handle` in one seed or transcript: `exact` takes the
effects in their order, `sorted` takes the effects of each single event in the order of their text. A change that only
moves code keeps both. A change of the order within one event keeps `sorted`.
"""

from __future__ import annotations

import argparse
import hashlib
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from ftnode.protocol.participant import Participant
from tests.sim.scenario import run_seed
from tests.sim.script import Play

STORED = Path(__file__).parent / "digests.txt"
TRANSCRIPTS = Path(__file__).parent / "transcripts"
SEEDS = 1000


class Recorder:
    """Hashes what `Participant.handle` returns while it is in place, and measures how long the calls take."""

    def __init__(self) -> None:
        self.exact, self.sorted = hashlib.blake2b(digest_size=8), hashlib.blake2b(digest_size=8)
        self.calls, self.seconds = 0, 0.0

    def run(self, what: Callable[[], object]) -> None:
        handle = Participant.handle
        clock = time.process_time

        def recorded(participant: Participant, event: Any, now: float) -> Any:
            started = clock()
            effects = handle(participant, event, now)
            self.seconds += clock() - started
            self.calls += 1
            lines = [repr(effect) for effect in effects]
            head = f"{participant.me} {now!r} {participant.deadline!r}\n"
            self.exact.update("\n".join([head, *lines]).encode())
            self.sorted.update("\n".join([head, *sorted(lines)]).encode())
            return effects

        Participant.handle = recorded  # type: ignore[method-assign]
        try:
            what()
        finally:
            Participant.handle = handle  # type: ignore[method-assign]


def digest(name: str) -> tuple[str, str, str, int, float]:
    """(name, exact, sorted, calls, seconds in the core) of `seed N` or of a transcript's file name."""
    recorder = Recorder()
    if name.startswith("seed "):
        recorder.run(partial(run_seed, int(name.split()[1])))
    else:
        script = (TRANSCRIPTS / name).read_text().partition("-" * 40)[0]
        recorder.run(lambda: Play(script).perform())
    return name, recorder.exact.hexdigest(), recorder.sorted.hexdigest(), recorder.calls, recorder.seconds


def names(seeds: int) -> list[str]:
    return [*sorted(path.name for path in TRANSCRIPTS.glob("*.txt")), *(f"seed {n}" for n in range(1, seeds + 1))]


def digests(seeds: int, processes: int) -> Iterator[tuple[str, str, str, int, float]]:
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        yield from pool.imap(digest, names(seeds), chunksize=4)


def stored() -> dict[str, tuple[str, str]]:
    rows = (line.rsplit(" ", 2) for line in STORED.read_text().splitlines())
    return {name: (exact, in_order) for name, exact, in_order in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found, calls, seconds = {}, 0, 0.0
    for name, exact, in_order, made, took in digests(options.seeds, options.processes):
        found[name] = exact, in_order
        calls, seconds = calls + made, seconds + took
    print(f"{len(found)} digests, {calls} events, {seconds / calls * 1e6:.1f} µs in the core per event")
    if options.write:
        STORED.write_text("".join(f"{name} {exact} {in_order}\n" for name, (exact, in_order) in found.items()))
        return 0
    known = stored()
    exact = [name for name, pair in found.items() if pair[0] != known[name][0]]
    other = [name for name in exact if found[name][1] != known[name][1]]
    print(f"{len(exact)} differ in the order of effects, {len(other)} of them in the effects themselves")
    for name in other[:10] or exact[:10]:
        print(f"  {name}")
    return bool(exact)


if __name__ == "__main__":
    sys.exit(main())
