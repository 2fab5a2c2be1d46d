"""A swarm goes on from a model that exists: one volunteer has its folder, the others fetch their layers from it, and
what is exported in the end is a model that transformers loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftnode.lab.swarms.trial import open_trial, small_manifest
from ftnode.models.data import load_corpus, validation_batch
from ftnode.node.export.continuing import described_model, with_weights
from ftnode.node.export.tokenizer_files import byte_tokenizer
from ftnode.node.home.files import json_bytes
from ftnode.node.owner.join_options import shards_folder
from ftnode.protocol.manifest.parse import Manifest
from tests.models.families import saved
from tests.swarm.test_export import export

pytestmark = pytest.mark.timeout(300)

STAGES, STEPS, CONTEXT = 2, 20, 32
WAIT_SECONDS = 120.0


def loss(model: torch.nn.Module, text: Path, manifest: Manifest) -> float:
    """Of the batches that the swarm validates with."""
    corpus, found = load_corpus(str(text)), []
    for number in range(manifest.batch.microbatches, manifest.batch.microbatches + manifest.evaluation.microbatches):
        windows = validation_batch(corpus, manifest.run.seed, number, manifest.batch.sequences, CONTEXT)
        tokens_bt = torch.from_numpy(windows).long()
        with torch.no_grad():
            logits_btv = model(tokens_bt[:, :-1]).logits.float()
        found.append(float(torch.nn.functional.cross_entropy(logits_btv.flatten(0, 1), tokens_bt[:, 1:].flatten())))
    return sum(found) / len(found)


def test_a_model_trains_on_from_its_own_loss(tmp_path: Path, text: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "model"
    saved("qwen-2", folder, torch.bfloat16, max_shard_size="20KB")
    (folder / "tokenizer.json").write_bytes(json_bytes(byte_tokenizer()))
    base, taken = small_manifest(text, STAGES), described_model(folder, CONTEXT, STAGES)
    manifest = with_weights(
        replace(
            base, model=taken.model, start=taken.start, run=replace(base.run, steps=STEPS),
            optimiser=replace(base.optimiser, learning_rate=1e-2, warmup_steps=2000),
            evaluation=replace(base.evaluation, every=1), pipeline=replace(base.pipeline, boundary="float32"),
        ), folder,
    )  # fmt: skip
    first = loss(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), text, manifest)
    with open_trial(manifest, tmp_path) as trial:
        trial.volunteer("has-none", options=["--data", str(text), "--hold", "1"])
        trial.volunteer("given", options=["--data", str(text), "--hold", "2", "--from", str(folder)])
        trial.wait_for_step(STEPS, WAIT_SECONDS)
        home = shards_folder(trial.swarm.processes["has-none"].home, manifest.start.weights)
        fetched = sorted(path.name for path in home.iterdir() if path.suffix == ".bin")
        assert fetched in (["head.bin"], ["layer-00000.bin", "layer-00001.bin"], ["layer-00002.bin", "layer-00003.bin"])
        given = shards_folder(trial.swarm.processes["given"].home, manifest.start.weights)
        assert not list(given.glob("*.bin")), "who has the folder copies nothing"
        began = [told.record["text"] for told in trial.story.notes if told.record["kind"] == "rebuilt"]
        assert len(began) > STAGES and all(text.endswith("from the model that the run goes on from") for text in began)
        done = export(trial, tmp_path / "out")
        trial.wait("a validation", lambda story: len(story.evaluated) >= STEPS // 2, WAIT_SECONDS)
        step, began = min(trial.story.evaluated.items())
    print(f"transformers {first:.5f}; after step {step} {began:.5f}; in the end {done['validation']}")
    assert step <= 2 and began == pytest.approx(first, abs=2e-3), "the first steps are tiny"
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert type(model).__name__ == "Qwen2ForCausalLM" and model.config.tie_word_embeddings
    assert loss(model, text, manifest) < first
    again = described_model(tmp_path / "out", CONTEXT, STAGES)
    assert again.model == manifest.model and again.start.positions == manifest.start.positions
