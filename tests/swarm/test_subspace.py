"""A swarm whose model has a subspace, over boundaries of 8 bits: a lost stage is blended, and the exported model has
the loss that the swarm itself found at its end."""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from ftnode.lab.swarms.trial import Trial
from ftnode.models.data import load_corpus, validation_batch
from ftnode.protocol.manifest.parse import Manifest, parse
from tests.swarm.conftest import STAGES, OpenTrial
from tests.swarm.test_export import export
from tests.swarm.test_losses import kill_in_mid_step

pytestmark = pytest.mark.timeout(280)

STEPS = 150
NEAR = 1e-3
"""Nats per token."""
VALIDATED_SECONDS = 30.0


def narrow(manifest: Manifest) -> Manifest:
    return replace(
        manifest,
        model=replace(manifest.model, subspace=16),
        pipeline=replace(manifest.pipeline, boundary="int8"),
        evaluation=replace(manifest.evaluation, every=50),
    )


def validated_export(trial: Trial, out: Path) -> dict[str, Any]:
    """The last step is committed before it is validated, and whoever is asked first hears of that later still."""
    deadline = time.monotonic() + VALIDATED_SECONDS
    while True:
        done = export(trial, out)
        assert done["step"] == STEPS
        if done["validation_step"] == STEPS:
            return done
        assert time.monotonic() < deadline, f"the newest validation is of step {done['validation_step']}"
        shutil.rmtree(out)


def test_a_stage_is_blended_and_the_export_has_the_swarms_loss(
    open_swarm: OpenTrial, text: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    trial = open_swarm(volunteers=STAGES + 2, steps=STEPS, change=narrow, numbers=True)
    kill_in_mid_step(trial, 2)
    trial.wait_for_step(STEPS)
    done, manifest = validated_export(trial, tmp_path / "out"), parse(trial.swarm.manifest.read_text())
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == "LlamaForCausalLM"
    corpus, first, losses = load_corpus(str(text)), manifest.batch.microbatches, []
    for number in range(first, first + manifest.evaluation.microbatches):
        windows = validation_batch(
            corpus, manifest.run.seed, number, manifest.batch.sequences, manifest.model.context
        )  # fmt: skip
        tokens_bt = torch.from_numpy(windows).long()
        with torch.no_grad():
            logits_btv = model(tokens_bt[:, :-1]).logits
        losses.append(float(torch.nn.functional.cross_entropy(logits_btv.flatten(0, 1), tokens_bt[:, 1:].flatten())))
    found = sum(losses) / len(losses)
    print(f"the swarm found {done['validation']:.6f}, the export has {found:.6f}")
    assert found == pytest.approx(done["validation"], abs=NEAR)
