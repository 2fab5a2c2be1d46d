"""`ftnode lab codecs`: steps to a fixed validation loss, times seconds of a step over thin lines, by row.

Steps are counted in one process, by the swarm's own stages and codecs (whole_model.py). Seconds are those of a larger
model on stated lines and devices (step_seconds.py). Every run leaves one result file. Called again with the same
folder, the lab goes on with what is missing and with what was cut off; the table is made from what is there.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from ftnode.lab.codecs.plan import FULL, QUICK, Row, Scale
from ftnode.lab.codecs.step_seconds import ASSUMED, DEVICE_TFLOPS, Measured
from ftnode.lab.codecs.table import figures, text
from ftnode.lab.results.cut_off_work import CutOff, Slice
from ftnode.lab.results.result_files import folder_for, kept_or_made, read_kept, write_atomically
from ftnode.models.faults import StageFault
from ftnode.protocol.words.errors import UserError

ERRORS = "lab_codecs"

FOLDER: Final = Path("reports/codecs")
FIGURES: Final = "contest.json"
PICTURE: Final = "contest.png"
SEEDS: Final = (0, 1, 2)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a person asked for. `only`: names of rows, all without any. `minutes`: what is not finished then is cut
    off. `measured`: what steps took of their bounds, the page's where empty."""

    quick: bool = False
    only: tuple[str, ...] = ()
    seeds: tuple[int, ...] | None = None
    minutes: float | None = None
    device_tflops: float = DEVICE_TFLOPS
    measured: tuple[Measured, ...] = ()
    out: Path | None = None
    json: bool = False


@dataclass(slots=True)
class Found:
    """What lies in the folder: all runs that have ended, of this call and of earlier ones."""

    trigram: dict[str, Any]
    results: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def run(asked: Asked) -> int:
    """Measure what is missing, write contest.json and a picture, print the table or the JSON. Raises UserError: 64 for
    a row that is none, 65 for a folder of another contest, 70 when training explodes, 73 for a folder that cannot be
    used."""
    scale = QUICK if asked.quick else FULL
    rows = scale.chosen(asked.only)
    out = folder_for(asked.out or FOLDER, "--out", empty=False)
    try:
        found = measure(scale, rows, asked, out)
    except StageFault as fault:
        raise UserError(
            f"training has exploded ({fault}); what was finished lies in {out}; try other --seeds", 70
        ) from None
    told = figures(scale, found.results, found.trigram, asked.device_tflops, asked.measured or (ASSUMED,))
    told["notes"] = found.notes
    write_atomically(out / FIGURES, json.dumps(told, indent=1) + "\n")
    if told["rows"]:
        from ftnode.lab.codecs.pictures import draw

        draw(told, found.results, out / PICTURE)
    print(json.dumps(told) if asked.json else text(told, found.notes))
    return 0


def measure(scale: Scale, rows: tuple[Row, ...], asked: Asked, out: Path) -> Found:
    """All rows with the first seed, then all with the next. When the time is up, only what is there already."""
    import torch

    from ftnode.lab.codecs import tokens, trigram
    from ftnode.lab.codecs.training import train

    torch.set_num_threads(1)
    started = time.monotonic()
    corpus, index = tokens.open_tokens(out / f"tokens-{scale.name}", scale)
    vocabulary = index.tokenizer.vocabulary
    windows = tokens.validation_windows(corpus, scale.start)
    folder = out / f"results-{scale.name}"
    table = kept_or_made(
        folder / "trigram.json",
        lambda: {"corpus": corpus.sha256} | trigram.measure(tokens.all_tokens(corpus.training), vocabulary, windows),
    )
    if table["corpus"] != corpus.sha256 or any(one["target"] != scale.target for one in read_results(folder)):
        raise UserError(f"{out} has results of another text or target; choose another --out", 65)
    _say(f"a trigram table of {table['tokens']:,} tokens has {table['loss']:.3f} nats per token")
    if scale.below_trigram and scale.target >= table["loss"]:
        raise UserError(
            f"a trigram table reaches {table['loss']:.3f}, so that {scale.target} shows nothing; lower the target in "
            "lab/codecs/plan.py", 70,
        )  # fmt: skip
    found = Found(table)

    def is_over() -> bool:
        return asked.minutes is not None and time.monotonic() - started >= 60 * asked.minutes

    for seed in asked.seeds or SEEDS[: 1 if asked.quick else None]:
        for row in rows:
            path = folder / f"{row.name}-s{seed}.json"
            if path.exists() or is_over():
                continue
            _say(f"{row.name}, seed {seed}")
            part = Slice(out / f"unfinished-{scale.name}" / f"{path.stem}.pt", is_over)
            try:
                kept_or_made(path, partial(train, scale, row, seed, corpus, vocabulary, part))
            except CutOff as cut:
                found.notes.append(f"{path.stem} was cut off at {cut}; another call goes on there.")
            else:
                part.done()
    found.results = read_results(folder)
    return found


def read_results(folder: Path) -> list[dict[str, Any]]:
    return [read_kept(path) for path in sorted(folder.glob("*-s*.json"))]


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
