"""A model out of a swarm of real processes: while it trains, when it is done, and when a stage is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from ftnode.lab.swarms.trial import Trial, open_trial, small_manifest
from ftnode.models import llama
from ftnode.models.config import ModelConfig
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.shards import read_index
from ftnode.models.stage import Stage
from ftnode.node.data.build import build
from ftnode.node.data.records import find_sources
from ftnode.node.data.tokenizers import open_tokenizer
from ftnode.protocol.manifest.parse import Manifest, parse
from tests.node.data.corpora import tokenizer_file

pytestmark = pytest.mark.timeout(280)

OpenTrial = Callable[..., Trial]
STAGES = 2
STEPS = 140
EXPORT_SECONDS = 200.0


def evaluated(manifest: Manifest) -> Manifest:
    return replace(manifest, evaluation=replace(manifest.evaluation, every=20))


def ftnode(trial: Trial, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ftnode.node.cli", *map(str, arguments), "--peer", trial.swarm.address]
    command += ["--home", str(trial.swarm.directory / "reader")]
    return subprocess.run(command, capture_output=True, text=True, timeout=EXPORT_SECONDS)


def export(trial: Trial, out: Path, *options: str) -> dict[str, Any]:
    done = ftnode(trial, "export", trial.swarm.manifest, out, "--json", *options)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert json.loads((out / "provenance.json").read_text()) == {name: found[name] for name in list(found)[3:]}
    return found


def dumped_stages(trial: Trial) -> list[Stage]:
    """What the holders had at the end, written by themselves."""
    manifest = parse(trial.swarm.manifest.read_text())
    stages = []
    for index in range(STAGES + 1):
        (path,) = trial.swarm.directory.glob(f"logs/*/last-{index}-{STEPS}.weights")
        stage = Stage(ModelConfig.of(manifest.model), STAGES, index, OptimiserConfig(1e-3, STEPS), 1, "cpu")
        stage.weights.copy_(torch.frombuffer(bytearray(path.read_bytes()), dtype=stage.dtype))
        stages.append(stage)
    return stages


def logits_of(stages: list[Stage], manifest: Manifest, tokens_bt: Tensor) -> Tensor:
    x = stages[0].forward(((0, 0), 0, 0), tokens_bt, save=False)
    for stage in stages[1:]:
        x = stage.forward(((0, 0), 0, stage.index), x, save=False)
    config = ModelConfig.of(manifest.model)
    return llama.logits(x, llama.head_weights(config, stages[0].layout.of(stages[0].weights)), config)


def test_the_model_while_it_trains_and_when_it_is_done(open_swarm: OpenTrial, text: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    trial = open_swarm(volunteers=0, stages=STAGES, steps=STEPS, change=evaluated, numbers=True)
    for number in range(STAGES + 1):
        trial.volunteer(f"v{number}", options=("--until-exported",) if number == 1 else ())
    trial.wait_for_step(3)
    during = export(trial, tmp_path / "during")
    assert 0 < during["step"] < STEPS
    assert [stage["stage"] for stage in during["stages"]] == [0, 1, 2]
    trial.wait_for_step(STEPS)
    trial.wait("the last weights", lambda story: len(list(trial.swarm.directory.glob("logs/*/last-*"))) == STAGES + 1)

    shown = ftnode(trial, "status").stdout
    assert "finished" in shown and "ftnode export" in shown
    trial.expected_dead.add("v1")
    done = export(trial, tmp_path / "done")
    assert done["step"] == STEPS
    assert done["commit"] == trial.story.commits[-1].record["commit"]
    card = (tmp_path / "done" / "README.md").read_text()
    assert done["run"] in card and f"{STEPS} of {STEPS}" in card and f"{done['validation']:.4f}" in card
    assert all("has written down the model" in process.output.read_text() for process in volunteers(trial))

    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "done")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "done")
    tokens_bt = torch.tensor([tokenizer("the quick brown fox jumps")["input_ids"]])
    stages, manifest = dumped_stages(trial), parse(trial.swarm.manifest.read_text())
    with torch.no_grad():
        found = model(tokens_bt).logits
    torch.testing.assert_close(found, logits_of(stages, manifest, tokens_bt), rtol=1e-4, atol=1e-4)
    assert float(llama.mean_loss(found[:, :-1], tokens_bt[:, 1:])) < 3.0, "chance is 5.5"

    stage = next(stage for stage in range(STAGES + 1) if trial.story.holder(stage) == "v1")
    assert trial.swarm.processes["v1"].process.wait(60) == 0, "it was to stay until the end was exported"
    gone = ftnode(trial, "export", trial.swarm.manifest, tmp_path / "gone", "--timeout", 5)
    assert gone.returncode == 69 and f"stage {stage}" in gone.stderr and "has no holder" in gone.stderr, gone.stderr
    assert not list(tmp_path.glob("*gone*"))


def test_the_tokenizer_of_shards_comes_with_the_model(tmp_path: Path, text: Path) -> None:
    """The reader's home has nothing of the run, and one volunteer was given the data."""
    transformers = pytest.importorskip("transformers")
    tokenizer = tokenizer_file(tmp_path / "bpe")
    built = build(find_sources([str(text)], "text"), open_tokenizer(str(tokenizer)), tmp_path / "shards")
    manifest = small_manifest(built.folder, STAGES)
    manifest = replace(manifest, model=replace(manifest.model, vocabulary=400))
    with open_trial(manifest, tmp_path) as trial:
        for number in range(STAGES + 1):
            trial.volunteer(f"v{number}", options=["--data", str(built.folder)] if number == 0 else [])
        trial.wait_for_step(3)
        other = tmp_path / "other.json"
        other.write_text(tokenizer.read_text().replace('"version"', ' "version"', 1))
        refused = ftnode(trial, "export", trial.swarm.manifest, tmp_path / "no", "--tokenizer", other)
        assert refused.returncode == 65 and "is not the one that made the run's data" in refused.stderr, refused.stderr
        export(trial, tmp_path / "out")
    assert not list(tmp_path.glob("*no*"))
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == tokenizer.read_bytes()
    end = read_index(built.folder)[0].tokenizer.separator
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert loaded.generation_config.eos_token_id == loaded.config.eos_token_id == end
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "out").eos_token_id == end


def volunteers(trial: Trial) -> list[Any]:
    return [process for process in trial.swarm.processes.values() if process.name.startswith("v")]
