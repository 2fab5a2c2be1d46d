"""Stages of a model with a subspace that are rebuilt from others: blends, copies and interpolations stay in it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ftnode.lab.recovery.rebuilding import WAYS, rebuild
from ftnode.lab.recovery.whole_model import WholeModel
from ftnode.models.config import ModelConfig
from tests.lab.recovery.recovery_micro import MICRO, corpus
from tests.models.widening import widened

SUBSPACE = 6
NARROW = replace(MICRO, config=replace(MICRO.config, subspace=SUBSPACE, precision="float64"))
REBUILDS = [
    pytest.param("squared-norm", (2,), (1, 3), id="blend"),
    pytest.param("previous", (3,), (2,), id="copy"),
    pytest.param("squared-norm", (1,), (2,), id="copy of the only neighbour"),
    pytest.param("uniform", (2, 3), (1, 4), id="interpolation"),
    pytest.param("blend-random-outputs", (2,), (1, 3), id="blend with new outputs"),
]


def trained(steps: int = 4) -> WholeModel:
    model = WholeModel(NARROW, corpus(), seed=3)
    for iteration in range(1, steps + 1):
        model.train(iteration)
    return model


@pytest.mark.parametrize(("way", "lost", "donors"), REBUILDS)
def test_a_rebuilt_stage_writes_to_the_subspace_alone(way: str, lost: tuple[int, ...], donors: tuple[int, ...]) -> None:
    """As the plain model sees it: of what goes through the stage, the fixed coordinates come out as they went in."""
    model = trained()
    for stage in lost:
        rebuilt = rebuild(model, stage, WAYS[way], lost=frozenset(lost))
        assert tuple(near for near, _ in rebuilt.donors) == donors
    wide = widened(model.stages)
    config: ModelConfig = wide[0].config
    tokens = torch.randint(256, (2, config.context), generator=torch.Generator().manual_seed(1))
    x = before = wide[0].forward(((0, 0), 0, 0), tokens, save=False)
    for stage in wide[1:]:
        x = stage.forward(((0, 0), 0, stage.index), x, save=False)
        assert torch.equal(x[..., SUBSPACE:], before[..., SUBSPACE:])
        assert (x[..., :SUBSPACE] - before[..., :SUBSPACE]).abs().max() > 0


@pytest.mark.parametrize(("way", "lost", "donors"), REBUILDS)
def test_training_goes_on_after_a_rebuild(way: str, lost: tuple[int, ...], donors: tuple[int, ...]) -> None:
    """The loss is that of the plain model with the same weights, and falls."""
    model = trained()
    usual = model.validate()
    for stage in lost:
        rebuild(model, stage, WAYS[way], lost=frozenset(lost))
    plain = WholeModel(replace(NARROW, config=replace(NARROW.config, subspace=0)), corpus(), seed=3)
    plain.stages = widened(model.stages)
    hurt = model.validate()
    assert hurt == pytest.approx(plain.validate(), rel=1e-12) and hurt != usual
    for iteration in range(5, 15):
        model.train(iteration)
    assert model.validate() < hurt


def test_a_blend_is_the_mean_of_the_plain_models_blend() -> None:
    """To blend and to widen are the same in either order."""
    model = trained()
    before, after = (widened(model.stages)[near].weights.detach().clone() for near in (1, 3))
    rebuild(model, 2, WAYS["uniform"])
    torch.testing.assert_close(widened(model.stages)[2].weights.detach(), (before + after) / 2, rtol=0, atol=1e-15)
