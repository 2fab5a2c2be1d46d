"""Runs whose volunteers are behind routers, for the parts of `ftnode lab routers` that train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final

from ftnode.lab.lines.lines import Asked as LinesAsked
from ftnode.lab.lines.lines import manifest_for
from ftnode.lab.lines.network import open_network
from ftnode.lab.lines.switch import Homes
from ftnode.lab.swarms.swarm import Place, Swarm
from ftnode.lab.swarms.trial import Trial
from ftnode.lab.traces.story import Story, first_commits
from ftnode.node.cli.manifest import manifest_text
from ftnode.protocol.manifest.parse import Manifest

POINT: Final = "bootstrap"
PACE: Final = (0.02, 0.04)
SEQUENCES: Final = 10
MICROBATCHES: Final = 16
"""As `ftnode lab lines` has them, with smaller tensors."""
LINE: Final = (2.5e6, 12.5e6)
POINT_LINE: Final = (2.5e6, 2.5e6)


@dataclass(frozen=True, slots=True)
class Home:
    """`router`: its kind (lab/lines/router.py). `rates`: bytes a second up and down."""

    router: str
    rates: tuple[float, float] = LINE


@contextmanager
def open_run(
    folder: Path, manifest: Manifest, homes: Mapping[str, Home], delay_seconds: float,
    pace: tuple[float, float] = PACE, point_rates: tuple[float, float] = POINT_LINE,
) -> Iterator[tuple[Trial, Mapping[str, Place]]]:  # fmt: skip
    """A meeting point that anybody can dial, and homes where nobody lives yet. Raises UserError (69) where there can be
    no homes."""
    folder.mkdir(exist_ok=True)
    path = folder / "manifest.toml"
    path.write_text(manifest_text(manifest), encoding="utf-8")
    rates = (point_rates, *(home.rates for home in homes.values()))
    network = Homes(
        rates, delay_seconds, str(folder / "counts.jsonl"), ("none", *(home.router for home in homes.values()))
    )
    paced = ("--compute", "paced", "--paced-seconds", *map(str, pace))
    with (
        open_network((POINT, *homes), network) as places,
        Swarm(folder, path, options=paced, places=places) as swarm,
    ):
        swarm.start_bootstrap(POINT)
        yield Trial(swarm, Story()), places


def thin_manifest(volunteers: int, delay_seconds: float) -> Manifest:
    """A stage for each volunteer, and tensors that fill their lines, as `ftnode lab lines` has it."""
    asked = LinesAsked(volunteers, LINE, delay_seconds, PACE, 0.0, "tiny", SEQUENCES, MICROBATCHES)
    return manifest_for(asked)


def step_tokens(manifest: Manifest) -> int:
    return manifest.batch.microbatches * manifest.batch.sequences * manifest.model.context


def step_seconds(trial: Trial, after: int) -> tuple[float, int]:
    """The median of the steps after this one, and how many they are."""
    commits = [told for told in first_commits(trial.story.commits) if told.record["step"] >= after]
    times = [later.time - earlier.time for earlier, later in pairwise(commits)]
    return median(times), len(times)


def volunteers(count: int, router: str) -> dict[str, Home]:
    return {f"peer-{number + 1}": Home(router) for number in range(count)}


def names_in(homes: Mapping[str, Home], router: str) -> Sequence[str]:
    return [name for name, home in homes.items() if home.router == router]


def said(trial: Trial, name: str, kind: str) -> str:
    """What a node last said of this kind to its owner; empty when it has not."""
    path = trial.swarm.processes[name].output
    lines = [line.split(maxsplit=2) for line in path.read_text(errors="replace").splitlines()] if path.exists() else []
    return next((line[2] for line in reversed(lines) if len(line) == 3 and line[1] == kind), "")
