"""What a step takes in the virtual world on lines, beside what the lines allow.

    python -m tests.sim.step_seconds --volunteers 5 --line 20/100Mbit --delay 30ms --microbatches 16

takes the layout that `ftnode lab lines` takes, in the same words, so that its figure can be laid beside this one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import click

from ftnode.protocol.lines.line_bound import Work, bound
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.planning.run_step import on_the_wire
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Version
from tests.sim.targets import best_view
from tests.sim.world import World

NO_SECONDS = 1e-6
"""A task that takes no time; the world counts in forward passes."""
START_SECONDS = 120.0
FIRST_STEPS = 2
"""Not measured: compute and acknowledgements have not been measured then."""
STEPS = 5


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Median seconds of a step, and the least that the lines allow."""

    seconds: float
    least: float

    @property
    def ratio(self) -> float:
        return self.seconds / self.least

    def __str__(self) -> str:
        return (
            f"a step takes {self.seconds:.2f} s in the virtual world; the lines allow {self.least:.2f} s; "
            f"ratio {self.ratio:.3f}"
        )


def started(work: Work, seed: int) -> World:
    """One volunteer for each stage, all on the same lines, and the whole step in flight."""
    stages, count = len(work.paces) - 1, work.microbatches
    settings = Settings(
        run="lines", stages=stages, steps=100_000, microbatches=count, window=count, live_activations=count,
        head_every=0, listed=True,
    )  # fmt: skip
    world = World(settings, seed)
    world.network.lines.tensors = work.tensors
    for name in (f"peer{index}" for index in range(stages + 1)):
        world.network.lines.of[name] = Line(*work.rates, work.delay_seconds)
        world.start(name, 1, True)
    world.run(START_SECONDS, lambda: world.ledger.top_commit() > 0)
    view = best_view(world)
    assert view is not None and all(len(group) == 1 for group in view.holders)
    for (holder,), (forward, backward) in zip(view.holders, work.paces, strict=True):
        host = world.by_id[holder.id]
        host.forward_seconds = max(forward, NO_SECONDS)
        host.costs = {"Forward": 1.0, "Backward": backward / host.forward_seconds, "Reduce": 0.0}
    return world


def step_seconds(work: Work, seed: int = 1, steps: int = STEPS) -> StepSeconds:
    """Of a swarm whose stages have one holder each."""
    world, times = started(work, seed), list[float]()

    def on_commit(lineage: str, version: Version, skipped: bool) -> None:
        times.append(world.now)

    world.on_commit = on_commit
    needed = FIRST_STEPS + steps + 1
    least = bound([str(stage) for stage in range(len(work.paces))], work).seconds
    world.run(world.now + 10 * needed * least, lambda: len(times) == needed)
    assert len(times) == needed
    return StepSeconds(median(later - earlier for earlier, later in pairwise(times[FIRST_STEPS:])), least)


def command() -> click.Command:
    """The options of `ftnode lab lines` that say a layout."""
    from ftnode.lab.commands.lines import lines
    from ftnode.lab.lines.lines import Asked, manifest_for, work_of

    layout = ("volunteers", "rates", "delay", "preset", "sequences", "microbatches", "pace")

    def say(
        volunteers: int, rates: tuple[float, float], delay: float, preset: str, sequences: int, microbatches: int,
        pace: tuple[float, float],
    ) -> None:  # fmt: skip
        asked = Asked(volunteers, rates, delay, pace, 0.0, preset, sequences, microbatches)
        work = work_of(asked, manifest_for(asked))
        least = bound([str(stage) for stage in range(volunteers)], work).seconds
        click.echo(replace(step_seconds(replace(work, tensors=on_the_wire(work.tensors))), least=least))

    options = [option for option in lines.params if option.name in layout]
    return click.Command("step_seconds", callback=say, params=options, help=__doc__)


if __name__ == "__main__":
    command()()
