"""`ftnode lab planner`: every policy through the same failures, other settings, volunteers, and FlexiTrain's tables.
Text, planner.json and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ftnode.lab.planner import estimator, flexitrain, locations, memory, moving, reachable, volunteers
from ftnode.lab.planner.odyssey import figures, of_seed, text
from ftnode.lab.planner.pictures import draw_all
from ftnode.lab.planner.setting import Setting
from ftnode.lab.planner.settings import SETTINGS, compared
from ftnode.lab.planner.settings import of_seed as setting_seed
from ftnode.lab.results.result_files import Kept, folder_for, write_atomically
from ftnode.node.watch.status_table import Table

PARTS: Final = ("odyssey", "settings", "volunteers", "flexitrain")
"""Without `estimator` and `memory`, which start real swarms and compute processes, and `open`, which takes longer than
these together."""
CHURN_HOURS: Final = 4.0
CHURN_SEEDS: Final = 4
SUMS: Final = {"sums_with_each_step": True, "without_sums": False}
"""Of gradients: what churn is measured with."""
DRAWS: Final = 4
"""Of volunteers, for each seed of the others."""
MONTHS: Final = 40
"""Of FlexiTrain, for each seed of the others."""


@dataclass(frozen=True, slots=True)
class Asked:
    """`away_hours`: of a machine that has failed, on average; 0: it does not come back. `only`: the parts that run;
    `names`: of settings; none: all."""

    seeds: int
    hours: float
    failures: float
    away_hours: float
    only: tuple[str, ...]
    out: Path | None
    as_json: bool
    names: tuple[str, ...] = ()


def run(asked: Asked) -> int:
    """Exit code 0. Raises UserError (73) when the folder cannot be used."""
    folder = None if asked.out is None else folder_for(asked.out, "--out", empty=False)
    kept = Kept(folder)
    found: dict[str, Any] = {}
    for part in asked.only or PARTS:
        found |= MADE[part](asked, kept)
    if folder is not None:
        path = folder / "planner.json"
        before = json.loads(path.read_text()) if path.exists() else {}
        write_atomically(path, json.dumps(before | found, indent=2) + "\n")
        draw_all(before | found, folder)
    if asked.as_json:
        click.echo(json.dumps(found, indent=2))
        return 0
    for line in _text(asked, found):
        click.echo(line)
    return 0


def _setting(asked: Asked) -> Setting:
    return Setting(hours=asked.hours, failures_an_hour=asked.failures, away_hours=asked.away_hours)


def _odyssey(asked: Asked, kept: Kept) -> dict[str, Any]:
    setting = _setting(asked)
    seeds = [kept("odyssey", (setting, seed), partial(of_seed, setting, seed)) for seed in range(asked.seeds)]
    courses = [one["moved"] for one in seeds]
    seconds = [second for one in seeds for second in one["plan_seconds"]]
    return figures(setting, seeds) | {"moving": moving.figures(courses, seconds)}


def _settings(asked: Asked, kept: Kept) -> dict[str, Any]:
    rows = []
    for name, setting in SETTINGS.items():
        if not asked.names or name in asked.names:
            seeds = [
                kept("setting", (setting, seed), partial(setting_seed, setting, seed)) for seed in range(asked.seeds)
            ]
            rows.append(compared(name, setting, seeds))
    return {"settings": rows}


def _volunteers(asked: Asked, kept: Kept) -> dict[str, Any]:
    draws = [
        kept("draw", (20, seed, volunteers.ASKED), partial(volunteers.of_draw, 20, seed))
        for seed in range(DRAWS * asked.seeds)
    ]
    growths = [
        kept("growth", (20, seed), partial(volunteers.of_growth, 20, seed)) for seed in range(DRAWS * asked.seeds)
    ]
    hours, seeds = min(asked.hours, CHURN_HOURS), range(min(asked.seeds, CHURN_SEEDS))
    churn = {
        what: [kept("churn", (hours, seed, sums), partial(volunteers.of_churn, seed, hours, sums)) for seed in seeds]
        for what, sums in SUMS.items()
    }
    delays = locations.line_delays()
    located = {
        what: [
            kept("locations", (hours, seed, sums, delays), partial(volunteers.of_churn, seed, hours, sums, delays))
            for seed in seeds
        ]
        for what, sums in SUMS.items()
    }
    return {"volunteers": volunteers.figures(draws, growths, churn, located, hours)}


def _flexitrain(asked: Asked, kept: Kept) -> dict[str, Any]:
    return {"flexitrain": flexitrain.figures(MONTHS * asked.seeds)}


def _estimator(asked: Asked, kept: Kept) -> dict[str, Any]:
    cases = [
        kept("estimator", (name, case), partial(estimator.measure, name, case))
        for name, case in estimator.CASES.items() if not asked.names or name in asked.names
    ]  # fmt: skip
    return {"estimator": estimator.figures(cases)}


def _memory(asked: Asked, kept: Kept) -> dict[str, Any]:
    rows = [
        kept("memory", holder, partial(memory.measure, holder))
        for holder in memory.HOLDERS if not asked.names or holder.name in asked.names
    ]  # fmt: skip
    return {"memory": memory.figures(rows)}


def _open(asked: Asked, kept: Kept) -> dict[str, Any]:
    """Of Odyssey's hours and rates, whatever was asked; the rest as `reachable` varies it."""
    lines = {
        name: [kept("open", (setting, seed), partial(reachable.of_line, setting, seed)) for seed in range(asked.seeds)]
        for name, setting in reachable.LINES.items() if not asked.names or name in asked.names
    }  # fmt: skip
    cells, seeds = [*reachable.cells()] if not asked.names else [], min(asked.seeds, reachable.GRID_SEEDS)
    grid = [
        [kept("bounds", (setting, seed), partial(reachable.bounds, setting, seed)) for seed in range(seeds)]
        for setting in cells
    ]
    return {"second_attempt": reachable.figures(lines, grid)}


MADE: Final[Mapping[str, Callable[[Asked, Kept], dict[str, Any]]]] = {
    "odyssey": _odyssey, "settings": _settings, "volunteers": _volunteers, "flexitrain": _flexitrain,
    "estimator": _estimator, "memory": _memory, "open": _open,
}  # fmt: skip


def _text(asked: Asked, found: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    if "odyssey" in found:
        lines += text(_setting(asked), asked.seeds, found)
    if "moving" in found:
        one = found["moving"]
        lines += [
            f"moved: {one['bytes_over_least']:.3f} of the least bytes, {one['bytes_over_unmatched']:.3f} of those "
            f"without matching; {one['moves_per_peer_hour']:.2f} moves per machine and hour; an answer takes "
            f"{one['answer_seconds']['mean']:.3f} s, a plan of 64 machines {one['plan_of_64']['mean']:.3f} s"
        ]
    if "second_attempt" in found:
        lines += ["", *reachable.text(found["second_attempt"])]
    if "settings" in found:
        lines += ["", *_settings_table(found["settings"])]
    if "volunteers" in found:
        lines += ["", *_volunteers_text(found["volunteers"])]
    if "flexitrain" in found:
        lines += ["", *_flexitrain_table(found["flexitrain"])]
    if "estimator" in found:
        lines += ["", *estimator.text(found["estimator"])]
    if "memory" in found:
        lines += ["", *memory.text(found["memory"])]
    return lines


def _settings_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    table = [
        (one["name"], one["worst_against"], f"{one['ratio']:.3f}",
         f"{min(one['ratios']):.3f} to {max(one['ratios']):.3f}",
         *(f"{rate:.2f}" for rate in one["microbatches_a_second"].values()))
        for one in rows
    ]  # fmt: skip
    rivals = rows[0]["microbatches_a_second"] if rows else ()
    columns = ("setting", "best rival", "planner over it", "by seed", *rivals)
    return ["microbatches/s in other settings:", *Table(columns, tuple(table)).lines()]


def _volunteers_text(found: Mapping[str, Any]) -> list[str]:
    rows = [
        (str(seed), f"{one['tokens_a_second']:.0f}", f"{one['equal']:.0f}", f"{one['fastest_first']:.0f}",
         f"{one['tokens_a_second'] / one['equal']:.2f}", one["what"])
        for seed, one in enumerate(found["draws"]) if one["tokens_a_second"]
    ]  # fmt: skip
    lines = [
        "tokens/s of 20 volunteers:",
        *Table(("draw", "found", "equal stages", "fastest first", "over equal", "what"), tuple(rows)).lines(),
        f"{found['over_equal_stages']:.2f} times equal stages on the mean, {found['worst_draw']:.2f} at worst; "
        f"{found['over_fastest_first']:.2f} where the fastest come first",
        f"by one change at a time, as a node: {found['one_at_a_time']['over_equal_stages']:.2f} on the mean, "
        f"{found['one_at_a_time']['worst_draw']:.2f} at worst",
    ]
    for where, churn in (("churn", found["churn"]), ("churn at ten locations", found["churn"]["locations"])):
        lines += [
            f"{where}, {what.replace('_', ' ')}: {churn[what]['less_time_than_swarm']:.0%} less time than SWARM's rules"
            for what in SUMS
        ]
    return lines


def _flexitrain_table(found: Mapping[str, Any]) -> list[str]:
    rows = [
        (table.replace("_", " "), *(f"{found[table][name]:.2f} (paper: {found['paper'][table][name]:.2f})"
                                    for name in ("flexitrain", "checkpoints")))
        for table in ("table_1", "table_2")
    ]  # fmt: skip
    return ["FlexiTrain's tables, %:", *Table(("", "FlexiTrain", "checkpoints"), tuple(rows)).lines()]
