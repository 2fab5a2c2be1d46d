"""`ftnode lab liars`: each kind of lie in a swarm of its own and in virtual worlds, and what checks cost. Text and
liars.json."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import click

from ftnode.lab.liars import cost, hardware, swarm, world
from ftnode.lab.liars.figures import f1, f1_by_setting, honest_row, row, virtual_row
from ftnode.lab.liars.ground import USUAL, Ground, Setting
from ftnode.lab.liars.kinds import HONEST, KINDS, Kind
from ftnode.lab.results.result_files import Kept, folder_for, write_atomically
from ftnode.lab.swarms.template import use_template
from ftnode.node.machine.child_processes import thread_environment
from ftnode.protocol.words.errors import UserError

ERRORS = "lab_liars"

FIGURES: Final = "liars.json"
COST: Final = "cost"
HARDWARE: Final = "hardware"
MORE: Final = (HONEST.name, COST, HARDWARE)
"""What `--only` calls a swarm in which nobody lies, the cost of checks, and what honest machines differ by."""
BASELINE_STEPS: Final = 500
"""A run without a lie has so many, or twice as many, and so on: as many as the one with it needs."""
QUICK_STEPS: Final = 40


@dataclass(frozen=True, slots=True)
class Asked:
    """`worlds`: virtual ones for each kind; `virtual`: those alone."""

    only: tuple[str, ...] = ()
    out: Path | None = None
    worlds: int = 20
    virtual: bool = False
    quick: bool = False
    setting: Setting = USUAL
    as_json: bool = False


def run(asked: Asked) -> int:
    """Exit code 0. Raises UserError for a kind that there is not (64), outside a clone (69), when the folder cannot be
    used (73), and where the machine is too busy (75). After each kind the figures are written."""
    chosen, more = chosen_kinds(asked.only)
    folder = None if asked.out is None else folder_for(asked.out, "--out", empty=False)
    kept, found = Kept(folder), _found_before(folder)
    if asked.virtual:
        return _in_worlds_alone(chosen, asked, kept, found, folder)
    os.environ.update(thread_environment(1))  # a process with threads cannot be forked
    use_template()
    for kind in chosen:
        made, seen = _measured(kind, asked, kept)
        _add(found, kind, asked.setting, made)
        _add_worlds(found, seen)
        _write(folder, found)
        if not asked.as_json:
            click.echo(_line(made, asked.setting))
    if HONEST.name in more:
        found["honest"] = dict(sorted((found["honest"] | {asked.setting.name: _honest(asked, kept)}).items()))
        _write(folder, found)
        if not asked.as_json:
            click.echo(_honest_line(found["honest"][asked.setting.name], asked.setting))
    if COST in more:
        ground, steps = Ground(), QUICK_STEPS if asked.quick else cost.STEPS
        measured = kept(COST, (ground, steps), partial(cost.measure, ground, steps))
        found |= {"cost": max(measured["tokens"], measured["bytes"]), "checks": measured}
        _write(folder, found)
        if not asked.as_json:
            click.echo(cost.text(measured))
    if HARDWARE in more:
        steps_of = hardware.QUICK_STEPS if asked.quick else hardware.MEASURED_STEPS
        found["hardware"] = kept(HARDWARE, (steps_of,), partial(_compared, steps_of))["rows"]
        _write(folder, found)
        if not asked.as_json:
            click.echo(hardware.text(found["hardware"]))
    if asked.as_json:
        click.echo(json.dumps(found, indent=2))
    elif found["f1_by_setting"]:
        scores = [f"{score:g} ({name})" for name, score in found["f1_by_setting"].items()]
        click.echo(f"F1: {', '.join(scores)}")
    return 0


def chosen_kinds(only: Sequence[str]) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """Those that are named, all without a name; and which of MORE. Raises UserError (64)."""
    known = (*(kind.name for kind in KINDS), *MORE)
    for name in only:
        if name not in known:
            raise UserError(f"no kind of lie is called {name}; there are {', '.join(known)}")
    chosen = tuple(kind for kind in KINDS if not only or kind.name in only)
    return chosen, tuple(name for name in MORE if not only or name in only)


def _in_worlds_alone(
    chosen: Sequence[Kind], asked: Asked, kept: Kept, found: dict[str, Any], folder: Path | None
) -> int:
    """Rows of real swarms stay as they were. Raises UserError (64) for kinds that the virtual world does not have."""
    known = [kind for kind in chosen if kind.virtual]
    for name in {*asked.only} - {kind.name for kind in known}:
        there = ", ".join(kind.name for kind in KINDS if kind.virtual)
        raise UserError(f"the virtual world has no {name}; it has {there}")
    for kind in known:
        seen = _worlds(kind, asked, kept)
        if not kind.real:
            _add(found, kind, USUAL, virtual_row(kind, seen[kind.name]))
        _add_worlds(found, seen)
        _write(folder, found)
        for name, each in seen.items() if not asked.as_json else ():
            click.echo(_world_line(name, each))
    if asked.as_json:
        click.echo(json.dumps(found, indent=2))
    return 0


def _worlds(kind: Kind, asked: Asked, kept: Kept) -> dict[str, dict[str, Any]]:
    """What was seen in virtual worlds, by the name of the row."""
    return {name: world.measure(virtual, asked.worlds, kept) for name, virtual in kind.in_worlds.items()}


def _measured(kind: Kind, asked: Asked, kept: Kept) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Its row, and what was seen in virtual worlds."""
    seen = _worlds(kind, asked, kept) if asked.setting == USUAL else {}
    if not kind.real:
        return virtual_row(kind, seen[kind.name]), seen
    kind = replace(kind, steps=min(kind.steps, QUICK_STEPS)) if asked.quick else kind
    measured = _seen(kind, asked, kept)
    if kind.loses_one:
        return _over_honest(measured, _seen(replace(kind, told=""), asked, kept, f"{kind.name} without")), seen
    return row(measured, _without(measured, kind, asked, kept)), seen


def _seen(kind: Kind, asked: Asked, kept: Kept, name: str = "") -> dict[str, Any]:
    ground = Ground.of(kind.layout, asked.setting)
    return kept(name or kind.name, (kind, ground), partial(_undisturbed, kind, ground))


def _without(measured: Mapping[str, Any], kind: Kind, asked: Asked, kept: Kept) -> dict[str, float]:
    """Losses by step, without a lie."""
    alone = Ground(kind.layout, asked.setting).alone
    steps = -(-measured["last"] // BASELINE_STEPS) * BASELINE_STEPS
    losses: dict[str, float] = kept("without", (alone, steps), partial(swarm.baseline, alone, steps))["losses"]
    return losses


def _over_honest(measured: Mapping[str, Any], true: Mapping[str, Any]) -> dict[str, Any]:
    """Its row. To make a stage of others' weights costs loss and time also where nobody lies. So the loss is compared
    with that of such a run, and the rate with what was left there of the rate before."""
    left = true["during"] / true["before"] if true["before"] else 0.0
    return row({**measured, "before": measured["before"] * left}, true["losses"])


def _honest(asked: Asked, kept: Kept) -> dict[str, Any]:
    measured = _seen(HONEST, asked, kept)
    return honest_row(measured, _without(measured, HONEST, asked, kept))


def _compared(steps: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    return {"rows": hardware.measure(steps)}


def _undisturbed(kind: Kind, ground: Ground) -> dict[str, Any]:
    """Of a swarm in which nobody went for its silence. Raises UserError (75)."""
    made = swarm.measure(kind, ground)
    if made["silenced"]:
        names = ", ".join(made["silenced"])
        raise UserError(f"{kind.name}: {names} went for silence, since the machine is too busy; run it again later", 75)
    return made


def _found_before(folder: Path | None) -> dict[str, Any]:
    """What earlier calls have written there."""
    empty: dict[str, Any] = {
        "kinds": [], "f1": None, "cost": None, "by_setting": {}, "f1_by_setting": {}, "honest": {}, "virtual": {},
        "hardware": [],
    }  # fmt: skip
    path = None if folder is None else folder / FIGURES
    return empty | json.loads(path.read_text()) if path is not None and path.exists() else empty


def _add(found: dict[str, Any], kind: Kind, setting: Setting, made: dict[str, Any]) -> None:
    """Rows are in the order of KINDS, each kind once; those of other settings, and of a stage's only holder, stand
    apart."""
    name = Ground(kind.layout, setting).name
    rows = found["kinds"] if name == USUAL.name else found["by_setting"].get(name, [])
    rows = sorted([*(each for each in rows if each["kind"] != kind.name), made], key=lambda each: _rank(each["kind"]))
    if name == USUAL.name:
        found["kinds"], found["f1"] = rows, f1(rows)
    else:
        found["by_setting"] = dict(sorted((found["by_setting"] | {name: rows}).items()))
    found["f1_by_setting"] = f1_by_setting(found)


def _add_worlds(found: dict[str, Any], seen: Mapping[str, dict[str, Any]]) -> None:
    rows = [name for kind in KINDS for name in kind.in_worlds]
    found["virtual"] = dict(sorted((found["virtual"] | seen).items(), key=lambda item: rows.index(item[0])))


def _rank(name: str) -> int:
    return [kind.name for kind in KINDS].index(name)


def _write(folder: Path | None, found: dict[str, Any]) -> None:
    if folder is not None:
        write_atomically(folder / FIGURES, json.dumps(found, indent=2) + "\n")


def _world_line(name: str, seen: Mapping[str, Any]) -> str:
    steps = "" if seen["steps_until_found"] is None else f" after {seen['steps_until_found']:g} steps on the mean"
    came = f"found in {seen['found']}{steps}, harmless in {seen['harmless']}"
    return f"{name:<26}  {seen['worlds']} worlds: {came}, honest removed {seen['honest_removed']}"


def _line(made: dict[str, Any], setting: Setting) -> str:
    cells = [f"{name.replace('_', ' ')} {made[name]}" for name in list(made)[2:] if made[name] is not None]
    by = "" if setting == USUAL else f" ({setting.name})"
    return f"{made['kind'] + by:<24} {made['outcome']:<13} {', '.join(cells)}"


def _honest_line(made: Mapping[str, Any], setting: Setting) -> str:
    cells = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in made.items())
    return f"nobody lies ({setting.name}): {cells}"
