"""A run in which replicas die ends with the weights of a run that nobody disturbed, on real processes.

Each run's last weights are held against those of one process that trains the whole model on the same microbatches.
In float64 nothing but the order of additions is left, some 1e-16 a time. In float32 that order makes a visible
difference, which two undisturbed runs with different splits of the microbatches show as well. Encoded boundary tensors
are rounded alike on every try and by everybody, so that such runs are as exact as others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from ftnode.lab.audit.audit import audit
from ftnode.lab.recovery.whole_model import Size, WholeModel
from ftnode.lab.swarms.trial import Trial, open_trial, small_manifest
from ftnode.lab.traces.story import Story
from ftnode.models.config import ModelConfig
from ftnode.models.data import load_corpus
from ftnode.models.optimiser import OptimiserConfig
from ftnode.protocol.manifest.parse import Manifest
from tests.swarm.conftest import kill_replicas, sizes

pytestmark = pytest.mark.timeout(900)

STAGES = 2
HOLDERS = 3
STEPS = 160
KILLED = (0, 1, 2, 1)
"""The stages that lose a holder, the head among them."""
TOLERANCE = {"adam": 1e-10, "muon": 1e-6}
"""Muon rounds what it multiplies to 3e-8. So another order of additions hardly ever shows, and then as that."""
SPREADS = 30.0
"""Rounding grows with the steps, from run to run up to six times as far; a mistake in one step is a thousand."""
FEW_STEPS = 100
"""Of a run with two holders of each stage, who come sooner and of whom two die."""
WAIT_SECONDS = 240.0

Floats = npt.NDArray[np.floating]
Weights = dict[int, Floats]


@dataclass(frozen=True)
class Asked:
    """What is particular about a run."""

    precision: str = "float64"
    holders: int = HOLDERS
    steps: int = STEPS
    kind: str = "adam"
    boundary: str = "float32"
    subspace: int = 0
    sums: str = "exact"

    def shaped(self, manifest: Manifest) -> Manifest:
        """Steps that are long enough for nine volunteers to come before half of them are over."""
        return replace(
            manifest,
            model=replace(manifest.model, precision=self.precision, subspace=self.subspace),
            optimiser=replace(manifest.optimiser, kind=self.kind),
            batch=replace(manifest.batch, sequences=8),
            pipeline=replace(manifest.pipeline, replicas=self.holders, boundary=self.boundary, sums=self.sums),
        )


@dataclass(frozen=True)
class Ended:
    """A run that is over: its manifest, and the last weights, on which all holders agree."""

    manifest: Manifest
    weights: Weights


def trained(folder: Path, text: Path, asked: Asked, kills: tuple[int, ...] = ()) -> Ended:
    """A run to its end with so many holders for each stage, of whom some die in the middle of a step."""
    manifest, holders = asked.shaped(small_manifest(text, STAGES, asked.steps)), asked.holders
    folder.mkdir()
    with open_trial(manifest, folder, text, hash_every=1) as trial:
        for number in range(1, holders * (STAGES + 1) + 1):
            trial.volunteer(f"v{number}")
        trial.wait("full groups", lambda story: sizes(story) == [holders] * (STAGES + 1), WAIT_SECONDS)
        for stage in kills:
            kill_replicas(trial, stage, seconds=WAIT_SECONDS)
            trial.wait_for_step(min(trial.story.committed + 3, asked.steps), WAIT_SECONDS)
        trial.wait_for_step(asked.steps, WAIT_SECONDS)
        weights = last_weights(trial, manifest)
    found = audit(folder / "logs")
    assert found.passed, [str(finding) for finding in found.findings[:10]]
    assert (found.replicas_compared > asked.steps // 4) == (holders > 1), "hashes of all stages, from full groups on"
    return Ended(manifest, weights)


def last_weights(trial: Trial, manifest: Manifest) -> Weights:
    """Of each stage, from the files that its holders wrote; replicas are equal to the byte."""
    model, found = ModelConfig.of(manifest.model), {}
    for stage in range(STAGES + 1):
        size = model.number_bytes * model.stage_parameters(STAGES, stage)
        logs = [trial.swarm.processes[name].log for name in trial.story.holders(stage)]
        files = [log / f"last-{stage}-{manifest.run.steps}.weights" for log in logs]

        def written(story: Story, files: list[Path] = files, size: int = size) -> bool:
            return all(path.exists() and path.stat().st_size == size for path in files)

        trial.wait(f"the weights of stage {stage}", written, WAIT_SECONDS)
        contents = {path.read_bytes() for path in files}
        assert len(contents) == 1, f"the holders of stage {stage} differ"
        found[stage] = np.frombuffer(contents.pop(), np.dtype(manifest.model.precision))
    return found


@dataclass(frozen=True)
class Alone(Size):
    """The run's model, batches and optimiser in one process."""

    manifest: Manifest | None = None

    def optimiser(self) -> OptimiserConfig:
        assert self.manifest is not None
        given = self.manifest.optimiser
        return OptimiserConfig(
            given.learning_rate, self.manifest.run.steps, given.betas[0], given.betas[1], given.epsilon,
            given.weight_decay, given.warmup_steps, given.decay, given.minimum_factor, given.clip, given.kind,
        )  # fmt: skip


class Spoilt(WholeModel):
    """One process, which counts one microbatch too few or too many in one step when it is told to."""

    spoil: str = ""

    def _training_tokens(self, iteration: int) -> list[Tensor]:
        tokens = super()._training_tokens(iteration)
        if iteration != spoilt_step(self.size.optimiser().steps):
            return tokens
        return {"": tokens, "dropped": tokens[:-1], "doubled": [*tokens, tokens[0]]}[self.spoil]


def one_process(manifest: Manifest, text: Path) -> Spoilt:
    """The whole model at its start."""
    torch.set_num_threads(1)  # two that wait for each other on busy cores take ten times as long
    batch = manifest.batch
    size = Alone(
        "trial",
        ModelConfig.of(manifest.model),
        STAGES,
        batch.microbatches,
        batch.sequences,
        1.0,
        0,
        1,
        encodings=manifest.boundary_encodings,
        manifest=manifest,
    )
    return Spoilt(size, load_corpus(str(text)), manifest.run.seed)


def spoilt_step(steps: int) -> int:
    """Of a reference that has a mistake: what one process does before is the same for all of them."""
    return steps * 3 // 4


def references(manifest: Manifest, text: Path) -> dict[str, Weights]:
    """What one process makes of the manifest and the text: at the start, at the end, and at ends with a mistake."""
    model = one_process(manifest, text)
    found = {"start": weights_of(model)}
    steps = manifest.run.steps
    for step in range(1, spoilt_step(steps)):
        model.train(step)
    kept = model.keep()
    for spoil in ("", "dropped", "doubled"):
        model.restore(kept)
        model.spoil = spoil
        for step in range(spoilt_step(steps), steps + 1):
            model.train(step)
        found[spoil or "end"] = weights_of(model)
    return found


def weights_of(model: WholeModel) -> Weights:
    return {index: stage.weights.numpy().copy() for index, stage in enumerate(model.stages)}


def distances(found: Weights, wanted: Weights, start: Weights) -> dict[int, float]:
    """Stage → how far apart the weights are, in units of the way that they have come."""
    return {
        stage: float(np.linalg.norm(found[stage] - wanted[stage]) / np.linalg.norm(wanted[stage] - start[stage]))
        for stage in wanted
    }


@pytest.mark.parametrize(
    ("asked", "killed"),
    [
        pytest.param(Asked(), KILLED, id="adam"),
        pytest.param(Asked(kind="muon"), KILLED, id="muon"),
        pytest.param(Asked(boundary="int8", holders=2, steps=FEW_STEPS), (1, 0), id="int8"),
        pytest.param(Asked(boundary="int4", holders=2, steps=FEW_STEPS), (2, 1), id="int4"),
        pytest.param(Asked(boundary="int8", subspace=32, holders=2, steps=FEW_STEPS), (2, 0), id="subspace"),
    ],
)
def test_in_double_precision_deaths_leave_no_trace(
    asked: Asked, killed: tuple[int, ...], tmp_path: Path, text: Path
) -> None:
    found = trained(tmp_path / "disturbed", text, asked, killed)
    alone, near = references(found.manifest, text), TOLERANCE[asked.kind]
    apart = distances(found.weights, alone["end"], alone["start"])
    print(f"{asked}, {len(killed)} killed in mid-step: {apart}")
    assert max(apart.values()) <= near
    for mistake in ("dropped", "doubled"):
        spoilt = distances(alone[mistake], alone["end"], alone["start"])
        print(f"one of {found.manifest.run.steps} steps with a microbatch {mistake}: {spoilt}")
        assert min(spoilt.values()) > 100 * near


@pytest.mark.parametrize("sums", ["int8", "int4"])
def test_with_encoded_sums_replicas_are_alike_after_every_step_and_deaths(
    tmp_path: Path, text: Path, sums: str
) -> None:
    """`trained` compares their hashes after each step, and the bytes of their last weights."""
    found = trained(tmp_path / "disturbed", text, Asked("float32", sums=sums), KILLED[:2])
    alone = references(found.manifest, text)
    apart = distances(found.weights, alone["end"], alone["start"])
    print(f"{sums}, two killed in mid-step, against exact sums: {apart}")
    assert all(0 < far < 1 for far in apart.values())


def test_in_single_precision_deaths_do_no_more_than_another_split(tmp_path: Path, text: Path) -> None:
    found = trained(tmp_path / "disturbed", text, Asked("float32"), KILLED)
    two = trained(tmp_path / "two", text, Asked("float32", 2)).weights
    alone = references(found.manifest, text)
    one = alone["end"]  # everything in one place is a split, too
    spread, apart = distances(two, one, alone["start"]), distances(found.weights, one, alone["start"])
    print(f"float32: two splits {spread}; {len(KILLED)} killed in mid-step {apart}")
    assert all(apart[stage] <= SPREADS * spread[stage] for stage in spread)
    for mistake in ("dropped", "doubled"):
        spoilt = distances(alone[mistake], one, alone["start"])
        print(f"one of {found.manifest.run.steps} steps with a microbatch {mistake}: {spoilt}")
        assert all(spoilt[stage] > SPREADS * spread[stage] for stage in spread)
