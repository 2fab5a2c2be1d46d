"""The swarm of `ftnode lab routers`: tokens a second of five volunteers on thin lines behind routers of one kind, of
what the same five do without routers.

Behind symmetric routers, which no punch opens, three volunteers relay who stand by and hold nothing. They come after
the others, as it happens. So the first steps go through the meeting point, and are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ftnode.lab.lines.network import read_counts
from ftnode.lab.routers.runs import Home, open_run, step_seconds, step_tokens, thin_manifest, volunteers

VOLUNTEERS: Final = 5
RELAYS: Final = 3
START_SECONDS: Final = 600.0
SETTLE_SECONDS: Final = {0: 30.0, RELAYS: 150.0}
"""By the number of relays, until everybody has found the best way: a punch is tried before the first step, circuits
move to other relays one at a time."""
STEPS_MIN: Final = 4
RATIOS: Final = {"none": 1.0, "port-restricted": 0.9, "symmetric": 0.5}
"""Of the tokens a second without routers, what there should be."""


@dataclass(frozen=True, slots=True)
class Swarm:
    """One of the swarms. `step_seconds`: median of `steps`. `carried`: bytes a second up that each home's line, and the
    meeting point's, carried meanwhile."""

    router: str
    relays: int
    step_seconds: float
    steps: int
    tokens_per_second: float
    carried: dict[str, float]


def measure(folder: Path, delay_seconds: float, seconds: float) -> list[Swarm]:
    """Without routers, behind port-restricted ones, and behind symmetric ones with three relays."""
    plans = (("none", 0), ("port-restricted", 0), ("symmetric", RELAYS))
    return [of_kind(folder / router, router, relays, delay_seconds, seconds) for router, relays in plans]


def of_kind(folder: Path, router: str, relays: int, delay_seconds: float, seconds: float) -> Swarm:
    manifest = thin_manifest(VOLUNTEERS, delay_seconds)
    homes = {**volunteers(VOLUNTEERS, router), **{f"relay-{number + 1}": Home("none") for number in range(relays)}}
    with open_run(folder, manifest, homes, delay_seconds) as (trial, _):
        names = list(homes)
        for name in names[:VOLUNTEERS]:
            trial.volunteer(name)
        trial.wait_for_step(1, START_SECONDS)
        for name in names[VOLUNTEERS:]:
            trial.volunteer(name, options=("--relay", "on"))
        settled = time.monotonic() + SETTLE_SECONDS[relays]
        trial.wait("it to settle", lambda story: time.monotonic() > settled, 2 * SETTLE_SECONDS[relays])
        after = trial.story.committed
        began = time.monotonic()
        trial.wait(
            f"{STEPS_MIN} steps more",
            lambda story: story.committed > after + STEPS_MIN and time.monotonic() > began + seconds,
            START_SECONDS + seconds,
        )
        ended = time.monotonic()
        median, steps = step_seconds(trial, after)
        counts = read_counts(folder / "counts.jsonl")
        carried = {
            name: counts.between(home, began, ended)[0] / (ended - began)
            for home, name in enumerate(("meeting point", *names))
        }
    return Swarm(router, relays, median, steps, step_tokens(manifest) / median, carried)


def figures_of(swarms: list[Swarm]) -> dict[str, Any]:
    """`ratio`: tokens a second of each, of those without routers."""
    plain = next(swarm for swarm in swarms if swarm.router == "none").tokens_per_second
    found = [{**asdict(swarm), "ratio": swarm.tokens_per_second / plain} for swarm in swarms]
    missed = [
        f"behind {swarm['router']} routers there are {swarm['ratio']:.2f} of the tokens, not {RATIOS[swarm['router']]}"
        for swarm in found
        if swarm["ratio"] < RATIOS[swarm["router"]]
    ]
    return {"swarms": found, "missed": missed}


def lines(figures: Mapping[str, Any]) -> list[str]:
    told = [f"{'routers':<18}{'relays':>8}{'step':>10}{'tokens/s':>12}{'ratio':>8}{'meeting point up':>20}"]
    for swarm in figures["swarms"]:
        point = swarm["carried"]["meeting point"] / 1e6
        step, tokens = f"{swarm['step_seconds']:.2f} s", f"{swarm['tokens_per_second']:.0f}"
        told.append(
            f"{swarm['router']:<18}{swarm['relays']:>8}{step:>10}{tokens:>12}{swarm['ratio']:>8.2f}{point:>15.2f} MB/s"
        )
    return told
