"""Manifests to start from: `tiny` trains on a laptop in minutes, the next three have the paper's dimensions.

Dimensions, rates and stages of small, medium and large are those of CheckFree's models of these names ("All is Not
Lost: LLM Recovery without Checkpoints"); batches are ours, since a volunteer's memory is smaller.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from ftnode.protocol.manifest.parse import (
    Batch,
    Data,
    Evaluation,
    Liveness,
    Manifest,
    Model,
    Optimiser,
    Pipeline,
    Recovery,
    Run,
)
from ftnode.protocol.words.errors import UserError

NO_CORPUS: Final = "0" * 64
"""Stands for the corpus hash in a preset, until `adapt` puts a real one there."""

_TINY: Final = Manifest(
    run=Run(name="tiny", seed=1, steps=400),
    model=Model(vocabulary=256, dim=96, heads=4, layers=4, context=64, hidden=256, rope_theta=10000.0, norm_eps=1e-5),
    data=Data(kind="standard-library", sha256=NO_CORPUS),
    optimiser=Optimiser(
        learning_rate=4e-3, betas=(0.9, 0.99), epsilon=1e-8, weight_decay=0.0, warmup_steps=20, decay="cosine",
        minimum_factor=0.1, clip=1.0,
    ),
    batch=Batch(microbatches=8, sequences=8),
    pipeline=Pipeline(stages=4, replicas=16, window=8, live_activations=8, boundary="float32", swap=False),
    recovery=Recovery(
        ends="copy", swapped="copy", weighting="squared-norm", norms="before-clipping", optimiser="fresh",
        head_every=0, shadow_every=0, shadow_encoding="bfloat16", rate_factor=1.1, minority_wait_seconds=60.0,
        omit=True,
    ),
    liveness=Liveness(lease_seconds=10.0),
    evaluation=Evaluation(every=50, microbatches=8),
)  # fmt: skip


def _paper(
    name: str, dim: int, heads: int, layers: int, stages: int, context: int, hidden: int, rate: float
) -> Manifest:
    """`hidden` is 8/3 of dim, rounded up to a multiple of 16: three matrices of SwiGLU for the two of a plain layer."""
    model = Model(256, dim, heads, layers, context, hidden, rope_theta=10000.0, norm_eps=1e-5)
    return Manifest(
        run=Run(name=name, seed=1, steps=10_000),
        model=model,
        data=_TINY.data,
        optimiser=replace(_TINY.optimiser, learning_rate=rate, betas=(0.9, 0.999), warmup_steps=500),
        batch=Batch(microbatches=16, sequences=max(1, 4096 // context)),
        pipeline=Pipeline(stages=stages, replicas=16, window=16, live_activations=8, boundary="float32", swap=False),
        recovery=_TINY.recovery,
        liveness=_TINY.liveness,
        evaluation=Evaluation(every=250, microbatches=16),
    )


PRESETS: Final[dict[str, Manifest]] = {
    "tiny": _TINY,
    "small": _paper("small", 512, 8, 12, 4, 512, 1376, 6e-4),
    "medium": _paper("medium", 1024, 16, 24, 6, 1024, 2736, 3e-4),
    "large": _paper("large", 2048, 16, 24, 6, 4096, 5472, 3e-4),
    # For `ftnode lab throughput`: the model of `small`, whose stages of three layers make messaging count little, with
    # sequences and a batch that end in minutes on two cores. Arithmetic per boundary byte does not depend on either.
    "compute-bound": replace(
        _TINY,
        run=Run(name="compute-bound", seed=1, steps=20),
        model=replace(_TINY.model, dim=512, heads=8, layers=12, context=128, hidden=1376),
        batch=Batch(microbatches=8, sequences=8),
        evaluation=Evaluation(every=0, microbatches=1),
    ),
}


def preset(name: str) -> Manifest:
    """Raises UserError (64) for a name that is none."""
    if name not in PRESETS:
        raise UserError(f"no preset is called {name}; there are {', '.join(PRESETS)}")
    return PRESETS[name]


def adapt(
    start: Manifest,
    *,
    sha256: str,
    kind: str = "standard-library",
    vocabulary: int | None = None,
    name: str | None = None,
    steps: int | None = None,
    stages: int | None = None,
    seed: int | None = None,
    lease_seconds: float | None = None,
    minority_wait_seconds: float | None = None,
    swap: bool | None = None,
    replicas: int | None = None,
) -> Manifest:
    """`start` with a corpus and with what a person asked for; None keeps what is there.

    Layers that `stages` does not divide become the nearest multiple, so that any number of stages can be asked for.
    The warm-up stays within a tenth of a shorter run. Values are not checked here: `parse(render(...))` does that.
    """
    run = replace(start.run, name=name or start.run.name, seed=start.run.seed if seed is None else seed)
    model, optimiser, pipeline = start.model, start.optimiser, start.pipeline
    if steps is not None:
        run = replace(run, steps=steps)
        optimiser = replace(optimiser, warmup_steps=min(optimiser.warmup_steps, max(1, steps // 10)))
    if stages is not None and stages > 0:
        pipeline = replace(pipeline, stages=stages)
        model = replace(model, layers=stages * max(1, round(model.layers / stages)))
    if vocabulary is not None:
        model = replace(model, vocabulary=vocabulary)
    if swap is not None:
        pipeline = replace(pipeline, swap=swap)
    if replicas is not None:
        pipeline = replace(pipeline, replicas=replicas)
    return replace(
        start,
        run=run,
        model=model,
        optimiser=optimiser,
        pipeline=pipeline,
        data=replace(start.data, kind=kind, sha256=sha256),
        recovery=replace(
            start.recovery,
            minority_wait_seconds=minority_wait_seconds or start.recovery.minority_wait_seconds,
        ),
        liveness=replace(start.liveness, lease_seconds=lease_seconds or start.liveness.lease_seconds),
    )
