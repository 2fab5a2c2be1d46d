"""`ftnode lab hostile`: each attack against a swarm of its own on loopback, and the table of what came of it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import trio

from ftnode.lab.hostile.attacks import ATTACKS, Attack
from ftnode.lab.hostile.field import open_field
from ftnode.lab.hostile.outcome import Measured, finding, outcome_of
from ftnode.lab.results.result_files import folder_for, write_atomically
from ftnode.lab.swarms.template import use_template
from ftnode.node.machine.child_processes import thread_environment
from ftnode.protocol.words.errors import UserError

ERRORS = "lab_hostile"

SECONDS: Final = 8.0
QUICK_SECONDS: Final = 4.0
FIGURES: Final = "hostile.json"
RATES: Final = ("rate_before", "rate_during", "rate_after")


def run(
    json_output: bool = False, quick: bool = False, only: Sequence[str] = (), out: Path | None = None
) -> dict[str, Any]:
    """Carry the attacks out one after the other, print a table or JSON, and return the figures. In `out` they are
    written after each attack.

    Nodes are forks of a template: loading their modules would take the time of the swarm that is measured. Raises
    UserError for a name that no attack has (64) and a folder that is in use (73).
    """
    chosen = chosen_attacks(only)
    folder = None if out is None else folder_for(out, "--out")
    os.environ.update(thread_environment(1))  # a process with threads cannot be forked
    use_template()
    found: dict[str, Measured] = {}
    for attack in chosen:
        found[attack.name] = carry_out(attack, QUICK_SECONDS if quick else SECONDS, folder)
        if folder is not None:
            write_atomically(folder / FIGURES, json.dumps(as_figures(found), indent=2) + "\n")
        if not json_output:
            print(row(as_plain(attack.name, found[attack.name]), finding(found[attack.name])), flush=True)
    figures = as_figures(found)
    if json_output:
        print(json.dumps(figures, indent=2))
    return figures


def chosen_attacks(only: Sequence[str]) -> tuple[Attack, ...]:
    """Those that are named, all without a name. Raises UserError (64)."""
    known = {attack.name: attack for attack in ATTACKS}
    for name in only:
        if name not in known:
            raise UserError(f"no attack is called {name}; there are {', '.join(known)}")
    return tuple(attack for attack in ATTACKS if not only or attack.name in only)


def carry_out(attack: Attack, seconds: float, folder: Path | None) -> Measured:
    """On a field of its own."""
    with ExitStack() as stack:
        directory = None if folder is None else folder / attack.name
        if directory is not None:
            directory.mkdir()
        field = stack.enter_context(open_field(seconds, attack.ground, directory=directory))
        return trio.run(attack.carry_out, field)


def as_plain(name: str, found: Measured) -> dict[str, Any]:
    rates = zip(RATES, (found.before, found.during, found.after))
    return {"name": name, **{rate: round(value, 3) for rate, value in rates}, "outcome": outcome_of(found)}


def as_figures(found: dict[str, Measured]) -> dict[str, Any]:
    """`attacks`: a row each. `findings`: by name, what was seen besides the rates."""
    return {
        "attacks": [as_plain(name, each) for name, each in found.items()],
        "findings": {name: text for name, each in found.items() if (text := finding(each))},
    }


def row(plain: dict[str, Any], said: str = "") -> str:
    rates = "".join(f"{plain[rate]:>8.2f}" for rate in RATES)
    return f"{plain['name']:<24}{rates}  {plain['outcome']:<10}{said}".rstrip()


def page_table(figures: dict[str, Any]) -> str:
    """As docs/reference/hostile.md has it."""
    abouts = {attack.name: attack.about for attack in ATTACKS}
    lines = ["| attack | before | during | after | outcome | seen |", "|---|---|---|---|---|---|"]
    for each in figures["attacks"]:
        rates = " | ".join(f"{each[rate]:.2f}" for rate in RATES)
        name = each["name"]
        seen = figures["findings"].get(name, "")
        lines.append(f"| `{name}`: {abouts[name]} | {rates} | {each['outcome']} | {seen} |")
    return "\n".join(lines)
