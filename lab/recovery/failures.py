"""Which stage is lost before which iteration: drawn once, kept as a file, and the same for every policy.

As in CheckFree's published code, each block stage fails in each iteration with the same small probability and stage 0
never does. Its rates per hour and its probabilities per iteration are both kept, because they are not the same axis: at
91.3 s per iteration .004 is 14.6 % per hour. As the paper assumes, no two adjacent stages fail in one iteration. What
the paper leaves out is drawn by `draw_together`: the head fails as the others do, and some losses take a neighbour
along.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

from ftnode.lab.results.result_files import write_atomically

PER_ITERATION = {"5%": 0.0009, "10%": 0.002, "16%": 0.004}
"""Of the 500M model, by the rate per hour that the paper calls it."""
PAPER_ITERATION_SECONDS = 91.3
FAILURES_MIN = 20
FAILURES_AIMED = 24
"""The mean number; a schedule that has fewer than FAILURES_MIN is drawn again."""
DRAWS_MAX = 1000
TOGETHER = 0.25
"""Of the losses of block stages that take the next stage along: as where one machine or one site has both."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """`failures`: (iteration, stage), sorted. `scale`: how many times the published probability was used."""

    rate: str
    seed: int
    stages: int
    iterations: int
    scale: float
    probability: float
    failures: tuple[tuple[int, int], ...]

    @property
    def spacing(self) -> float:
        """Iterations from one failure to the next, on average."""
        return self.iterations / max(1, len(self.failures))

    def lost_before(self, iteration: int) -> tuple[int, ...]:
        return tuple(stage for at, stage in self.failures if at == iteration)


def scale_for(rates: tuple[str, ...], stages: int, iterations: int, losing: str = "all") -> float:
    """One factor for all rates, so that they keep their proportions: the rarest still shows enough failures."""
    rarest = min(PER_ITERATION[rate] for rate in rates)
    return max(1.0, FAILURES_AIMED / (rarest * (stages if losing == "all" else stages - 2) * iterations))


def draw(
    rate: str, seed: int, stages: int, iterations: int, scale: float, first: int = 1, losing: str = "all"
) -> Schedule:
    """From iteration `first` on, losing "all" block stages or those in the "middle", which have two neighbours.

    Drawn again, with another stream, until there are at least FAILURES_MIN. One stream per seed whatever the rate, so
    that a higher rate adds failures to those of a lower one.
    """
    probability = PER_ITERATION[rate] * scale
    for attempt in range(DRAWS_MAX):
        chance = Random(f"ftnode/failures/{seed}/{attempt}")
        failures: list[tuple[int, int]] = []
        for iteration in range(first, iterations + 1):
            lost = [stage for stage in range(1, stages + 1) if chance.random() < probability]
            lost = [stage for stage in lost if losing == "all" or 1 < stage < stages]
            failures += [(iteration, stage) for stage in lost if stage - 1 not in lost]
        if len(failures) >= FAILURES_MIN:
            return Schedule(rate, seed, stages, iterations, scale, probability, tuple(failures))
    raise ValueError(f"{iterations} iterations at {probability:g} do not show {FAILURES_MIN} failures")


def draw_together(rate: str, seed: int, stages: int, iterations: int, first: int = 1) -> Schedule:
    """Unscaled, from iteration `first` on; stage 0 fails, too. A block stage takes the one after it along in a share
    TOGETHER of its losses, the last one the one before it."""
    probability, chance = PER_ITERATION[rate], Random(f"ftnode/failures together/{seed}")
    failures: list[tuple[int, int]] = []
    for iteration in range(first, iterations + 1):
        lost: set[int] = set()
        for stage in range(stages + 1):
            fails, along = chance.random() < probability, chance.random() < TOGETHER
            if fails:
                lost |= {stage, stage + 1 if stage < stages else stage - 1} if stage and along else {stage}
        failures += [(iteration, stage) for stage in sorted(lost)]
    return Schedule(rate, seed, stages, iterations, 1.0, probability, tuple(failures))


def write(schedule: Schedule, path: Path) -> None:
    write_atomically(path, json.dumps(asdict(schedule)) + "\n")


def read(path: Path) -> Schedule:
    found = json.loads(path.read_text())
    found["failures"] = tuple((iteration, stage) for iteration, stage in found["failures"])
    return Schedule(**found)
