"""One run of one row: trained until its smoothed validation loss has come down to the target, or for `steps_max`."""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any, Final

from ftnode.lab.codecs.crossing import lowest, steps_to
from ftnode.lab.codecs.plan import Row, Scale
from ftnode.lab.recovery.whole_model import Kept, WholeModel
from ftnode.lab.results.cut_off_work import Slice
from ftnode.models.data import Corpus

SAID_EVERY: Final = 10
"""Validations."""


def train(scale: Scale, row: Row, seed: int, corpus: Corpus, vocabulary: int, slice_: Slice) -> dict[str, Any]:
    """The result as JSON has it. It goes on where the slice's file says, and raises CutOff, with the file written, when
    the time is up. Raises StageFault when training has exploded.

    `processor_seconds` are those of the training steps, without validations.
    """
    size = scale.contestant(row, vocabulary)
    model = WholeModel(size, corpus, seed)
    before = slice_.load(f"{size} {size.optimiser()}, seed {seed}, text {corpus.sha256}, {scale.validate_every}")
    curve: list[list[float]] = [[0, model.validate()]] if before is None else before["curve"]
    seconds = 0.0
    if before is not None:
        model.restore(Kept.from_plain(before["kept"]))
        seconds = before["processor_seconds"]
    while model.step < scale.steps_max and steps_to(curve, scale.target) is None:
        began = time.process_time()
        model.train(model.step + 1)
        seconds += time.process_time() - began
        if model.step % scale.validate_every == 0:
            curve.append([model.step, model.validate()])
            _say(row, seed, curve)
        slice_.check(f"step {model.step}", partial(_state, model, curve, seconds))
    return {
        "row": row.name, **row.described(), "seed": seed, "rate": size.learning_rate, "hidden": size.config.hidden,
        "parameters": size.config.layers * size.config.block_parameters, "steps_trained": model.step,
        "steps": steps_to(curve, scale.target), "target": scale.target, "lowest": lowest(curve),
        "processor_seconds_per_step": round(seconds / model.step, 3), "curve": curve,
    }  # fmt: skip


def _state(model: WholeModel, curve: list[list[float]], seconds: float) -> dict[str, Any]:
    return {"kept": model.keep().as_plain(), "curve": curve, "processor_seconds": seconds}


def _say(row: Row, seed: int, curve: list[list[float]]) -> None:
    if len(curve) % SAID_EVERY == 1:
        print(f"{row.name}, seed {seed}: step {curve[-1][0]}, loss {curve[-1][1]:.3f}", file=sys.stderr, flush=True)
