"""`ftnode lab elastic`: what it costs the others when a volunteer joins, when one of two holders is killed, and what
training has of it.

A newcomer joins a swarm of real processes and a replica is SIGKILLed in the middle of a step, once with torch and once
with compute that only sleeps: two cores that four stages keep busy hide what each volunteer's own would show. Then the
experiment of FlexiTrain: training losses with and without failures, overlaid, with an undisturbed run repeated to say
how far two runs are apart whose sums are made in different orders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from ftnode.lab.benchmarks.elastic_picture import draw_curves
from ftnode.lab.benchmarks.elastic_swarms import COMPUTE, PACED_SECONDS, STAGES, join_and_lose, train
from ftnode.lab.benchmarks.elastic_times import PARTS, STEPS_BEFORE, compare_curves
from ftnode.lab.parts.transport import tensor_path
from ftnode.lab.results.result_files import measured, write_atomically

PICTURE = "curves.png"
TRAINED = ("undisturbed", "again", "disturbed")
"""The runs whose losses are compared."""
STALL_BUDGET = 0.1
"""Of a step, longer."""
OUTAGE_BUDGET_SECONDS = 2.0
TRANSPORT_ROUNDS = 3


def run(json_output: bool = False, runs: int = 3, out: Path | None = None) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures. Takes about ten minutes a run. `passed` says whether
    the audit found nothing.

    Raises UserError (73) when `out` is no new or empty folder.
    """
    found = measured(measure, runs, out)
    figures = summarise(found)
    text = json.dumps(figures, indent=2)
    if out is not None:
        write_atomically(out / "elastic.json", text)
        draw(found[figures["curves"]["drawn"]], out / PICTURE)
    print(text if json_output else table(figures))
    return figures


def measure(directory: Path | None = None) -> dict[str, Any]:
    """Everything once, one swarm after another."""

    def folder(name: str) -> Path | None:
        if directory is None:
            return None
        (directory / name).mkdir(parents=True)
        return directory / name

    return {
        "tensor_path_megabytes_per_second": tensor_path(TRANSPORT_ROUNDS),
        "elastic": {compute: join_and_lose(compute, folder(compute)) for compute in COMPUTE},
        "undisturbed": train(False, folder("undisturbed")),
        "again": train(False, folder("again")),
        "disturbed": train(True, folder("disturbed")),
    }


def draw(run: Mapping[str, Any], path: Path) -> None:
    disturbed = run["disturbed"]
    draw_curves(
        path,
        undisturbed=run["undisturbed"]["curve"],
        again=run["again"]["curve"],
        disturbed=disturbed["curve"],
        killed=disturbed["killed"],
        joined=disturbed["joined"],
    )


# -- what is calculated


def summarise(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians over the runs, and the worst of what has a budget. Of the curves the run with the largest difference
    is told, and drawn."""
    compared = [
        {
            "with_losses": compare_curves(one["disturbed"]["curve"], one["undisturbed"]["curve"]),
            "undisturbed": compare_curves(one["again"]["curve"], one["undisturbed"]["curve"]),
            "final_loss": one["undisturbed"]["curve"][-1][1],
            "killed": len(one["disturbed"]["killed"]),
            "joined": len(one["disturbed"]["joined"]),
            "visits": sum(one["disturbed"]["visits"]),
            "seconds": one["disturbed"]["seconds"],
            "undisturbed_seconds": one["undisturbed"]["seconds"],
        }
        for one in runs
    ]
    drawn = max(range(len(runs)), key=lambda number: compared[number]["with_losses"]["largest"])
    audits = sorted({verdict for one in runs for verdict in _audits(one)})
    return {
        "tensor_path_megabytes_per_second": median(one["tensor_path_megabytes_per_second"] for one in runs),
        "joins": {compute: _middle([one["elastic"][compute]["join"] for one in runs], "stall") for compute in COMPUTE},
        "kills": {
            compute: _middle([one["elastic"][compute]["kill"] for one in runs], "outage_seconds") for compute in COMPUTE
        },
        "curves": {**compared[drawn], "drawn": drawn},
        "budgets": {"stall": STALL_BUDGET, "outage_seconds": OUTAGE_BUDGET_SECONDS},
        "audit": audits,
        "passed": audits == ["passed"],
        "runs": list(runs),
    }


def _middle(found: Sequence[Mapping[str, float]], worst: str) -> dict[str, float]:
    middle = {name: median(one[name] for one in found) for name in found[0] if name != "stage"}
    return {**middle, "worst": max(one[worst] for one in found)}


def _audits(run: Mapping[str, Any]) -> list[str]:
    return [found["audit"] for found in (*run["elastic"].values(), *(run[name] for name in TRAINED))]


# -- what a person sees


def table(figures: Mapping[str, Any]) -> str:
    forward, backward = PACED_SECONDS
    return "\n".join(
        [
            f"{STAGES} block stages and the head; torch: the preset tiny; paced: a stage sleeps {forward} s and "
            f"{backward} s, forward and backward, and has the bytes of a larger one",
            *_join_lines(figures["joins"], figures["tensor_path_megabytes_per_second"]),
            *_kill_lines(figures["kills"]),
            *_curve_lines(figures["curves"]),
            f"audit: {'; '.join(figures['audit'])}",
        ]
    )


def _join_lines(joins: Mapping[str, Any], tensor_path_speed: float) -> list[str]:
    parts = [_line(name.replace("_", " "), joins, _seconds(f"{name}_seconds")) for name in PARTS]
    limit = f"at most {STALL_BUDGET:.0%}"
    return [
        _row("joining", list(joins)),
        *parts,
        _line("to the first microbatch", joins, _seconds("seconds")),
        _line("step before", joins, _seconds("step_seconds")),
        _line(f"longest of {STEPS_BEFORE} before", joins, _seconds("longest_before_seconds")),
        _line("longest while it started", joins, _seconds("longest_starting_seconds")),
        _line("longest while it joined", joins, _seconds("longest_joining_seconds")),
        _line("stall, of a step", joins, lambda one: f"{one['stall']:.0%}", limit),
        _line("worst", joins, lambda one: f"{one['worst']:.0%}", limit),
        _line("fetched", joins, lambda one: f"{one['bytes_fetched'] / 1e6:.1f} MB"),
        _line(
            "speed", joins, lambda one: f"{one['megabytes_per_second']:.0f} MB/s",
            f"tensor path {tensor_path_speed:.0f} MB/s",
        ),
    ]  # fmt: skip


def _kill_lines(kills: Mapping[str, Any]) -> list[str]:
    limit = f"at most {OUTAGE_BUDGET_SECONDS:g} s"
    return [
        _row("one of two killed", list(kills)),
        _line("noticed", kills, _seconds("detect_seconds")),
        _line("view without it", kills, _seconds("elect_seconds")),
        _line("to the next commit", kills, _seconds("outage_seconds"), limit),
        _line("worst", kills, _seconds("worst"), limit),
        _line("step before", kills, _seconds("step_seconds")),
        _line("tokens/s before", kills, lambda one: f"{one['tokens_per_second_before']:.0f}"),
        _line("tokens/s after", kills, lambda one: f"{one['tokens_per_second_after']:.0f}"),
        _line("kept", kills, lambda one: f"{one['kept']:.0%}"),
        _line("visits done again", kills, lambda one: f"{one['visits']:.0f}"),
    ]


def _curve_lines(curves: Mapping[str, Any]) -> list[str]:
    return [
        f"{curves['killed']} replicas killed, {curves['joined']} newcomers joined: {curves['seconds']:.0f} s, not "
        f"{curves['undisturbed_seconds']:.0f} s; {curves['visits']} visits done again; last loss "
        f"{curves['final_loss']:.4f}",
        _difference("with losses", curves["with_losses"]),
        _difference("undisturbed once more", curves["undisturbed"]),
    ]


def _difference(name: str, found: Mapping[str, float]) -> str:
    return (
        f"  {name}: at most {found['largest']:.1e} from the undisturbed loss (step {found['at']}), "
        f"{found['final']:.1e} at the end"
    )


def _seconds(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda one: f"{one[name]:.3f} s"


def _row(name: str, cells: Sequence[str]) -> str:
    return f"{name:<28}" + "".join(f"{cell:>12}" for cell in cells)


def _line(name: str, found: Mapping[str, Any], say: Callable[[Mapping[str, Any]], str], note: str = "") -> str:
    row = _row(f"  {name}", [say(one) for one in found.values()])
    return f"{row}   {note}" if note else row
