"""A swarm trains adapters of a model that exists. A holder is killed, its stage begins again with the model, and what
is exported is the model with what was learnt."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ftnode.lab.swarms.trial import open_trial, small_manifest
from ftnode.lab.traces.story import Story
from ftnode.node.export.adapters import ADAPTERS
from ftnode.node.export.continuing import described_model, with_weights
from ftnode.node.export.tokenizer_files import byte_tokenizer
from ftnode.node.home.files import json_bytes
from ftnode.protocol.manifest.parse import Manifest
from ftnode.protocol.words.types import HEAD, Rung
from tests.models.families import saved
from tests.swarm.test_export import export
from tests.swarm.test_first_weights import loss

pytestmark = pytest.mark.timeout(300)

STAGES, STEPS, CONTEXT = 2, 60, 32
KILLED_AFTER = 20
WAIT_SECONDS = 120.0


def continued(folder: Path, text: Path, part: dict[str, object], every: int = 0, steps: int = STEPS) -> Manifest:
    """A run that goes on from a model, which is made in `folder`. `every`: steps between two snapshots."""
    saved("llama-2", folder, torch.bfloat16)
    (folder / "tokenizer.json").write_bytes(json_bytes(byte_tokenizer()))
    base, taken = small_manifest(text, STAGES), described_model(folder, CONTEXT, STAGES, **part)  # type: ignore[arg-type]
    return with_weights(
        replace(
            base, model=taken.model, start=taken.start, run=replace(base.run, steps=steps),
            optimiser=replace(base.optimiser, learning_rate=3e-3, warmup_steps=5, weight_decay=0.0),
            evaluation=replace(base.evaluation, every=10),
            pipeline=replace(base.pipeline, boundary="float32"),
            recovery=replace(base.recovery, snapshot_every=every, rollback_max=10 * every),
        ), folder,
    )  # fmt: skip


@pytest.mark.parametrize("part", [{"lora": 4}, {"train": "last 2 layers"}], ids=str)
def test_a_part_of_a_model_is_trained_by_a_swarm_that_loses_a_stage(
    part: dict[str, object], tmp_path: Path, text: Path
) -> None:
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    folder = tmp_path / "model"
    manifest = continued(folder, text, part)
    first = loss(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32), text, manifest)
    with open_trial(manifest, tmp_path) as trial:
        given = ["--data", str(text), "--from", str(folder)]
        trial.volunteer("head", options=[*given, "--hold", "1"])
        for name in ("one", "two", "spare"):
            trial.volunteer(name, options=["--data", str(text), "--hold", "1"])
        trial.wait_for_step(KILLED_AFTER, WAIT_SECONDS)
        held = [(stage, name) for stage in range(STAGES, 0, -1) for name in trial.story.holders(stage)]
        lost, victim = next((stage, name) for stage, name in held if name != "head")
        trial.kill(victim)
        trial.wait_for_step(STEPS, WAIT_SECONDS)
        rungs = [(told.record["stage"], told.record["step"], told.record["rung"]) for told in trial.story.installed]
        rebuilt = [(stage, step) for stage, step, rung in rungs if rung == Rung.FIRST.value]
        assert len(rebuilt) == 1 and rebuilt[0][0] == lost and rebuilt[0][1] >= KILLED_AFTER - 1
        done = export(trial, tmp_path / "out", "--from", str(folder))
        if "lora" in part:
            export(trial, tmp_path / "adapters")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    found = loss(model, text, manifest)
    print(f"transformers {first:.5f} before, {found:.5f} after; the swarm's {done['validation']}")
    assert found < first - 0.1
    assert found == pytest.approx(done["validation"], abs=1e-3) or done["validation_step"] != STEPS
    if "lora" in part:
        assert (tmp_path / "adapters" / ADAPTERS).stat().st_size < 100_000
        plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        adapted = peft.PeftModel.from_pretrained(plain, tmp_path / "adapters")
        assert loss(adapted, text, manifest) == pytest.approx(found, abs=1e-4)


def test_stages_without_a_state_are_handed_over_saved_and_begun_again(tmp_path: Path, text: Path) -> None:
    """The head of a run that trains adapters: who leaves hands it over, and who has it is killed and goes on from its
    disk."""
    folder = tmp_path / "model"
    manifest = continued(folder, text, {"lora": 2}, every=5, steps=2000)
    given = ["--data", str(text), "--from", str(folder)]
    with open_trial(manifest, tmp_path) as trial:
        trial.volunteer("a", hold=3, options=given)
        trial.wait_for_step(3, WAIT_SECONDS)
        trial.volunteer("b", hold=3, options=given)
        trial.wait("b to have a stage", lambda story: "b" in story.names.values() and held_by(story, "b"), WAIT_SECONDS)
        (leaver,) = trial.story.holders(HEAD)
        heir = "b" if leaver == "a" else "a"
        trial.expected_dead.add(leaver)
        trial.swarm.processes[leaver].process.send_signal(signal.SIGTERM)
        trial.wait("the other to have all", lambda story: len(held_by(story, heir)) == STAGES + 1, WAIT_SECONDS)
        heads = [told.record["rung"] for told in trial.story.installed if told.record["stage"] == HEAD]
        assert heads == [Rung.INITIAL.value, *[Rung.REPLICA.value] * (1 if leaver == "a" else 2)]
        trial.wait_for_step(trial.story.committed + 12, WAIT_SECONDS)
        seen = len(trial.story.installed), len(trial.story.commits)
        trial.kill(heir)
        home = trial.swarm.processes[heir].home
        home.rename(home.with_name("again"))
        trial.volunteer("again", hold=3, options=given)
        trial.wait("steps after the restart", lambda story: len(story.commits) >= seen[1] + 6, WAIT_SECONDS)
        again = [told.record for told in trial.story.installed[seen[0] :]]
    assert {record["stage"]: record["rung"] for record in again} == dict.fromkeys(range(3), Rung.SNAPSHOT.value)
    assert min(record["step"] for record in again) >= 5


def held_by(story: Story, name: str) -> list[int]:
    return [stage for stage in range(STAGES + 1) if name in story.holders(stage)] if story.views else []
