"""What the runs come to: rows of steps times seconds, as JSON, as text, and as the page has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from statistics import mean
from typing import Any, Final

from ftnode.lab.codecs.plan import Row, Scale
from ftnode.lab.codecs.step_seconds import LINES, Measured, manifest_of, seconds_of

REFERENCES: Final = {"bfloat16": 1.0, "subspace": 0.62, "int8": 0.58, "int4": 0.37}
"""T of Protocol NanoGPT's records, of their bfloat16's 293,889 s. Their subspace has rank 160 of 1,024: 181,487 s. int8
and int4 by arithmetic, as if they needed as many steps."""
BASE: Final = Row("bfloat16", "adam")
MUST: Final = dict(zip(LINES, (0.30, 0.10)))
AIM: Final = dict(zip(LINES, (0.15, 0.03)))
"""T of the best row, of that of BASE on the same line."""
NOT_REACHED: Final = "not reached"

Plain = Mapping[str, Any]


def figures(
    scale: Scale, results: Iterable[Plain], trigram: Plain, device_tflops: float, measured: Sequence[Measured]
) -> dict[str, Any]:
    """`results`: of runs that have ended (training.py); `trigram`: as trigram.py measured it."""
    by_row: dict[str, list[Plain]] = {}
    for result in results:
        by_row.setdefault(result["row"], []).append(result)
    rows = [row for row in scale.rows if row.name in by_row]
    trained = {row: trained_row(row, by_row[row.name]) for row in rows}
    for row, each in trained.items():
        each["of_bfloat16"] = share(each["steps"], trained.get(Row("bfloat16", row.optimiser), {}).get("steps"))
    return {
        "rows": [
            each for line in LINES for each in contested(scale, line, trained, device_tflops, measured)
        ],
        "references": REFERENCES, "target_loss": scale.target, "trigram_loss": trigram["loss"], "trigram": trigram,
        "device_tflops": device_tflops, "measured": [asdict(one) for one in measured],
        "trained": list(trained.values()),
    }  # fmt: skip


def trained_row(row: Row, results: Sequence[Plain]) -> dict[str, Any]:
    """Of one row's seeds. `steps`: their mean, None where one of them did not come down to the target. `loss`: what
    steps are counted to, or else the lowest smoothed validation, mean of the seeds."""
    ordered = sorted(results, key=lambda result: int(result["seed"]))
    steps = [result["steps"] for result in ordered]
    reached = None not in steps
    first = ordered[0]
    return {
        "row": row.name, **row.described(),
        "steps": round(mean(steps), 1) if reached else None,
        "loss": first["target"] if reached else round(mean(result["lowest"] for result in ordered), 3),
        "seeds": len(ordered),
        "by_seed": {
            str(result["seed"]): None if each is None else round(each, 1) for result, each in zip(ordered, steps)
        },
        "rate": first["rate"], "hidden": first["hidden"], "parameters": first["parameters"],
        "processor_seconds_per_step": round(mean(result["processor_seconds_per_step"] for result in ordered), 2),
    }  # fmt: skip


def contested(
    scale: Scale, line: str, trained: Mapping[Row, Plain], device_tflops: float, measured: Sequence[Measured]
) -> list[dict[str, Any]]:
    """The rows over one line; `T` in seconds."""
    found = []
    for row, each in trained.items():
        step = seconds_of(manifest_of(row, scale), line, device_tflops, measured)
        found.append({
            "line": line, "boundary": row.boundary, "subspace": row.subspace or None, "optimiser": row.optimiser,
            "steps": each["steps"], "seconds_per_step": round(step.seconds, 2),
            "T": None if each["steps"] is None else round(each["steps"] * step.seconds, 1), "loss": each["loss"],
            "seeds": each["seeds"], "tensor_bytes": step.tensor_bytes, "bound_seconds": round(step.bound, 2),
            "ratio": step.ratio, "update_seconds": round(step.update, 2), "busy_with": step.way,
        } | row.described())  # fmt: skip
    names = [row.name for row in trained]
    base = found[names.index(BASE.name)]["T"] if BASE.name in names else None
    return [each | {"of_bfloat16_adam": share(each["T"], base)} for each in found]


def share(one: float | None, whole: float | None) -> float | None:
    return None if one is None or whole is None else round(one / whole, 3)


def best(rows: Iterable[Plain], line: str) -> Plain | None:
    """The row with the least T on this line; None where no T can be held against BASE's."""
    known = [each for each in rows if each["line"] == line and each["of_bfloat16_adam"] is not None]
    return min(known, key=lambda each: float(each["T"]), default=None)


def page_table(told: Plain) -> str:
    """As docs/explanation/thin-lines.md has it."""
    heads = [f"{line.partition('Mbit')[0]}: s a step | T" for line in LINES]
    lines = [
        f"| boundary | optimiser | seeds | steps | of bfloat16's | {' | '.join(heads)} |",
        f"|{'---|' * (5 + 2 * len(LINES))}",
    ]
    for number, each in enumerate(told["trained"]):
        over = [told["rows"][place * len(told["trained"]) + number] for place in range(len(LINES))]
        cells = [
            described(each), each["optimiser"], str(each["seeds"]), steps_text(each), number_text(each["of_bfloat16"]),
        ]  # fmt: skip
        for one in over:
            cells += [f"{one['seconds_per_step']:.1f}", number_text(one["of_bfloat16_adam"])]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def described(each: Plain) -> str:
    """What a row does to boundary tensors, in words."""
    apart = f", gradients {each['gradients']}" if each.get("gradients") else ""
    subspace = f", subspace {each['subspace']}" if each["subspace"] else ""
    return f"{each['boundary']}{apart}{subspace}"


def steps_text(each: Plain) -> str:
    """With the least and the most of several seeds."""
    if each["steps"] is None:
        return f"{NOT_REACHED} ({each['loss']:.2f})"
    found = list(each["by_seed"].values())
    spread = f" ({min(found):.0f} to {max(found):.0f})" if len(found) > 1 else ""
    return f"{each['steps']:.0f}{spread}"


def number_text(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def text(told: Plain, notes: Sequence[str]) -> str:
    """For a terminal. A loss that a trigram table reaches shows nothing, so that no row is the best of them then."""
    lines = [
        f"steps to a validation loss of {told['target_loss']} nats per token; a trigram table has "
        f"{told['trigram_loss']:.3f}; T of that of bfloat16 with Adam",
        page_table(told),
    ]
    for line in LINES:
        found = best(told["rows"], line) if told["target_loss"] < told["trigram_loss"] else None
        if found is not None:
            lines.append(
                f"{line}: best is {described(found)} with {found['optimiser']}, {found['of_bfloat16_adam']:.3f} of "
                f"bfloat16 with Adam (must be {MUST[line]}, aim {AIM[line]})"
            )
    return "\n".join([*lines, *notes])
