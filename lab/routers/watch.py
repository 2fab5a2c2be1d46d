"""Watching, of `ftnode lab routers`: `ftnode status` from a machine behind a router of its own, of a run whose members
are all behind routers. The watcher knows the meeting point and nothing else.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ftnode.lab.routers.runs import Home, open_run, volunteers
from ftnode.lab.swarms.swarm import NODE
from ftnode.lab.swarms.trial import small_manifest
from ftnode.protocol.words.errors import UserError

PACE: Final = (0.02, 0.04)
MEMBERS: Final = 3
KINDS: Final = ("port-restricted", "symmetric")
LOOKS: Final = 3
STATUS_SECONDS: Final = 3.0
"""What a status may take, from the command to its end."""
LOOK_SECONDS: Final = 60.0
START_SECONDS: Final = 300.0


@dataclass(frozen=True, slots=True)
class Watched:
    """A run and a watcher, all behind routers of one kind. `seconds` of each status; `steps` that they told."""

    router: str
    seconds: tuple[float, ...]
    steps: tuple[int, ...]


def measure(folder: Path, delay_seconds: float) -> list[Watched]:
    return [of_kind(folder / router, router, delay_seconds) for router in KINDS]


def of_kind(folder: Path, router: str, delay_seconds: float) -> Watched:
    members, manifest = volunteers(MEMBERS, router), small_manifest(None, MEMBERS - 1)
    homes = members | {"watcher": Home(router)}
    with open_run(folder, manifest, homes, delay_seconds, PACE) as (trial, places):
        for name in members:
            trial.volunteer(name)
        trial.wait_for_step(3, START_SECONDS)
        looks = [_status(places["watcher"].enter, trial.swarm.address, folder / "watcher") for _ in range(LOOKS)]
    return Watched(router, tuple(seconds for seconds, _ in looks), tuple(step for _, step in looks))


def _status(enter: Sequence[str], point: str, home: Path) -> tuple[float, int]:
    """Seconds of the command, and the step that it told. Raises UserError: 70 when it told none, 75 when it took too
    long."""
    argv = [*enter, sys.executable, "-m", *NODE, "status", "--peer", point, "--json", "--home", str(home)]
    began = time.monotonic()
    try:
        asked = subprocess.run(argv, capture_output=True, text=True, timeout=LOOK_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        text = f"ftnode status took longer than {LOOK_SECONDS:g} s; measure on a quieter machine"
        raise UserError(text, 75) from None
    seconds = time.monotonic() - began
    try:
        found: dict[str, Any] = json.loads(asked.stdout)
        return seconds, int(found["step"])
    except (ValueError, KeyError):
        raise UserError(f"status told no step; it said: {(asked.stderr or asked.stdout).strip()[-300:]}", 70) from None
