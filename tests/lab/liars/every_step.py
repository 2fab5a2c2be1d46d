"""What checks cost in all steps, beside what is done again: `python -m tests.lab.liars.every_step [ROUNDS]`.

The swarm of `lab/liars/cost.py`, whose compute sleeps: six volunteers, the head and a block stage, three each. Swarms
with checks and without take turns, so that what else the machine does meets both. Told is the processor time of a step,
by program, since a step that sleeps is no longer for it; and the steps in a second, which more work on the machine
changes much more than the checks do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import mean, median
from typing import Final

from ftnode.lab.liars.ground import Ground, Setting
from ftnode.lab.swarms.swarm import descendants
from ftnode.lab.swarms.trial import Trial, open_trial
from ftnode.lab.traces.story import first_commits

SHARES: Final = (0.0, 0.02)
SETTLED, STEPS = 40, 60
PACED: Final = ("--compute", "paced", "--paced-seconds", "0.01", "0.02")
PROGRAMS: Final = {"p2pd": "p2pd", "directory.process": "directory", "compute": "compute"}


def spent(trial: Trial) -> Mapping[str, float]:
    """Seconds of a processor since each volunteer began, by program."""
    found = dict.fromkeys((*PROGRAMS.values(), "node"), 0.0)
    for name, process in trial.swarm.processes.items():
        for pid in () if name == "bootstrap" else (process.process.pid, *descendants(process.process.pid)):
            folder = Path(f"/proc/{pid}")
            words = (folder / "cmdline").read_bytes().decode().replace("\0", " ")
            program = next((program for word, program in PROGRAMS.items() if word in words.split(" --")[0]), "node")
            ticks = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
            found[program] += sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return found


def measure(checks: float) -> tuple[Mapping[str, float], float]:
    """Milliseconds of a processor for each step, by program, and steps in a second."""
    ground = Ground(setting=replace(Setting(), checks=checks))
    with open_trial(ground.manifest(), options=PACED) as trial:
        names = {f"v{number}" for number in range(1, ground.layout.volunteers + 1)}
        for name in sorted(names):
            trial.volunteer(name)
        trial.wait("full groups", lambda story: {*story.holders(0), *story.holders(1)} >= names)
        trial.wait_for_step(trial.story.committed + SETTLED)
        before, first = spent(trial), trial.story.committed
        trial.wait_for_step(first + STEPS)
        after, last = spent(trial), trial.story.committed
        times = [told.time for told in first_commits(trial.story.commits) if told.record["step"] >= first]
    used = {program: 1000 * (after[program] - before[program]) / (last - first) for program in after}
    return used, 1 / median(later - earlier for earlier, later in pairwise(times))


def spoken(found: Mapping[str, float]) -> str:
    return ", ".join(f"{program} {spent_there:.1f}" for program, spent_there in found.items())


def rounds(count: int) -> Iterator[tuple[float, Mapping[str, float], float]]:
    for _ in range(count):
        for checks in SHARES:
            found, rate = measure(checks)
            print(f"checks {checks:g}: {spoken(found)} ms of a processor for each step, {rate:.2f} steps/s", flush=True)
            yield checks, found, rate


def main(count: int) -> None:
    all_found = list(rounds(count))
    for program in sorted(all_found[0][1]):
        without, with_them = (mean(found[program] for at, found, _ in all_found if at == checks) for checks in SHARES)
        print(f"{program}: {without:.1f} ms without checks, {with_them:.1f} with them")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 3)
