"""What it costs in learning when routes leave stages out for a while, and a blend fills them again.

`python -m ftnode.lab.recovery.left_out OUT` writes OUT/left_out.json and OUT/left_out.csv, and prints the table. It
goes on with what OUT has. From one trained model each loss starts anew, on the same data. Numbers are differences from
the undamaged model at the same step, in nats per byte.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from ftnode.lab.recovery.rebuilding import WAYS, rebuild
from ftnode.lab.recovery.whole_model import SIZES, WholeModel
from ftnode.lab.results.result_files import write_atomically
from ftnode.models.data import Corpus, load_corpus

SIZE, AGE, SEEDS = "tiny", 800, (1, 2, 3)
LOST = ((3,), (3, 4), (2, 5))
STEPS = (0, 20, 100, 500)
"""For which they are left out; 0: a blend at once."""
AFTER = (0, 20, 40, 60, 80, 100)
"""Steps of training after the blend."""
LATE = 40
"""Of those, when the blend has settled."""
EVERY = 20
COLUMNS = (
    "lost",
    "left out for",
    "at once",
    "when it ends",
    "after the blend",
    "40 to 100 steps later",
)


def measure(corpus: Corpus, seed: int) -> dict[str, Any]:
    """`clean`: validation loss of the undamaged model every EVERY steps, from AGE on; `rows`: of each loss."""
    model = WholeModel(SIZES[SIZE], corpus, seed)
    while model.step < AGE:
        model.train(model.step + 1)
    kept = model.keep()
    clean = [model.validate()]
    while model.step < AGE + STEPS[-1] + AFTER[-1]:
        _train(model, EVERY)
        clean.append(model.validate())
    rows = []
    for lost in LOST:
        for steps in STEPS:
            model.restore(kept)
            model.omitted = lost
            at_once = model.validate()
            _train(model, steps)
            ends = model.validate()
            model.omitted = ()
            for stage in lost:
                rebuild(model, stage, WAYS["squared-norm"], lost=frozenset(lost), draw=stage)
            seen = []
            for after in AFTER:
                _train(model, AGE + steps + after - model.step)
                seen.append(model.validate())
            rows.append({"lost": lost, "steps": steps, "at_once": at_once, "ends": ends, "seen": seen})
    return {"seed": seed, "clean": clean, "rows": rows}


def _train(model: WholeModel, steps: int) -> None:
    for _ in range(steps):
        model.train(model.step + 1)


def table(found: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Means over the seeds."""
    rows: list[tuple[str, ...]] = []
    for number, first in enumerate(found[0]["rows"]):
        steps, each = first["steps"], [(one["clean"], one["rows"][number]) for one in found]
        ended = steps // EVERY
        late = [
            loss - clean[ended + after // EVERY]
            for clean, row in each
            for after, loss in zip(AFTER, row["seen"])
            if after >= LATE
        ]
        rows.append(
            (
                " and ".join(map(str, first["lost"])), str(steps),
                f"{mean(row['at_once'] - clean[0] for clean, row in each):+.3f}",
                f"{mean(row['ends'] - clean[ended] for clean, row in each):+.3f}",
                f"{mean(row['seen'][0] - clean[ended] for clean, row in each):+.3f}",
                f"{mean(late):+.3f}",
            )
        )  # fmt: skip
    return rows


def main(out: Path) -> None:
    torch.set_num_threads(1)
    corpus, path = load_corpus(""), out / "left_out.json"
    found: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    for seed in SEEDS:
        if all(one["seed"] != seed for one in found):
            found.append(measure(corpus, seed))
            write_atomically(path, json.dumps(found) + "\n")
    rows = [COLUMNS, *table(found)]
    with (out / "left_out.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    for row in rows:
        print(" | ".join(row))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
