"""CheckFree's residual, against a calculation that takes another way."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from ftnode.lab.recovery.rebuilding import WAYS, rebuild
from ftnode.lab.recovery.residual import residual_of, works
from ftnode.lab.recovery.whole_model import VALIDATION_SEED, WholeModel
from ftnode.models.data import validation_batch
from tests.lab.recovery.recovery_micro import MICRO, corpus


def trained() -> WholeModel:
    model = WholeModel(MICRO, corpus(), seed=3)
    for iteration in range(1, 9):
        model.train(iteration)
    return model


def test_it_is_what_section_4_4_has() -> None:
    """By hand: the first two stages are run, then both neighbours' functions are weighted by their squared norms."""
    model = trained()
    seen = works(model, (0, 3))
    assert list(seen) == [3], "the head is no function of the residual stream"
    windows = validation_batch(corpus(), VALIDATION_SEED, 0, MICRO.sequences, MICRO.config.context)
    x = torch.from_numpy(windows[:, :-1]).long()
    for index in (0, 1, 2):
        x = model.stages[index].forward(((9, 9), 0, index), x, False)
    added = {index: model.stages[index].forward(((9, 9), 0, index), x, False) - x for index in (2, 3, 4)}
    below, above = model.stages[2].norm_squared, model.stages[4].norm_squared
    expected = (below * added[2] + above * added[4]) / (below + above) - added[3]
    rebuild(model, 3, WAYS["squared-norm"])
    found = residual_of(model, 3, seen[3], frozenset({3}))
    assert found.own == pytest.approx(float(added[3].square().sum(-1).mean()), rel=1e-4)
    assert found.averaged == pytest.approx(float(expected.square().sum(-1).mean()), rel=1e-4)
    now = model.stages[3].forward(((9, 9), 0, 3), x, False) - x
    assert found.rebuilt == pytest.approx(float((now - added[3]).square().sum(-1).mean()), rel=1e-4)
    assert found.rebuilt != pytest.approx(found.averaged, rel=1e-3), "to average weights is not to average functions"


def test_of_one_donor_both_are_the_same() -> None:
    model = trained()
    seen = works(model, (1,))
    rebuild(model, 1, WAYS["squared-norm"])
    found = residual_of(model, 1, seen[1], frozenset({1}))
    assert found.averaged == pytest.approx(found.rebuilt, rel=1e-5) and found.averaged > 0


def test_what_comes_back_as_it_was_leaves_nothing() -> None:
    model = trained()
    found = residual_of(model, 2, works(model, (2,))[2], frozenset({2}))
    assert found.rebuilt == 0 and found.averaged > 0


def test_a_stage_that_is_left_out_adds_nothing() -> None:
    model = trained()
    seen = works(model, (2,))
    model.omitted = (2,)
    found = residual_of(model, 2, seen[2], frozenset({2}))
    assert found.rebuilt == pytest.approx(found.own, rel=1e-6)
    assert works(model, (2, 3)).keys() == {3}


def test_a_model_with_swapped_routes_is_looked_at_in_normal_order() -> None:
    model = WholeModel(replace(MICRO, name="swapped"), corpus(), 3, swap=True)
    assert list(works(model, (1, 2))) == [1, 2]
