"""What a stage per block costs one peer that holds them all, against a few thick ones: `ftnode lab throughput --thin`.

The same model, on one node that holds all of it and on the same cores, in turns, so that a machine that changes its
speed shows. Then with compute that only sleeps, a block as long in both, which shows what the node itself costs.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import mean, median
from typing import Any, Final

from ftnode.lab.benchmarks.throughput_cores import read_core_time, shares
from ftnode.lab.swarms.trial import open_trial, trial_manifest
from ftnode.lab.traces.story import first_commits
from ftnode.node.manifests.presets import preset
from ftnode.protocol.manifest.parse import Manifest

BLOCKS: Final = 8
THICK, THIN = 2, 8
TURNS: Final = 2
STEPS: Final = 16
WARM_UP_COMMITS: Final = 3
RUN_SECONDS: Final = 600.0
THIN_MIN: Final = 0.95
FORWARD_SECONDS, BACKWARD_SECONDS = 0.005, 0.01
"""Of a block and microbatch, where compute sleeps."""


def thin_against_thick(cores: list[int]) -> dict[str, Any]:
    """Tokens per second, and core-seconds per step, with THICK and with THIN block stages; and their ratio."""
    paced = {stages: one_turn(stages, cores, paced_options(stages))["tokens_per_second"] for stages in (THICK, THIN)}
    turns = [(stages, one_turn(stages, cores)) for _ in range(TURNS) for stages in (THICK, THIN)]
    rows = {}
    for name, stages in (("thick", THICK), ("thin", THIN)):
        mine = [found for of, found in turns if of == stages]
        kinds = mine[0]["core_seconds_per_step"]
        rows[name] = {
            "stages": stages,
            "tokens_per_second": mean(found["tokens_per_second"] for found in mine),
            "turns": [found["tokens_per_second"] for found in mine],
            "paced_tokens_per_second": paced[stages],
            "core_seconds_per_step": {
                kind: mean(found["core_seconds_per_step"][kind] for found in mine) for kind in kinds
            },
        }
    ratios = {
        ratio: rows["thin"][rate] / rows["thick"][rate]
        for ratio, rate in (("ratio", "tokens_per_second"), ("paced_ratio", "paced_tokens_per_second"))
    }
    return {**rows, **ratios}


def paced_options(stages: int) -> tuple[str, ...]:
    """A stage sleeps as long as its blocks would take."""
    blocks = BLOCKS // stages
    return ("--compute", "paced", "--paced-seconds", str(blocks * FORWARD_SECONDS), str(blocks * BACKWARD_SECONDS))


def thin_manifest(stages: int) -> Manifest:
    """BLOCKS blocks in so many stages. A step takes some seconds on two cores, and nobody validates."""
    start = preset("tiny")
    start = replace(
        start,
        model=replace(start.model, dim=256, heads=4, layers=BLOCKS, context=128, hidden=688),
        batch=replace(start.batch, microbatches=8, sequences=4),
        evaluation=replace(start.evaluation, every=0, microbatches=1),
    )
    return replace(trial_manifest(start, steps=STEPS, stages=stages), liveness=start.liveness)


def one_turn(stages: int, cores: list[int], options: tuple[str, ...] = ()) -> dict[str, Any]:
    manifest = thin_manifest(stages)
    with open_trial(manifest) as trial:
        node = trial.volunteer("volunteer", hold=stages + 1, options=options).process.pid
        trial.wait_for_step(WARM_UP_COMMITS)
        before, first = read_core_time([node], cores), trial.story.committed
        trial.wait_for_step(STEPS - 1, RUN_SECONDS)
        after, last = read_core_time([node], cores), trial.story.committed
        times = [told.time for told in first_commits(trial.story.commits)][WARM_UP_COMMITS - 1 :]
    batch = manifest.batch
    tokens = batch.microbatches * batch.sequences * manifest.model.context
    step = median(later - earlier for earlier, later in pairwise(times))
    spent = shares(before, after, len(cores), last - first)
    return {"tokens_per_second": tokens / step, "core_seconds_per_step": spent}


def thin_table(found: dict[str, Any]) -> str:
    lines = [f"one node with {BLOCKS} blocks, {TURNS} turns each"]
    for name in ("thick", "thin"):
        row = found[name]
        spent = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in row["core_seconds_per_step"].items())
        rates = " and ".join(f"{rate:,.0f}" for rate in row["turns"])
        lines.append(
            f"{row['stages']} stages: {row['tokens_per_second']:>8,.0f} t/s ({rates}); core-seconds a step: {spent}"
        )
    told = f"thin stages, of thick ones: {found['ratio']:.3f} (at least {THIN_MIN})"
    lines.append(f"{told}; with compute that sleeps {found['paced_ratio']:.3f}")
    return "\n".join(lines)
