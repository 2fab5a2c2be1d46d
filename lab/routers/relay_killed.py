"""Relays that die, of `ftnode lab routers`: two volunteers that no punch connects train through a relay, which is
killed in mid-step, and then the next one. Told is how long it takes until the next commit.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ftnode.lab.lines.network import read_counts
from ftnode.lab.routers.runs import POINT, Home, open_run, said, step_seconds, volunteers
from ftnode.lab.swarms.trial import Trial, small_manifest

PACE: Final = (0.02, 0.04)
RELAYS: Final = 2
STEPS: Final = 10
"""Between two kills."""
COMMIT_SECONDS: Final = 5.0
"""What the next commit may take."""
START_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Killed:
    """A relay. `carried`: bytes up in the STEPS before; `commit_seconds`: from its end to the next commit, where a step
    takes `step_seconds`."""

    relay: str
    carried: int
    commit_seconds: float
    step_seconds: float


def measure(folder: Path, delay_seconds: float) -> list[Killed]:
    """One relay after the other, as long as there is another one."""
    homes = {**volunteers(2, "symmetric"), **{f"relay-{number + 1}": Home("none") for number in range(RELAYS)}}
    members, relays = list(homes)[:2], list(homes)[2:]
    with open_run(folder, small_manifest(None, 1), homes, delay_seconds, PACE) as (trial, _):
        for name in members:
            trial.volunteer(name)
        trial.wait_for_step(1, START_SECONDS)
        for name in relays:
            trial.volunteer(name, options=("--relay", "on"))
        trial.wait("places at all relays", lambda story: all(_places(trial, name) > RELAYS for name in members),
                   START_SECONDS)  # fmt: skip
        return [_kill(trial, folder, (POINT, *homes)) for _ in range(RELAYS)]


def _places(trial: Trial, name: str) -> int:
    """How many relays the node has a place at, by its own word."""
    return said(trial, name, "reachable").partition(";")[0].count("12D3KooW")


def _kill(trial: Trial, folder: Path, names: tuple[str, ...]) -> Killed:
    """The relay that carries most, in mid-step."""
    before, step = read_counts(folder / "counts.jsonl").carried[-1], trial.story.committed
    trial.wait_for_step(step + STEPS, START_SECONDS)
    seconds, _ = step_seconds(trial, step)
    after = read_counts(folder / "counts.jsonl").carried[-1]
    carried = {name: late[0] - early[0] for name, late, early in zip(names, after, before) if "peer" not in name}
    relay = max(carried, key=lambda name: carried[name])
    middle = max(told.time for told in trial.story.commits) + seconds / 2
    trial.wait("the middle of a step", lambda story: time.monotonic() >= middle, START_SECONDS)
    killed = trial.kill(relay)
    trial.wait("the next commit", lambda story: any(told.time > killed for told in story.commits), START_SECONDS)
    committed = min(told.time for told in trial.story.commits if told.time > killed)
    return Killed(relay, carried[relay], committed - killed, seconds)
