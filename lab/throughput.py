"""`ftnode lab throughput`: what a swarm on one machine costs against one torch process, and its bubbles.

Three measurements on two pinned cores: a four-stage swarm against the better of one and two threads of a single
process, at the demo's size and at a compute-bound one; and a swarm whose compute only sleeps, because two busy cores
hide how well a pipeline overlaps. Its step is held against 1F1B's (N_pp + N_m - 1)(T_f + T_b) (Odyssey's section 3).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from statistics import median
from typing import Any

from ftnode.lab.report import tokens_per_second
from ftnode.lab.story import first_commits
from ftnode.lab.trial import open_trial, trial_manifest
from ftnode.node.presets import preset
from ftnode.protocol.errors import UserError
from ftnode.protocol.manifest import Manifest

STAGES = 4
CORES = 2
WARM_UP_COMMITS = 3
SWARM_STEPS = {"tiny": 60, "compute-bound": 20}
SINGLE_STEPS = {"tiny": 10, "compute-bound": 4}
PACED_STEPS = 15
FORWARD_SECONDS, BACKWARD_SECONDS = 0.02, 0.04
RUN_SECONDS = 600.0
BUDGETS = {"compute-bound": 0.85, "paced": 1.15}


def run(json_output: bool = False, presets: tuple[str, ...] = ("tiny", "compute-bound")) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures. Takes about four minutes."""
    with pinned(CORES) as cores:
        figures: dict[str, Any] = {"cores": cores, "sizes": {name: compare(name) for name in presets}}
        figures["paced"] = pace()
    if json_output:
        print(json.dumps(figures, indent=2))
    else:
        print(table(figures))
    return figures


@contextmanager
def pinned(count: int) -> Iterator[list[int]]:
    """This process and all that it starts run on the first `count` of its cores."""
    if not hasattr(os, "sched_setaffinity"):
        raise UserError("this benchmark pins cores, which needs Linux", 69)
    before = os.sched_getaffinity(0)
    chosen = sorted(before)[:count]
    os.sched_setaffinity(0, chosen)
    try:
        yield chosen
    finally:
        os.sched_setaffinity(0, before)


def compare(name: str) -> dict[str, Any]:
    """One preset: tokens per second of the swarm and of the better single process."""
    single = [_single(name, threads) for threads in (1, 2)]
    swarm = _swarm_rate(trial_manifest(preset(name), steps=SWARM_STEPS.get(name, 20), stages=STAGES))
    best = max(single, key=lambda found: float(found["tokens_per_second"]))
    return {
        "swarm_tokens_per_second": swarm,
        "single_tokens_per_second": best["tokens_per_second"],
        "single_threads": best["threads"],
        "ratio": swarm / best["tokens_per_second"],
    }


def _single(name: str, threads: int) -> dict[str, Any]:
    asked = json.dumps({"preset": name, "threads": threads, "steps": SINGLE_STEPS.get(name, 4)})
    argv = [sys.executable, "-m", "ftnode.lab.single_process", asked]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_SECONDS, check=False)
    if done.returncode != 0:
        raise UserError(f"the single process failed: {done.stderr.strip().splitlines()[-1:]}", 70)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _swarm_rate(manifest: Manifest) -> float:
    with open_trial(manifest) as trial:
        for number in range(STAGES + 1):
            trial.volunteer(f"volunteer-{number + 1}")
        trial.wait_for_step(1)
        trial.wait_for_step(manifest.run.steps, RUN_SECONDS)
        return tokens_per_second(first_commits(trial.story.commits)[WARM_UP_COMMITS:])


def pace() -> dict[str, Any]:
    """Median step time of a swarm that sleeps T_f and T_b per stage and microbatch."""
    manifest = trial_manifest(preset("tiny"), steps=PACED_STEPS, stages=STAGES)
    options = ("--compute", "paced", "--paced-seconds", str(FORWARD_SECONDS), str(BACKWARD_SECONDS))
    with open_trial(manifest) as trial:
        for number in range(STAGES + 1):
            trial.volunteer(f"volunteer-{number + 1}", options=options)
        trial.wait_for_step(1)
        trial.wait_for_step(PACED_STEPS, RUN_SECONDS)
        times = [told.time for told in first_commits(trial.story.commits)][WARM_UP_COMMITS:]
    microbatches = manifest.batch.microbatches
    ideal = (STAGES + microbatches - 1) * (FORWARD_SECONDS + BACKWARD_SECONDS)
    step = median(later - earlier for earlier, later in pairwise(times))
    return {"step_seconds": step, "ideal_seconds": ideal, "ratio": step / ideal, "microbatches": microbatches,
            "forward_seconds": FORWARD_SECONDS, "backward_seconds": BACKWARD_SECONDS}  # fmt: skip


def table(figures: dict[str, Any]) -> str:
    lines = [
        f"{STAGES} stages on cores {figures['cores']}",
        f"{'size':<16}{'swarm':>12}{'one process':>14}{'ratio':>8}",
    ]
    for name, found in figures["sizes"].items():
        budget = f"  (at least {BUDGETS[name]})" if name in BUDGETS else ""
        lines.append(
            f"{name:<16}{found['swarm_tokens_per_second']:>8,.0f} t/s{found['single_tokens_per_second']:>10,.0f} t/s"
            f"{found['ratio']:>8.2f}{budget}"
        )
    paced = figures["paced"]
    lines.append(
        f"paced: a step takes {paced['step_seconds']:.3f} s, 1F1B's formula {paced['ideal_seconds']:.3f} s: "
        f"{paced['ratio']:.2f} (at most {BUDGETS['paced']})"
    )
    return "\n".join(lines)
