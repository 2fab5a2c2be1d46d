"""The recovery lab's tables: what each way is worth, as rows of numbers, CSV and Markdown. Decides nothing twice:
pictures and prose take their figures from here."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from ftnode.lab.recovery.curves import excess_iterations, first_below, level, reached
from ftnode.lab.recovery.failures import PAPER_ITERATION_SECONDS, PER_ITERATION
from ftnode.lab.recovery.plan import CLIPPED_NONE, NONE
from ftnode.lab.recovery.runs import is_by_formula
from ftnode.lab.recovery.whole_model import SIZES
from ftnode.lab.results.result_files import write_atomically

PAPER_SECONDS = {"redundant": 151.0}
PAPER_OTHER_SECONDS = 92.1
"""Table 2 at 16 %: seconds per iteration of checkpointing, CheckFree and CheckFree+."""
PAPER_RECOVERY_SECONDS = 30.0
TARGET_SHARE = 0.6
"""Policies are compared by when they reach the loss that the run without failures has at this share of its length."""
Schedules = tuple[str, str, float, str]
Loss = tuple[str, str, int, str, str]
"""(size, routes, age, stages lost, way) of experiment 1."""


@dataclass(frozen=True, slots=True)
class Table:
    """`about`: what a reader must know to read the numbers."""

    name: str
    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]

    def as_records(self) -> list[dict[str, Any]]:
        return [dict(zip(self.columns, row)) for row in self.rows]


def tables(results: Any) -> list[Table]:
    """All that the results allow; a table without rows is left out."""
    runs = compared(results.runs)
    found = [
        at_once(results.at_once), over_a_run(runs), damages(runs), alternatives(runs), costs(runs), afterwards(runs)
    ]  # fmt: skip
    return [table for table in found if table.rows]


def at_once(measured: list[dict[str, Any]]) -> Table:
    """Mean and range over seeds, per size, routes, age, lost stages and way."""
    after = max((tuple(one["after"]) for one in measured), key=len, default=())
    parameters = {one["size"]: one["parameters"] for one in measured}
    rows = []
    for key, by_seed in merged(measured).items():
        columns = [[excess[n] for excess in by_seed.values() if len(excess) > n] for n in range(len(after))]
        means = [round(mean(values), 4) if values else "" for values in columns]
        rows.append((key[0], parameters[key[0]], *key[1:], _seeds(after, columns), *means, _spread(columns[0])))
    return Table(
        "at_once", "1. At once: a stage is lost and rebuilt, once",
        "Excess of the validation loss over the undamaged model at the same step, nats per byte, mean of the seeds.",
        ("size", "parameters", "routes", "age", "lost", "way", "seeds", *(f"after {steps}" for steps in after),
         "range at 0"),
        tuple(rows),
    )  # fmt: skip


def merged(measured: Iterable[dict[str, Any]]) -> dict[Loss, dict[int, list[float]]]:
    """Loss → seed → excess. Where several files of a seed tell of the same loss, the one that watched it longest."""
    found: dict[Loss, dict[int, list[float]]] = {}
    for one in measured:
        routes = "swapped" if one["swap"] else "normal"
        for row in one["rows"]:
            key = (one["size"], routes, row["age"], "+".join(map(str, row["lost"])), row["way"])
            seeds = found.setdefault(key, {})
            seeds[one["seed"]] = max(seeds.get(one["seed"], []), row["excess"], key=len)
    return found


def _seeds(after: Sequence[int], columns: Sequence[Sequence[float]]) -> str:
    """How many there are of each mean: said once where all columns have as many."""
    whole = len(columns[0])
    fewer = [f"after {steps}: {len(one)}" for steps, one in zip(after, columns) if 0 < len(one) < whole]
    return f"{whole} ({', '.join(fewer)})" if fewer else str(whole)


def over_a_run(runs: list[dict[str, Any]]) -> Table:
    """Every policy under every schedule against the run of its seed without failures."""
    rows = []
    for (losing, rate, scale, name), found in by_policy(runs).items():
        excess = [excess_iterations(one["curve"], reference(runs, one)) for one in found]
        ends = [level(one["curve"], found_until(runs)) for one in found]
        losses = [one["counted"]["failures"] for one in found]
        rows.append((
            losing, rate, round(scale, 2), name, found[0]["parameters"], found[0]["iterations"], len(found),
            round(mean(losses), 1), round(mean(ends), 4), round(mean(excess), 1), _spread(excess, 0),
            _per_failure(excess, losses), sum(one["counted"]["rolled_back_steps"] for one in found) // len(found),
        ))  # fmt: skip
    return Table(
        "runs", "2. Over a run, 6. ablations",
        "Validation loss: mean over the last quarter. Excess: iterations behind the run without failures at equal "
        "loss, mean over the second half. `times`: how often the published probability per iteration was multiplied. "
        + "; ".join(f"{rate} per hour is {p} per iteration in the published code, {_hourly(p):.1%} per hour at "
                    f"{PAPER_ITERATION_SECONDS} s" for rate, p in PER_ITERATION.items()) + ".",
        ("losing", "rate", "times", "policy", "parameters", "iterations", "seeds", "failures", "validation loss",
         "excess", "range",
         "excess per failure", "steps rolled back"),
        tuple(rows),
    )  # fmt: skip


def damages(runs: list[dict[str, Any]]) -> Table:
    """What one loss costs at once inside a run, early and late in it: whether the others have learned to stand in."""
    rows = []
    for (losing, rate, scale, name), found in by_policy(runs).items():
        half = found[0]["iterations"] / 2
        for part in ("first", "middle", "last"):
            early: list[float] = []
            late: list[float] = []
            told = [one for one in found if "damages" in one]
            for one in told:
                stages = SIZES[one["size"]].stages
                for iteration, lost, rise in one["damages"]:
                    if len(lost) == 1 and part == {1: "first", stages: "last"}.get(lost[0], "middle"):
                        (early if iteration <= half else late).append(rise)
            if early and late:
                rows.append((losing, rate, round(scale, 2), name, part, len(told), len(early), round(mean(early), 3),
                             len(late), round(mean(late), 3)))  # fmt: skip
    return Table(
        "damages", "2b. What one loss costs at once, in the course of a run",
        "Rise of the validation loss when a stage that was lost alone is rebuilt, mean over such losses. Seeds: those "
        "whose files tell; the oldest do not.",
        ("losing", "rate", "times", "policy", "stage", "seeds", "losses, first half", "rise, first half",
         "losses, second half", "rise, second half"),
        tuple(rows),
    )  # fmt: skip


def alternatives(runs: list[dict[str, Any]]) -> Table:
    """Iterations and modelled hours to the loss that the run without failures has at TARGET_SHARE of its length."""
    rows: list[tuple[Any, ...]] = []
    ours = _iteration_seconds(runs)
    for (losing, rate, scale, name), found in by_policy(runs).items():
        at = [first_below(one["curve"], _target(runs, one)) for one in found]
        there = [iteration for iteration in at if iteration is not None]
        if not there or len(there) < len(found):
            rows.append((losing, rate, round(scale, 2), name, f"{len(there)} of {len(found)}", "", "", ""))
            continue
        hours, seconds = [], []
        for one, iteration in zip(found, there):
            share = iteration / one["iterations"]
            counted = one["counted"]
            lost = counted["failures"] * share
            each = PAPER_SECONDS.get(name, PAPER_OTHER_SECONDS)
            hours.append((iteration * each + lost * (0 if name == "redundant" else PAPER_RECOVERY_SECONDS)) / 3600)
            extra = (counted["copy_seconds"] + counted["recovery_seconds"]) * share
            seconds.append(iteration * ours[name == "redundant"] + extra)
        rows.append((
            losing, rate, round(scale, 2), name, f"{len(there)} of {len(found)}", round(mean(there)),
            round(mean(hours), 2), round(mean(seconds), 1),
        ))  # fmt: skip
    return Table(
        "alternatives", "3. Against the alternatives: to the same validation loss",
        f"Target: the loss of the run without failures at {TARGET_SHARE:.0%} of the iterations. Hours with the "
        f"paper's seconds per iteration ({PAPER_OTHER_SECONDS}, redundant {PAPER_SECONDS['redundant']}) and "
        f"{PAPER_RECOVERY_SECONDS:g} s per recovery; seconds with ours ({ours[False]:.4f} s per iteration, redundant "
        f"{ours[True]:.4f} s: half microbatches and a second forward pass), copies and recoveries as measured, "
        "without a network. A checkpoint rolls all stages back.",
        ("losing", "rate", "times", "policy", "reached", "iterations", "paper's hours", "our seconds"),
        tuple(rows),
    )  # fmt: skip


def costs(runs: list[dict[str, Any]]) -> Table:
    """What it costs to be recoverable, counted in the runs, per iteration and relative to the model's weights."""
    rows = []
    for (losing, rate, scale, name), found in by_policy(runs).items():
        counted = [one["counted"] for one in found]
        steps = found[0]["iterations"]
        weights = 4 * found[0]["parameters"]
        failures = sum(c["failures"] for c in counted)
        rows.append((
            losing, rate, round(scale, 2), name, round(mean(c["kept_bytes"] for c in counted) / weights, 3),
            round(mean(c["sent_bytes"] for c in counted) / steps / weights, 4),
            round(mean(c["copy_seconds"] for c in counted) / steps * 1000, 3),
            round(sum(c["moved_bytes"] for c in counted) / failures / weights, 3) if failures else "",
            round(sum(c["recovery_seconds"] for c in counted) / failures * 1000, 2) if failures else "",
            "by formula" if is_by_formula(found[0]["policy"]) else "counted",
        ))  # fmt: skip
    return Table(
        "costs", "4. What being recoverable costs",
        "Bytes in units of the whole model's float32 weights. Kept: memory or storage held in fault-free time. Sent: "
        "traffic in fault-free time, per iteration. Copying: milliseconds per iteration. Recovery: per failure. By "
        "formula: no copies are made in these runs, the bytes of kept and sent are the sizes that they would have "
        "(redundant: weights, moments and each step's gradient of every block stage; CheckFree+: the head's weights, "
        "twice, each step).",
        ("losing", "rate", "times", "policy", "kept", "sent per iteration", "copying ms", "moved per failure",
         "recovery ms", "kept and sent"),
        tuple(rows),
    )  # fmt: skip


def afterwards(runs: list[dict[str, Any]]) -> Table:
    """Losses on held-out kinds of text at equal iterations, as perplexities per byte would hide small differences."""
    kinds = sorted({kind for one in runs for kind in one["texts"]})
    rows = []
    for (losing, rate, scale, name), found in by_policy(runs).items():
        rows.append((
            losing, rate, round(scale, 2), name, len(found),
            *(round(mean(one["texts"][kind] for one in found), 4) for kind in kinds),
        ))  # fmt: skip
    return Table(
        "texts", "5. The models afterwards",
        "Loss in nats per byte on four kinds of held-out text (lab/recovery/texts.py), after equally many iterations.",
        ("losing", "rate", "times", "policy", "seeds", *kinds), tuple(rows) if kinds else (),
    )  # fmt: skip


def compared(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without schedules of which there is nothing but the run that loses nothing."""
    used = {(one["losing"], one["scale"], one["rate"]) for one in runs if one["policy"]["name"] != NONE.name}
    return [one for one in runs if (one["losing"], one["scale"], one["rate"]) in used]


def by_policy(runs: Iterable[dict[str, Any]]) -> dict[Schedules, list[dict[str, Any]]]:
    """(losing, rate, scale, policy) → results of all seeds."""
    groups: dict[Schedules, list[dict[str, Any]]] = {}
    for one in runs:
        groups.setdefault((one["losing"], one["rate"], one["scale"], one["policy"]["name"]), []).append(one)
    return groups


def reference(runs: list[dict[str, Any]], one: dict[str, Any]) -> list[tuple[int, float]]:
    """The curve without failures of the same seed, size and clipping."""
    wanted = (CLIPPED_NONE.name if one["policy"].get("clip") else NONE.name, one["seed"], one["size"])
    return next(other["curve"] for other in runs if (other["policy"]["name"], other["seed"], other["size"]) == wanted)


def found_until(runs: list[dict[str, Any]]) -> int:
    """How long the runs with failures were."""
    return min(int(one["iterations"]) for one in runs)


def write_csv(table: Table, path: Path) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerows([table.columns, *table.rows])
    write_atomically(path, text.getvalue())


def markdown(found: list[Table], results: Any) -> str:
    lines = [] if results.complete else ["Not complete: the lab was stopped before all runs were made.", ""]
    lines += [*results.notes, *([""] if results.notes else [])]
    for table in found:
        lines += [f"## {table.title}", "", table.about, "", _line(table.columns), _line("---" for _ in table.columns)]
        lines += [*(_line(row) for row in table.rows), ""]
    return "\n".join(lines)


def _line(cells: Iterable[Any]) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


def _target(runs: list[dict[str, Any]], one: dict[str, Any]) -> float:
    return reached(reference(runs, one), TARGET_SHARE * found_until(runs))


def _iteration_seconds(runs: list[dict[str, Any]]) -> tuple[float, float]:
    """(ordinary, redundant): medians over runs, because a busy machine's caches slow single runs down."""

    def median_of(is_wanted: Callable[[dict[str, Any]], bool]) -> float:
        each = sorted(one["counted"]["train_seconds"] / one["iterations"] for one in runs if is_wanted(one))
        return each[len(each) // 2] if each else float("nan")

    return median_of(lambda one: not one["policy"]["redundant"]), median_of(lambda one: one["policy"]["redundant"])


def _per_failure(excess: list[float], losses: list[int]) -> Any:
    return round(sum(excess) / sum(losses), 2) if sum(losses) else ""


def _spread(values: list[float], digits: int = 3) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"


def _hourly(per_iteration: float) -> float:
    return 1 - float((1 - per_iteration) ** (3600 / PAPER_ITERATION_SECONDS))
