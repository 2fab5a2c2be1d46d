"""A stage killed in a real swarm under each protection, beside the same run and the same loss in one process.

`python -m ftnode.lab.recovery.swarm_kills OUT [SEED ...]` runs `ftnode demo --kill 1@200` for each `--protect` and
three seeds, three minutes each. It writes OUT/swarm_kills.json and OUT/swarm_kills.csv, and prints the table. It goes
on with what OUT has.

The twin is `WholeModel` with the demo's model, optimiser, seed and data. It gives the undamaged curve, since a swarm
that loses a stage has none, and what the rung that the swarm took is worth there. Losses are in nats per byte.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch

from ftnode.lab.demo.demo import DemoConfig, run
from ftnode.lab.recovery.at_once import become_shadow
from ftnode.lab.recovery.rebuilding import WAYS, rebuild
from ftnode.lab.recovery.whole_model import Kept, Size, WholeModel
from ftnode.lab.results.result_files import kept_or_made, read_kept, write_atomically
from ftnode.models.config import ModelConfig
from ftnode.models.data import Corpus, load_corpus, validation_batch
from ftnode.models.optimiser import OptimiserConfig
from ftnode.node.manifests.presets import preset
from ftnode.node.manifests.protection_choice import PROTECTIONS
from ftnode.protocol.words.errors import UserError

STAGE: Final = 1
STEP: Final = 200
"""In the middle of which its only holder is killed: what is rebuilt is the model of the step before."""
SEEDS: Final = (1, 2, 3)
EVERY: Final = 20
"""Steps between two evaluations."""
AFTER: Final = (0, 40, 100)
"""Steps after STEP at which a loss is compared. At 0 the rebuilt stage has taken part in one step."""
SWAPPED: Final = "checkfree+"
COLUMNS: Final = (
    "protect", "rung", "seeds", "until training goes on, s", "undamaged", "right after", "40 steps later",
    "100 steps later", "at the end", "lab: right after", "lab: 40 steps later", "lab: 100 steps later",
    "lab: at the end", "furthest apart before",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DemoSize(Size):
    """The demo's, whose rate falls."""

    steps: int = 0

    def optimiser(self) -> OptimiserConfig:
        made = preset("tiny").optimiser
        return OptimiserConfig(
            learning_rate=made.learning_rate, steps=self.steps, beta1=made.betas[0], beta2=made.betas[1],
            eps=made.epsilon, weight_decay=made.weight_decay, warmup_steps=made.warmup_steps, decay=made.decay,
            minimum_factor=made.minimum_factor, clip=made.clip,
        )  # fmt: skip


def demo_size() -> DemoSize:
    """Of `ftnode demo` as it is without options."""
    made = preset("tiny")
    return DemoSize(
        "demo", ModelConfig.of(made.model), made.pipeline.stages, made.batch.microbatches, made.batch.sequences,
        made.optimiser.learning_rate, made.optimiser.warmup_steps, made.evaluation.microbatches, steps=made.run.steps,
    )  # fmt: skip


class Twin(WholeModel):
    """The demo's run in one process. A swarm draws its validation windows by the run's seed, and numbers them after the
    microbatches of a step."""

    size: DemoSize

    def validate(self) -> float:
        size = self.size
        numbers = range(size.microbatches, size.microbatches + size.validation_microbatches)
        windows = (
            validation_batch(self.corpus, self.seed, number, size.sequences, size.config.context) for number in numbers
        )
        return sum(map(self.loss_of, windows)) / len(numbers)


def of_demo(protect: str, seed: int) -> dict[str, Any]:
    """One demo. `validation`: losses by step. Raises UserError (70) when it fails, kills in another
    step, or loses another stage."""
    with TemporaryDirectory(prefix="ftnode-swarm-kills-") as folder:
        report = Path(folder) / "demo"
        failed = run(DemoConfig(
            kills=((STAGE, STEP, False),), seed=seed, protect=protect, evaluate_every=EVERY, report=report
        ))  # fmt: skip
        found = json.loads((report / "report.json").read_text()) if not failed else {}
    if not found or [made["step"] for made in found["recoveries"]] != [STEP]:
        raise UserError(f"the demo with --protect {protect} --seed {seed} failed; call again to go on", 70)
    if [made["stage"] for made in found["rebuilds"]] != [STAGE]:
        raise UserError(
            f"the demo with --protect {protect} --seed {seed} lost other stages as well, as on a busy machine; call "
            "again to go on",
            70,
        )
    return {"protect": protect, "seed": seed, "recovery": found["recoveries"][0], "validation": found["validation"],
            "seconds": found["training_seconds"]}  # fmt: skip


def of_twin(
    size: DemoSize, corpus: Corpus, seed: int, swap: bool, shadow_of: Sequence[int], step: int = STEP
) -> dict[str, Any]:
    """`clean`: losses by step without a loss. `rungs`: losses after `step`, by rung: `copy` of the neighbour, or of the
    partner where routes are swapped, and `shadow N`, one of step N, for each of `shadow_of`."""
    model = Twin(size, corpus, seed, swap=swap)
    older: dict[int, Kept] = {}
    clean: dict[int, float] = {}
    base: Kept | None = None
    while model.step < size.steps:
        model.train(model.step + 1)
        if model.step in shadow_of:
            older[model.step] = model.keep()
        if model.step == step - 1:
            base = model.keep()
        if model.step % EVERY == 0:
            clean[model.step] = model.validate()
    assert base is not None
    rungs = {}
    for name, copy in {"copy": None, **{f"shadow {at}": kept for at, kept in older.items()}}.items():
        model.restore(base)
        if copy is None:
            rebuild(model, STAGE, WAYS["partner" if swap else "squared-norm"])
        else:
            become_shadow(model, STAGE, copy)
        seen = {}
        while model.step < size.steps:
            model.train(model.step + 1)
            if model.step % EVERY == 0:
                seen[model.step] = model.validate()
        rungs[name] = seen
    return {"clean": clean, "rungs": rungs}


def rung_of(demo: Mapping[str, Any]) -> str:
    """As `of_twin` names it."""
    made = demo["recovery"]
    return f"shadow {_copied_step(made['reason'])}" if made["rung"] == "shadow" else str(made["rung"])


def compared(demo: Mapping[str, Any], twin: Mapping[str, Any]) -> dict[str, Any]:
    """The swarm's losses after the kill and the twin's, as rises over the twin's undamaged loss at the same step;
    `before`: how far their curves are apart at most until then."""
    swarm = {int(step): float(loss) for step, loss in demo["validation"]}
    clean, lab = _by_step(twin["clean"]), _by_step(twin["rungs"][rung_of(demo)])
    at = [STEP + after for after in AFTER] + [max(clean)]
    return {
        "protect": demo["protect"], "rung": demo["recovery"]["rung"], "seed": demo["seed"],
        "outage_seconds": demo["recovery"]["outage_seconds"], "undamaged": clean[STEP],
        "swarm": [swarm[step] - clean[step] for step in at], "lab": [lab[step] - clean[step] for step in at],
        "before": max(abs(swarm[step] - clean[step]) for step in swarm if step < STEP),
    }  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """Means over the seeds; seconds and how far apart curves are, at most."""
    found = []
    for protect in dict.fromkeys(row["protect"] for row in rows):
        ours = [row for row in rows if row["protect"] == protect]
        found.append((
            protect, ", ".join(sorted({row["rung"] for row in ours})), str(len(ours)),
            f"{max(row['outage_seconds'] for row in ours):.2f}", f"{mean(row['undamaged'] for row in ours):.3f}",
            *(f"{mean(row[side][n] for row in ours):+.3f}" for side in ("swarm", "lab") for n in range(len(AFTER) + 1)),
            f"{max(row['before'] for row in ours):.4f}",
        ))  # fmt: skip
    return found


def main(out: Path, seeds: Sequence[int] = SEEDS) -> None:
    kept, rows = out / "kept", []
    for seed in seeds:
        for protect in PROTECTIONS:
            kept_or_made(kept / f"demo-{protect}-{seed}.json", partial(of_demo, protect, seed))
    torch.set_num_threads(1)
    size, corpus = demo_size(), load_corpus("")
    for seed in seeds:
        demos = [read_kept(kept / f"demo-{protect}-{seed}.json") for protect in PROTECTIONS]
        for swap in (False, True):
            ours = [demo for demo in demos if (demo["protect"] == SWAPPED) is swap]
            steps = [int(rung.split()[1]) for rung in map(rung_of, ours) if rung.startswith("shadow ")]
            name = f"twin-{'swapped' if swap else 'normal'}-{seed}-{'-'.join(map(str, steps))}.json"
            twin = kept_or_made(kept / name, partial(of_twin, size, corpus, seed, swap, steps))
            rows += [{**compared(demo, twin), "raw": demo} for demo in ours]
    write_atomically(out / "swarm_kills.json", json.dumps(rows, indent=1) + "\n")
    lines = [COLUMNS, *table(sorted(rows, key=lambda row: PROTECTIONS.index(row["protect"])))]
    with (out / "swarm_kills.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(lines)
    for line in lines:
        print(" | ".join(line))


def _by_step(losses: Mapping[Any, float]) -> dict[int, float]:
    return {int(step): loss for step, loss in losses.items()}


def _copied_step(reason: str) -> int:
    """Of the copy that a stage was filled from, as the ladder says it."""
    found = re.search(r"a copy of step (\d+) is kept", reason)
    assert found is not None, reason
    return int(found[1])


if __name__ == "__main__":
    main(Path(sys.argv[1]), tuple(map(int, sys.argv[2:])) or SEEDS)
