"""`ftnode lab routers`: volunteers behind routers, in network namespaces. Each part measures one thing, and says what
should be and is not.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final

from ftnode.lab.results.result_files import file_for, write_atomically
from ftnode.lab.routers import matrix, relay_killed, swarm, trains, watch

PARTS: Final = ("matrix", "trains", "swarm", "watch", "relay-killed")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person asked for. `pairs`: of the matrix; its kinds of routers and its delay hold for other parts, too.
    `seconds`: for which a swarm is measured."""

    parts: tuple[str, ...]
    pairs: matrix.Asked
    seconds: float


def run(asked: Asked, json_output: bool = False, out: Path | None = None) -> dict[str, Any]:
    """Measure, print tables or JSON, and return the figures. In `out` they are written after each part. Raises
    UserError: 69 where there can be no homes, 73 where there is no writing."""
    path = None if out is None else file_for(out, "--out")
    figures: dict[str, Any] = {}
    for part in asked.parts:
        with tempfile.TemporaryDirectory(prefix="ftnode-lab-") as temporary:
            figures[part] = measure(part, asked, Path(temporary))
        if path is not None:
            write_atomically(path, json.dumps(figures, indent=2) + "\n")
        if not json_output:
            print(table(part, figures[part]), flush=True)
    if json_output:
        print(json.dumps(figures, indent=2))
    return figures


def measure(part: str, asked: Asked, folder: Path) -> dict[str, Any]:
    pairs, delay = asked.pairs, asked.pairs.delay_seconds
    if part == "matrix":
        return matrix.figures_of(pairs, matrix.measure(pairs, folder))
    if part == "trains":
        return trains_figures(trains.measure(folder, pairs.kinds, delay))
    if part == "swarm":
        return swarm.figures_of(swarm.measure(folder, delay, asked.seconds))
    if part == "watch":
        return watch_figures(watch.measure(folder, delay))
    return killed_figures(relay_killed.measure(folder, delay))


def trains_figures(pairs: Sequence[trains.Trained]) -> dict[str, Any]:
    missed = [f"no training between {pair.one} and {pair.other}: {pair.why}" for pair in pairs if not pair.trains]
    return {"pairs": [asdict(pair) for pair in pairs], "missed": missed}


def watch_figures(runs: Sequence[watch.Watched]) -> dict[str, Any]:
    found = [{**asdict(one), "median": median(one.seconds)} for one in runs]
    slow = [one["router"] for one in found if one["median"] > watch.STATUS_SECONDS]
    return {
        "runs": found,
        "missed": [f"a status behind {router} routers took more than {watch.STATUS_SECONDS:g} s" for router in slow],
    }


def killed_figures(kills: Sequence[relay_killed.Killed]) -> dict[str, Any]:
    slow = [kill.relay for kill in kills if kill.commit_seconds > relay_killed.COMMIT_SECONDS]
    return {
        "kills": [asdict(kill) for kill in kills],
        "missed": [f"after {relay} the next commit took more than {relay_killed.COMMIT_SECONDS:g} s" for relay in slow],
    }


def table(part: str, figures: Mapping[str, Any]) -> str:
    if part == "matrix":
        return matrix.table(figures)
    lines = {"trains": trains_lines, "swarm": swarm.lines, "watch": watch_lines, "relay-killed": killed_lines}
    return "\n".join([*lines[part](figures), *figures["missed"]])


def trains_lines(figures: Mapping[str, Any]) -> list[str]:
    said = []
    for pair in figures["pairs"]:
        verdict = "trains" if pair["trains"] else "does not train"
        said.append(f"{pair['one']:<20}{pair['other']:<20}{verdict:<16}{pair['seconds']:.1f} s")
    return [f"a run of two members, from its start to step {trains.STEPS}", *said]


def watch_lines(figures: Mapping[str, Any]) -> list[str]:
    return [
        f"a status from behind a {one['router']} router, of members behind such routers: "
        f"{', '.join(f'{seconds:.2f}' for seconds in one['seconds'])} s (median {one['median']:.2f} s)"
        for one in figures["runs"]
    ]


def killed_lines(figures: Mapping[str, Any]) -> list[str]:
    return [
        f"{kill['relay']}, which carried {kill['carried'] / 1e6:.1f} MB in {relay_killed.STEPS} steps, is killed in "
        f"mid-step: {kill['commit_seconds']:.2f} s to the next commit, where a step takes {kill['step_seconds']:.2f} s"
        for kill in figures["kills"]
    ]
