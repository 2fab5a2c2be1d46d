"""The whole model in one process does with boundary tensors what compute processes do, to the bit."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from ftnode.lab.recovery.boundary_tensors import BoundaryTensors
from ftnode.lab.recovery.whole_model import Size, WholeModel
from ftnode.models.config import ModelConfig
from ftnode.models.data import load_corpus
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.tensors import digest
from ftnode.node.compute.config import ComputeConfig
from tests.node.compute.computing import CONFIG, MICROBATCHES, STAGES, direct, train

STEPS = 3
PAIRS = [("", ""), ("int8", "int8"), ("int4", "int4"), ("int8", "int4"), ("bfloat16", "int8")]
"""Of activations and of gradients; "": the model's own precision."""


@dataclass(frozen=True)
class Alone(Size):
    """One process with the optimiser of CONFIG, but for its kind."""

    kind: str = "adam"

    def optimiser(self) -> OptimiserConfig:
        given = CONFIG
        return OptimiserConfig(
            given.learning_rate, given.steps, given.beta1, given.beta2, given.eps, given.weight_decay,
            given.warmup_steps, given.decay, given.minimum_factor, given.clip, self.kind,
        )  # fmt: skip


def config_of(precision: str, subspace: int, forward: str, backward: str) -> ComputeConfig:
    made = replace(
        CONFIG, precision=precision, subspace=subspace, boundary=forward or precision,
        boundary_gradients=backward or precision, slot_bytes=1 << 20,
    )  # fmt: skip
    return replace(made, slot_bytes=made.boundary_bytes.largest)


def whole(config: ComputeConfig, encodings: tuple[str, str]) -> WholeModel:
    model = ModelConfig.of(config)
    size = Alone(
        "alone", model, STAGES, MICROBATCHES, config.sequences, 1.0, 0, 1, encodings=encodings, kind=config.optimiser
    )
    return WholeModel(size, load_corpus(config.data), config.seed)


@pytest.mark.parametrize("subspace", [0, 8])
@pytest.mark.parametrize("precision", ["float32", "float64"])
@pytest.mark.parametrize("encodings", PAIRS)
def test_the_weights_are_those_of_compute_processes(precision: str, subspace: int, encodings: tuple[str, str]) -> None:
    config = config_of(precision, subspace, *encodings)
    compute, alone = direct(config), whole(config, encodings)
    for step in range(1, STEPS + 1):
        found = train(compute, step)
        assert alone.train(step) == pytest.approx(sum(found["losses"]) / MICROBATCHES, rel=1e-12)
        assert [digest(stage.weights) for stage in alone.stages] == found["digests"]


def test_muon_and_a_subspace_go_together() -> None:
    config = replace(config_of("float32", 8, "int8", "int4"), optimiser="muon")
    compute, alone = direct(config), whole(config, ("int8", "int4"))
    for step in range(1, STEPS + 1):
        found = train(compute, step)
        alone.train(step)
        assert [digest(stage.weights) for stage in alone.stages] == found["digests"]
    assert found["losses"][0] < 5.5


def test_encodings_change_the_weights() -> None:
    """Or the comparison above would prove nothing."""
    found = set()
    for encodings in PAIRS:
        alone = whole(config_of("float64", 0, *encodings), encodings)
        alone.train(1)
        found.add(digest(alone.stages[1].weights))
    assert len(found) == len(PAIRS)


def test_a_validation_is_encoded_as_well() -> None:
    config = config_of("float32", 8, "int4", "int4")
    assert whole(config, ("int4", "int4")).validate() != whole(config, ("", "")).validate()


def test_halves_have_tensors_of_their_own_size() -> None:
    between = BoundaryTensors(ModelConfig.of(CONFIG), ("int8", "int8"), 3, torch.device("cpu"))
    for sequences in (2, 1):
        x, tokens = torch.randn(sequences, 8, 16), torch.zeros(sequences, 8, dtype=torch.long)
        assert between.activation(x, tokens)[0].shape == between.gradient(x, (1, 0, 1)).shape == x.shape
