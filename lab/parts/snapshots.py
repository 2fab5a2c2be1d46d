"""`ftnode lab snapshots`: what keeping a stage costs, against torch.distributed.checkpoint and orbax-checkpoint.

Each way saves and loads the same amount of state in a process of its own; the ways take turns, so that a busy disk
slows all, and every figure is the median of the rounds. Budgets: training waits no longer than with torch's; writing
and loading take no longer than with the better of the others, at 1 GB and more; the copy is one; what is loaded is
equal.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from ftnode.lab.parts.snapshots_savers import WAYS
from ftnode.protocol.words.errors import UserError

SIZES: Final = (0.1, 1.0, 4.0)
"""Gigabytes of weights and both moments."""
QUICK_SIZES: Final = (0.1,)
JUDGED_FROM: Final = 0.9
"""Gigabytes: where starting and syncing files no longer decide."""
COPIES_MAX: Final = 1.05
"""Of the state, extra memory: one copy, and buffers."""
SECONDS_MAX: Final = 900
FIGURES: Final = ("blocking", "background", "load", "extra", "first_blocking")


def run(
    json_output: bool = False, sizes: tuple[float, ...] = (), rounds: int = 5, orbax: str | None = None,
    out: Path | None = None, quick: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Measure, print a table or JSON, and return the figures; `passed` says whether the budgets hold. `orbax`: a Python
    that has orbax-checkpoint; `out`: the folder whose disk is measured."""
    chosen = sizes or (QUICK_SIZES if quick else SIZES)
    with tempfile.TemporaryDirectory(prefix="ftnode-lab-", dir=out) as temporary:
        measured = [
            measure(Path(temporary), gigabytes, min(rounds, 3) if quick else rounds, orbax) for gigabytes in chosen
        ]
    figures = {"sizes": measured, "passed": all(found["passed"] for found in measured)}
    if json_output:
        print(json.dumps(figures, indent=2))
    else:
        for found in measured:
            Console().print(table(found))
            for line in (*found["skipped"], *found["missed"]):
                print(line)
    return figures


def measure(folder: Path, gigabytes: float, rounds: int, orbax: str | None) -> dict[str, Any]:
    found: dict[str, list[dict[str, Any]]] = {}
    skipped: dict[str, str] = {}
    for number in range(rounds):
        for way in WAYS:
            if way in skipped:
                continue
            answer = save_and_load(way, gigabytes, folder / f"{way}-{number}", orbax)
            if "missing" in answer:
                skipped[way] = f"{way} is not here: {answer['missing']}"
                continue
            found.setdefault(way, []).append(answer)
    ways = {
        way: {
            **{name: median(answer[name] for answer in answers) for name in FIGURES},
            "bytes": answers[0]["bytes"], "equal": all(answer["equal"] for answer in answers), "rounds": answers,
        } for way, answers in found.items()
    }  # fmt: skip
    missed = judge(ways, gigabytes)
    return {
        "gigabytes": gigabytes, "ways": ways, "skipped": list(skipped.values()), "missed": missed, "passed": not missed,
    }  # fmt: skip


def save_and_load(way: str, gigabytes: float, folder: Path, orbax: str | None) -> dict[str, Any]:
    """What a process of that way says. Raises UserError when it says nothing."""
    python = orbax if way == "orbax" and orbax else sys.executable
    script = Path(__file__).with_name("snapshots_savers.py")
    done = subprocess.run(
        [python, str(script), way, str(int(gigabytes * 1e9)), str(folder)], capture_output=True, text=True,
        timeout=SECONDS_MAX, check=False, env={**os.environ, "JAX_PLATFORMS": "cpu"},
    )  # fmt: skip
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["nothing"]
        raise UserError(f"{way} at {gigabytes:g} GB ended with exit code {done.returncode}: {lines[-1]}", 70)
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def judge(ways: dict[str, Any], gigabytes: float) -> list[str]:
    """The budgets that are missed."""
    ours, missed = ways["ours"], []
    rivals = {way: figures for way, figures in ways.items() if way != "ours"}
    if not ours["equal"]:
        missed.append(f"{gigabytes:g} GB: what was loaded is not what was saved")
    if gigabytes < JUDGED_FROM:
        return missed
    copies = ours["extra"] / ours["bytes"]
    if copies > COPIES_MAX:
        missed.append(f"{gigabytes:g} GB: {copies:.2f} copies of the state are more than {COPIES_MAX}")
    torchs = min(figures["blocking"] for way, figures in rivals.items() if way.startswith("dcp"))
    if ours["blocking"] > torchs:
        missed.append(f"{gigabytes:g} GB: training waits {ours['blocking']:.2f} s, with torch's {torchs:.2f} s")
    for name in ("background", "load"):
        best = min(figures[name] for figures in rivals.values())
        if ours[name] > best:
            missed.append(f"{gigabytes:g} GB: {name} takes {ours[name]:.2f} s, the better rival {best:.2f} s")
    return missed


def table(found: dict[str, Any]) -> Table:
    made = Table(title=f"Keeping {found['gigabytes']:g} GB", title_justify="left")
    for column in (
        "",
        "training waits s",
        "the first time s",
        "background s",
        "load s",
        "extra memory, copies",
        "equal",
    ):
        made.add_column(column, justify="right" if column else "left")
    for way, figures in found["ways"].items():
        made.add_row(
            way, f"{figures['blocking']:.3f}", f"{figures['first_blocking']:.3f}", f"{figures['background']:.2f}",
            f"{figures['load']:.2f}", f"{figures['extra'] / figures['bytes']:.2f}", "yes" if figures["equal"] else "NO",
        )  # fmt: skip
    return made
