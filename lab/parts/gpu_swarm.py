"""Four nodes on one device, which train a model together, against one plain torch process that trains it there alone.

The nodes are real ones on loopback, with a meeting point; each holds one stage, one of them the head. They share the
device, so that what the swarm lacks is what nodes, streams and waiting cost.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from ftnode.lab.demo.report import tokens_per_second
from ftnode.lab.parts.single_process import in_a_process
from ftnode.lab.swarms.trial import open_trial, trial_manifest
from ftnode.lab.traces.story import first_commits
from ftnode.node.manifests.presets import preset
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.errors import UserError

STAGES: Final = 3
"""And the head."""
RATIO_MIN: Final = 0.8
SECONDS: Final = 150.0
"""For all of it."""
SINGLE_SECONDS: Final = 60.0
WARM_UP_COMMITS: Final = 2
PRESET: Final = "tiny"


@dataclass(frozen=True, slots=True)
class SwarmSize:
    """A model and a step. `steps`: that are timed. `boundary`: how tensors travel. `vram`: what each node may take."""

    dim: int
    heads: int
    layers: int
    hidden: int
    context: int
    microbatches: int
    sequences: int
    steps: int
    boundary: str = "float32"
    vram: str = "none"

    @property
    def model(self) -> dict[str, Any]:
        """Keys of a manifest's model."""
        return {name: getattr(self, name) for name in ("dim", "heads", "layers", "hidden", "context")}

    @property
    def batch(self) -> dict[str, Any]:
        """Keys of a manifest's batch."""
        return {"microbatches": self.microbatches, "sequences": self.sequences}

    def manifest(self) -> Manifest:
        """Nobody validates, and nobody dies: the lease is that of a run."""
        start = preset(PRESET)
        begun = replace(
            start, model=replace(start.model, **self.model), batch=replace(start.batch, **self.batch),
            evaluation=replace(start.evaluation, every=0), pipeline=replace(start.pipeline, boundary=self.boundary),
        )  # fmt: skip
        made = trial_manifest(begun, steps=WARM_UP_COMMITS + self.steps, stages=STAGES)
        return replace(made, liveness=start.liveness)


CARD: Final = SwarmSize(4096, 32, 6, 11_008, 2048, 24, 2, 4, "int8", "0.24")
"""A card computes a token in microseconds, so that its boundary tensors, in float32, would be gigabytes a second. A
step of a large model has a hundred thousand tokens and more."""
QUICK: Final = SwarmSize(64, 4, 3, 176, 64, 8, 4, 10)
"""For a processor, where it takes seconds."""


def measured(size: SwarmSize, device: str, products: str, threads: int, seconds: float = SECONDS) -> dict[str, Any]:
    """The row; where there is none in time, why. `threads`: of the single process, and of all nodes together. On a
    processor each has one: of tiny products, more of them are slower."""
    threads = threads if device.startswith("cuda") else 1
    until = time.monotonic() + seconds
    try:
        single = _single(size, device, products, threads)
        swarm = _swarm(size, device, max(1, threads // (STAGES + 1)), until)
    except UserError as error:
        return {**asdict(size), "why_not": str(error)[:300]}
    return {
        **asdict(size), "nodes": STAGES + 1, "swarm_tokens_per_second": swarm, "single_tokens_per_second": single,
        "swarm_ratio": swarm / single,
    }  # fmt: skip


def good(row: dict[str, Any]) -> bool:
    """On a card."""
    return "why_not" not in row and row["swarm_ratio"] >= RATIO_MIN


def said_of(row: dict[str, Any]) -> str:
    if "why_not" in row:
        return f"a swarm on one device was not measured: {row['why_not']}"
    return (
        f"{row['nodes']} nodes on it (dim {row['dim']}, {row['layers']} layers): "
        f"{row['swarm_tokens_per_second']:,.0f} tokens/s, {row['swarm_ratio']:.2f} of one process's "
        f"{row['single_tokens_per_second']:,.0f}"
    )


def _single(size: SwarmSize, device: str, products: str, threads: int) -> float:
    """Raises UserError (70)."""
    asked = {
        "preset": PRESET, "model": size.model, "batch": size.batch, "device": device, "products": products,
        "threads": threads, "steps": size.steps,
    }  # fmt: skip
    return float(in_a_process(asked, SINGLE_SECONDS)["tokens_per_second"])


def _swarm(size: SwarmSize, device: str, threads: int, until: float) -> float:
    """Tokens per second after the first commits. Raises UserError, also when it is late."""
    manifest = size.manifest()
    with open_trial(manifest) as trial:
        trial.swarm.device, trial.swarm.threads = device, threads
        for number in range(STAGES + 1):
            trial.volunteer(f"volunteer-{number + 1}", options=("--vram", size.vram))
        trial.wait_for_step(manifest.run.steps, max(1.0, until - time.monotonic()))
        return tokens_per_second(first_commits(trial.story.commits)[WARM_UP_COMMITS - 1 :])
