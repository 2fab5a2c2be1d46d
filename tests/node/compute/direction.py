"""Does a change of weights go against their gradient? `python -m tests.node.compute.direction LIE STEPS`

A stage's only holder may compute rightly, and train its weights wrongly. Whoever keeps shadows of the stage has its
weights every ten steps, and the gradient of the visits that it does again (rule 53). This trains a small model, whose
second block stage has a holder that lies, and prints for each shadow the cosine of how its weights changed until the
next one with the signs of minus that gradient: signs, since Adam's steps are about as large in each place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from statistics import mean
from typing import Any, Final

import torch
from torch import Tensor

from ftnode.lab.hostile.lies import LIES
from ftnode.models.encoding import decode, encode
from tests.node.compute.computing import ATTEMPT, CONFIG, LAST_VISIT, STAGES, Direct, direct

STAGE: Final = 2
MICROBATCHES: Final = 8
DONE_AGAIN: Final = 2
"""Visits of a copy."""
EVERY: Final = 10
"""Steps between two shadows."""


def model(steps: int) -> Direct:
    return direct(replace(
        CONFIG, dim=64, heads=4, layers=6, hidden=172, context=64, microbatches=MICROBATCHES, sequences=4, steps=steps,
        learning_rate=1e-3, slot_bytes=4 * 64 * 64 * 4 + 4 * 64 * 8, slots=14, live_activations=8, data="",
        digest_every=0,
    ))  # fmt: skip


def visits(compute: Direct, common: dict[str, Any], microbatch: int) -> float:
    """Through all stages and back; the loss."""
    for visit in range(STAGES + 1):
        compute.call(
            "forward", **common, stage=visit, microbatch=microbatch, visit=visit, input=visit - 1 if visit else None,
            output=visit, save=True, validation=False,
        )  # fmt: skip
    loss = compute.call(
        "backward", **common, stage=0, microbatch=microbatch, visit=LAST_VISIT, gradient=None, input=STAGES,
        output=LAST_VISIT, recompute=False,
    )["value"]  # fmt: skip
    for visit in range(STAGES, -1, -1):
        compute.call(
            "backward", **common, stage=visit, microbatch=microbatch, visit=visit,
            gradient=LAST_VISIT if visit == STAGES else 6 + visit, input=None, output=5 + visit if visit else None,
            recompute=visit == 0,
        )  # fmt: skip
    return float(loss)


def as_shadow(weights: Tensor) -> Tensor:
    return decode(encode(weights, "int8"), "int8", weights.numel())


def cosines(lie: Callable[[Tensor, Tensor], None] | None, steps: int) -> tuple[list[float], float]:
    """Of each shadow but the last, and the loss in the end."""
    compute, found, loss = model(steps), list[float](), 0.0
    stage = compute.backend._stages[STAGE]  # type: ignore[attr-defined]
    before, shadow, gradient = torch.zeros_like(stage.weights), stage.weights, stage.weights
    for step in range(1, steps + 1):
        common = {"step": step, "attempt": ATTEMPT}
        if step % EVERY == 1:
            newer = as_shadow(stage.weights)
            if step > 1:
                found.append(float(torch.cosine_similarity(-gradient.sign(), newer - shadow, dim=0)))
            shadow = newer
        losses = list[float]()
        for microbatch in range(MICROBATCHES):
            losses.append(visits(compute, common, microbatch))
            if step % EVERY == 1 and microbatch + 1 == DONE_AGAIN:
                gradient = stage.gradient.clone()
        true, loss = stage.gradient.clone(), mean(losses)
        if lie is not None:
            lie(stage.gradient, before)
        before = true
        for each in range(STAGES + 1):
            compute.call("reduce", **common, stage=each)
        for each in range(STAGES + 1):
            compute.call("apply", **common, stage=each, commit=f"c{step}", skipped=False)
        compute.call("discard", keep=None)
    return found, loss


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.manual_seed(1)  # what noise is drawn from
    values, at_last = cosines(LIES.get(sys.argv[1]), int(sys.argv[2]))
    print(f"{sys.argv[1]}: mean {mean(values):.3f}, {min(values):.3f} to {max(values):.3f}, of {len(values)} shadows; "
          f"loss {at_last:.3f}")  # fmt: skip
