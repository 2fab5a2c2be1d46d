"""A model with a subspace is the plain model whose other coordinates nobody writes to."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from ftnode.models.boundary import ActivationCodec
from ftnode.models.config import ModelConfig
from ftnode.models.faults import StageFault
from ftnode.models.fixed_embedding import DEVIATION, fixed_table
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import Stage
from ftnode.protocol.manifest.boundary import BoundaryBytes, token_bytes
from tests.models.widening import named, widened

STAGES = 2
NARROW = ModelConfig(
    dim=24, heads=2, layers=4, context=16, hidden=40, vocabulary=300, precision="float64", subspace=8
)  # fmt: skip
TOKENS = torch.randint(300, (2, 17), generator=torch.Generator().manual_seed(2))


def stages_of(config: ModelConfig) -> list[Stage]:
    made = []
    for index in range(STAGES + 1):
        stage = Stage(config, STAGES, index, OptimiserConfig(1e-3, 10), 1, "cpu")
        stage.initialise(3, "lineage")
        made.append(stage)
    return made


def step(stages: list[Stage]) -> float:
    """One microbatch, forward and backward; the loss. Tokens travel with every activation."""
    inputs, targets = TOKENS[:, :-1], TOKENS[:, 1:]
    attempt = (0, 0)
    x = stages[0].forward((attempt, 0, 0), inputs, save=False)
    for stage in stages[1:]:
        x = stage.forward((attempt, 0, stage.index), x, True, inputs)
    lesson = stages[0].learn((attempt, 0, STAGES + 1), x, targets, inputs)
    gradient = lesson.gradient
    for stage in reversed(stages[1:]):
        assert gradient is not None and gradient.shape[-1] == stages[0].config.stream
        gradient = stage.backward((attempt, 0, stage.index), gradient, None).gradient
    assert gradient is not None
    stages[0].backward((attempt, 0, 0), gradient, inputs)
    return lesson.loss


def test_loss_and_gradients_are_those_of_the_plain_model() -> None:
    narrow = stages_of(NARROW)
    wide = widened(narrow)
    assert step(narrow) == pytest.approx(step(wide), rel=1e-12)
    for ours, theirs in zip(narrow, wide):
        wanted = named(theirs, theirs.accumulated((0, 0)))
        for name, gradient in named(ours, ours.accumulated((0, 0))).items():
            part = wanted[name][tuple(slice(size) for size in gradient.shape)]
            torch.testing.assert_close(gradient, part, rtol=1e-9, atol=1e-12)
            assert gradient.abs().max() > 0


def test_tokens_decide_what_is_read() -> None:
    """A stage that took other tokens for these would compute something else."""
    stage = stages_of(NARROW)[1]
    x = torch.ones(2, 16, 8, dtype=torch.float64)
    first = stage.forward(((0, 0), 0, 1), x, False, TOKENS[:, :-1])
    other = stage.forward(((0, 0), 0, 1), x, False, TOKENS[:, 1:])
    assert (first - other).abs().max() > 1e-3


@pytest.mark.parametrize("token", [-1, 300])
def test_a_token_that_is_none_is_a_fault(token: int) -> None:
    tokens = TOKENS[:, :-1].clone()
    tokens[1, 3] = token
    stage = stages_of(NARROW)[1]
    with pytest.raises(StageFault, match="token"):
        stage.forward(((0, 0), 0, 1), torch.ones(2, 16, 8, dtype=torch.float64), True, tokens)


def test_the_fixed_table_is_the_same_for_ever() -> None:
    table = fixed_table(NARROW)
    assert table.shape == (300, 16) and abs(table.std() / DEVIATION - 1) < 0.05
    assert table.sum() == pytest.approx(0.19090986648453345, abs=1e-9), "another table is another model"
    single = fixed_table(replace(NARROW, precision="float32"))
    np.testing.assert_allclose(single, table, rtol=1e-6)


@pytest.mark.parametrize("subspace", [-1, 24, 25])
def test_sizes_that_are_no_subspace_are_refused(subspace: int) -> None:
    with pytest.raises(ValueError, match="subspace"):
        replace(NARROW, subspace=subspace)


def test_parameters_are_counted() -> None:
    for index, stage in enumerate(stages_of(NARROW)):
        assert stage.layout.size == NARROW.stage_parameters(STAGES, index)


@pytest.mark.parametrize("vocabulary", [300, 1 << 16, (1 << 16) + 1])
@pytest.mark.parametrize("encoding", ["float32", "bfloat16", "int8", "int4"])
def test_tokens_travel_behind_the_numbers(encoding: str, vocabulary: int) -> None:
    config = replace(NARROW, vocabulary=vocabulary)
    codec = ActivationCodec(encoding, (2, 16, 8), torch.device("cpu"), config.token_bytes)
    assert config.token_bytes == token_bytes(vocabulary)
    assert codec.bytes == BoundaryBytes.encoded((encoding, encoding), 32, 8, vocabulary).forward
    x = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(4))
    tokens = torch.randint(vocabulary, (2, 16), generator=torch.Generator().manual_seed(5))
    tokens[0, 0] = vocabulary - 1
    content = torch.empty(codec.bytes, dtype=torch.uint8)
    codec.encode(x, tokens, content)
    numbers, found = codec.decode(content)
    assert found is not None and torch.equal(found, tokens)
    assert (numbers - x).abs().max() <= {"float32": 0, "bfloat16": 0.02, "int8": 0.03, "int4": 0.5}[encoding]
