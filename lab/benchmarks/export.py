"""`ftnode lab export`: memory and speed of `ftnode export` while a run goes on, against the tensor path's own speed.

A swarm of paced volunteers (they sleep instead of computing, and their weights are zeros of the true size) holds a
model of the wanted size; the reader is the command as a person calls it. What it needs for itself shows with a small
model.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final

from ftnode.lab.parts.transport import tensor_path
from ftnode.lab.swarms.memory import pss_bytes
from ftnode.lab.swarms.swarm import descendants
from ftnode.lab.swarms.trial import FOREVER, Trial, open_trial, trial_manifest
from ftnode.node.export.checkpoint import stage_sizes
from ftnode.node.machine.child_processes import die_with
from ftnode.node.manifests.presets import preset
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError

STAGES: Final = 4
SMALL_MEGABYTES: Final = 1
PACED: Final = ("--compute", "paced", "--paced-seconds", "0.1", "0.2", "--timeout", "300")
BOUNDARY_BYTES: Final = 1 << 21
"""Weights travel in chunks of a boundary tensor's size, up to 4 MiB; those of the preset `small` have 8."""
ROUNDS: Final = 5
LOOK_SECONDS: Final = 0.2


def run(json_output: bool = False, megabytes: int = 800, runs: int = 3) -> dict[str, Any]:
    """Measure, print a table or JSON, and return the figures. Takes two minutes."""
    small = measure(SMALL_MEGABYTES, 1)
    large = measure(megabytes, runs)
    path = tensor_path(ROUNDS)
    speed = median(export["megabytes"] / export["receiving_seconds"] for export in large["exports"])
    peak = max(export["peak_megabytes"] for export in large["exports"])
    figures = {
        "model_megabytes": large["exports"][0]["megabytes"],
        "stage_megabytes": large["stage_megabytes"],
        "exports": large["exports"],
        "peak_megabytes": peak,
        "peak_megabytes_of_a_small_model": small["exports"][0]["peak_megabytes"],
        "megabytes_for_the_model": peak - small["exports"][0]["peak_megabytes"],
        "megabytes_per_second": speed,
        "tensor_path_megabytes_per_second": path,
        "ratio": speed / path,
        "step_seconds": large["step_seconds"],
    }
    print(json.dumps(figures, indent=2) if json_output else table(figures))
    return figures


def measure(megabytes: int, runs: int) -> dict[str, Any]:
    """Exports of a model of about that size, one after the other, while its run goes on."""
    manifest = sized_manifest(megabytes)
    with open_trial(manifest) as trial, tempfile.TemporaryDirectory(prefix="ftnode-lab-") as out:
        for number in range(STAGES + 1):
            trial.volunteer(f"volunteer-{number + 1}", options=PACED)
        trial.wait_for_step(10)
        quiet = seconds_per_step(trial, 10)
        exports = [export(trial, Path(out) / str(number)) for number in range(runs)]
        return {
            "exports": exports,
            "stage_megabytes": max(stage_sizes(manifest)) / 1e6,
            "step_seconds": {
                "before": quiet,
                "while_exporting": median(found.pop("step_seconds") for found in exports),
            },
        }


def sized_manifest(megabytes: int) -> Manifest:
    """Of narrow batches: the weights are most of what travels."""
    start = preset("tiny")
    blocks = 4 * STAGES
    dim = max(8, round((megabytes * 1e6 / 4 / blocks / 12) ** 0.5 / 8) * 8)  # a block has about 12 dim² numbers
    start = replace(
        start,
        model=replace(start.model, dim=dim, heads=1, layers=blocks, context=64, hidden=round(8 * dim / 3)),
        batch=replace(start.batch, microbatches=2, sequences=max(1, BOUNDARY_BYTES // (64 * dim * 4))),
        evaluation=replace(start.evaluation, every=0, microbatches=1),
        recovery=replace(start.recovery, head_every=1_000_000),
    )
    return trial_manifest(start, steps=FOREVER, stages=STAGES)


def export(trial: Trial, out: Path) -> dict[str, Any]:
    """One `ftnode export`: its figures, its peak memory, and what a step took meanwhile."""
    argv = ["export", str(trial.swarm.manifest), str(out), "--peer", trial.swarm.address, "--json"]
    trial.story.read()
    first, began = trial.story.committed, time.monotonic()
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        process = subprocess.Popen(
            [sys.executable, "-m", "ftnode.node.cli", *argv, "--home", str(out.parent / "home")],
            stdout=said, stderr=complained, preexec_fn=partial(die_with, os.getpid()),
        )  # fmt: skip
        peak = watched_memory(process)
        seconds = time.monotonic() - began
        said.seek(0)
        complained.seek(0)
        if process.returncode:
            raise UserError(f"the export failed: {complained.read().decode(errors='replace').strip()}", 70)
        told = json.loads(said.read())
    trial.story.read()
    steps = trial.story.committed - first
    return {
        "megabytes": told["bytes"] / 1e6,
        "receiving_seconds": told["receiving_seconds"],
        "seconds": told["seconds"],
        "peak_megabytes": peak / 1e6,
        "step_seconds": seconds / max(1, steps),
    }


def watched_memory(process: subprocess.Popen[bytes]) -> int:
    """The most bytes (PSS) that a process and its children had together, seen by looking often, until it ends."""
    peak = 0
    while process.poll() is None:
        together = 0
        for pid in (process.pid, *descendants(process.pid)):
            with suppress(UserError):  # it has just ended
                together += pss_bytes(pid)
        peak = max(peak, together)
        time.sleep(LOOK_SECONDS)
    return peak


def seconds_per_step(trial: Trial, steps: int) -> float:
    trial.story.read()
    first, began = trial.story.committed, time.monotonic()
    trial.wait_for_step(first + steps)
    return (time.monotonic() - began) / (trial.story.committed - first)


def table(figures: dict[str, Any]) -> str:
    steps = figures["step_seconds"]
    speed, path = figures["megabytes_per_second"], figures["tensor_path_megabytes_per_second"]
    return "\n".join([
        f"model {figures['model_megabytes']:.0f} MB, its largest stage {figures['stage_megabytes']:.0f} MB",
        f"peak memory of the reader and its p2pd: {figures['peak_megabytes']:.0f} MB; with a model of "
        f"{SMALL_MEGABYTES} MB: {figures['peak_megabytes_of_a_small_model']:.0f} MB",
        f"speed {speed:.0f} MB/s; tensor path {path:.0f} MB/s, ratio {figures['ratio']:.2f}",
        f"step {steps['before']:.3f} s before, {steps['while_exporting']:.3f} s while exporting",
    ])  # fmt: skip
