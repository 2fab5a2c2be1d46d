"""A model with a subspace, trained, exported, and loaded by transformers with nothing of ours: the loss is the swarm's
own validation loss."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftnode.lab.recovery.whole_model import VALIDATION_SEED, Size, WholeModel
from ftnode.models.config import ModelConfig
from ftnode.models.data import load_corpus, validation_batch
from ftnode.models.generation import load
from ftnode.node.manifests.presets import preset
from ftnode.protocol.manifest.parse import Manifest
from tests.node.export.test_checkpoint import STAGES, write

NEAR = 1e-3
"""Nats per token."""
STEPS = 30


def trained(boundary: str, text_file: Path) -> tuple[Manifest, WholeModel]:
    tiny = preset("tiny")
    made = replace(
        tiny,
        model=replace(tiny.model, dim=48, heads=3, layers=4, context=32, hidden=88, subspace=16),
        pipeline=replace(tiny.pipeline, stages=STAGES, boundary=boundary),
    )
    size = Size(
        "export", ModelConfig.of(made.model), STAGES, microbatches=2, sequences=4, learning_rate=5e-3, warmup_steps=3,
        validation_microbatches=2, encodings=made.boundary_encodings,
    )  # fmt: skip
    model = WholeModel(size, load_corpus(str(text_file)), seed=1)
    for step in range(1, STEPS + 1):
        model.train(step)
    return made, model


@pytest.mark.parametrize("boundary", ["float32", "bfloat16", "int8"])
def test_the_exported_model_has_the_swarms_validation_loss(boundary: str, text_file: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    made, model = trained(boundary, text_file)
    wanted, out = model.validate(), tmp_path / "out"
    assert wanted < 4.0, "it has learnt, so that a wrong number shows"
    write(out, made, model.stages)
    exported, ours = transformers.AutoModelForCausalLM.from_pretrained(out), load(out)
    assert type(exported).__name__ == "LlamaForCausalLM"
    losses: dict[str, list[float]] = {"transformers": [], "ours": []}
    for number in range(model.size.validation_microbatches):
        windows = validation_batch(model.corpus, VALIDATION_SEED, number, model.size.sequences, made.model.context)
        tokens_bt = torch.from_numpy(windows).long()
        with torch.no_grad():
            found = {"transformers": exported(tokens_bt[:, :-1]).logits, "ours": ours.logits(tokens_bt[:, :-1])}
        for name, logits_btv in found.items():
            loss = torch.nn.functional.cross_entropy(logits_btv.flatten(0, 1), tokens_bt[:, 1:].flatten())
            losses[name].append(float(loss))
    for name, each in losses.items():
        assert sum(each) / len(each) == pytest.approx(wanted, abs=NEAR), name
