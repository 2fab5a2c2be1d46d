"""`ftnode lab throughput`: what a swarm on one machine costs against one torch process, and its bubbles.

Three measurements on two pinned cores: a four-stage swarm against the better of one and two threads of a single
process, at the demo's size and at a compute-bound one; and a swarm whose compute only sleeps, because two busy cores
hide how well a pipeline overlaps. Its step is held against 1F1B's (N_pp + N_m - 1)(T_f + T_b) (Odyssey's section 3).

The better single process runs again after the swarm, so that a machine that changes its speed meanwhile shows.

A fourth one, which `--thin` asks for alone, is of one node that holds many thin stages (thin_stages.py).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from statistics import mean, median
from typing import Any

from ftnode.lab.benchmarks.thin_stages import thin_against_thick, thin_table
from ftnode.lab.benchmarks.throughput_cores import read_core_time, shares
from ftnode.lab.demo.report import tokens_per_second
from ftnode.lab.parts.single_process import in_a_process
from ftnode.lab.swarms.trial import open_trial, trial_manifest
from ftnode.lab.traces.story import first_commits
from ftnode.node.manifests.presets import preset
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError

STAGES = 4
CORES = 2
WARM_UP_COMMITS = 3
SWARM_STEPS = {"tiny": 60, "compute-bound": 9}
SINGLE_STEPS = {"tiny": 10, "compute-bound": 2}
PACED_STEPS = 15
FORWARD_SECONDS, BACKWARD_SECONDS = 0.02, 0.04
RUN_SECONDS = 600.0
BUDGETS = {"compute-bound": 0.85, "paced": 1.15}


def run(
    json_output: bool = False, presets: tuple[str, ...] = ("tiny", "compute-bound"), thin_only: bool = False
) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures. Takes about ten minutes, or four."""
    with pinned(CORES) as cores:
        figures: dict[str, Any] = {"cores": cores}
        if not thin_only:
            figures["sizes"] = {name: compare(name, cores) for name in presets}
            figures["paced"] = pace()
        figures["thin"] = thin_against_thick(cores)
    if json_output:
        print(json.dumps(figures, indent=2))
    else:
        print(thin_table(figures["thin"]) if thin_only else f"{table(figures)}\n{thin_table(figures['thin'])}")
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


def compare(name: str, cores: Sequence[int]) -> dict[str, Any]:
    """One preset: tokens per second of the swarm and of the better single process, and the cores' time per step."""
    best = max((_single(name, threads) for threads in (1, 2)), key=lambda found: float(found["tokens_per_second"]))
    swarm, spent = _swarm_rate(_manifest(name), cores)
    again = _single(name, best["threads"])
    single = mean(float(found["tokens_per_second"]) for found in (best, again))
    return {
        "swarm_tokens_per_second": swarm,
        "single_tokens_per_second": single,
        "single_before_and_after": [best["tokens_per_second"], again["tokens_per_second"]],
        "single_threads": best["threads"],
        "single_core_seconds_per_step": mean(float(found["core_seconds_per_step"]) for found in (best, again)),
        "swarm_core_seconds_per_step": spent,
        "ratio": swarm / single,
    }


def _manifest(name: str) -> Manifest:
    """The preset as a run would use it, its lease included: shorter ones cost processor time, and nobody dies here."""
    start = preset(name)
    return replace(trial_manifest(start, steps=SWARM_STEPS.get(name, 20), stages=STAGES), liveness=start.liveness)


def _single(name: str, threads: int) -> dict[str, Any]:
    return in_a_process({"preset": name, "threads": threads, "steps": SINGLE_STEPS.get(name, 4)}, RUN_SECONDS)


def _swarm_rate(manifest: Manifest, cores: Sequence[int]) -> tuple[float, dict[str, float]]:
    """Tokens per second after the warm-up, and the core-seconds per step of what runs."""
    with open_trial(manifest) as trial:
        nodes = [trial.volunteer(f"volunteer-{number + 1}").process.pid for number in range(STAGES + 1)]
        nodes.append(trial.swarm.processes["bootstrap"].process.pid)
        trial.wait_for_step(WARM_UP_COMMITS)
        before, first = read_core_time(nodes, cores), trial.story.committed
        trial.wait_for_step(manifest.run.steps - 1, RUN_SECONDS)
        after, last = read_core_time(nodes, cores), trial.story.committed
        trial.wait_for_step(manifest.run.steps, RUN_SECONDS)
        spent = shares(before, after, len(cores), last - first)
        return tokens_per_second(first_commits(trial.story.commits)[WARM_UP_COMMITS - 1 :]), spent


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
        spent = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in found["swarm_core_seconds_per_step"].items())
        lines.append(f"  core-seconds a step: one process {found['single_core_seconds_per_step']:.2f}; swarm: {spent}")
    paced = figures["paced"]
    lines.append(
        f"paced: a step takes {paced['step_seconds']:.3f} s, 1F1B's formula {paced['ideal_seconds']:.3f} s: "
        f"{paced['ratio']:.2f} (at most {BUDGETS['paced']})"
    )
    return "\n".join(lines)
