"""Many seeds: `python -m tests.sim.run FIRST LAST`, or every event of one: `python -m tests.sim.run SEED --log`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from functools import partial

from tests.sim.scenario import SOFT, Outcome, Scenario, run_seed
from tests.sim.side_by_side import told_of

REPORT_EVERY = 1000
"""Seeds after which a long run says how far it is."""


def run_seeds(seeds: Iterable[int], processes: int, faults: Sequence[str] = SOFT) -> Generator[Outcome, None, None]:
    """Outcomes as they come, in no order."""
    return told_of(seeds, partial(run_seed, faults=tuple(faults)), processes, at_a_time=8)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int, nargs="?")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--log", action="store_true", help="print every event and effect of the first seed")
    parser.add_argument("--stop-after", type=int, default=20, help="stop after so many violations")
    parser.add_argument("--faults", default=",".join(SOFT), help="draw from these kinds only")
    options = parser.parse_args()
    if options.log:
        scenario = Scenario(options.first, options.faults.split(","))
        scenario.world.log = print
        print(scenario.run().report())
        return 0
    seeds = range(options.first, (options.last or options.first) + 1)
    started = time.perf_counter()
    bad: list[Outcome] = []
    met: Counter[tuple[str, str]] = Counter()
    faults: Counter[str] = Counter()
    totals: Counter[str] = Counter()
    for outcome in run_seeds(seeds, options.processes, options.faults.split(",")):
        met += outcome.met
        faults += outcome.faults
        totals.update({"seeds": 1, "events": outcome.events, "commits": outcome.commits, "losses": outcome.losses})
        totals["virtual seconds"] += int(outcome.virtual_seconds)
        totals["halted"] += bool(outcome.halted)
        if outcome.violation:
            bad.append(outcome)
            print(f"seed {outcome.seed}: {outcome.violation[:300]}", flush=True)
            if len(bad) >= options.stop_after:
                break
        if totals["seeds"] % REPORT_EVERY == 0:
            print(f"{totals['seeds']} seeds, {len(bad)} bad, {time.perf_counter() - started:.0f} s", flush=True)
    seconds = time.perf_counter() - started
    print(
        {
            "seconds": round(seconds, 1),
            **totals,
            "bad": len(bad),
            "by invariant": dict(Counter(o.invariant for o in bad)),
        }
    )
    print("faults and rungs:", dict(sorted(met.items())))
    print("faults:", dict(sorted(faults.items())))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
