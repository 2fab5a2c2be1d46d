"""Adam against torch's."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import Tensor

from ftnode.models.adam import adam
from ftnode.models.optimiser import OptimiserConfig, Parameter, Turn, joined
from ftnode.models.tensors import PASS_NUMBERS


def parameter(rows: Tensor) -> Parameter:
    """Of rows [4, ...]: weights, both moments, gradient."""
    return Parameter("adam", rows[0], rows[3], (rows[1], rows[2]))


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_adam_equals_torch(weight_decay: float) -> None:
    config = OptimiserConfig(1e-3, 0, weight_decay=weight_decay, decay="constant")
    generator = torch.Generator().manual_seed(0)
    shape = PASS_NUMBERS // 64 + 16, 64  # two pieces
    rows = torch.zeros(4, *shape)
    rows[0] = torch.randn(shape, generator=generator)
    theirs = torch.nn.Parameter(rows[0].clone())
    reference = torch.optim.AdamW(
        [theirs], lr=1e-3, betas=(config.beta1, config.beta2), eps=config.eps, weight_decay=weight_decay
    )
    for count in range(1, 21):
        rows[3] = torch.randn(shape, generator=generator)
        theirs.grad = rows[3].clone()
        reference.step()
        adam(parameter(rows), config, Turn(count, count, 1.0))
    torch.testing.assert_close(rows[0], theirs.detach(), rtol=1e-6, atol=1e-6)


def test_adam_does_not_depend_on_threads_or_on_where_pieces_end() -> None:
    config, turn = OptimiserConfig(1e-3, 100, weight_decay=0.1), Turn(3, 3, 1.1)
    size = 3 * PASS_NUMBERS // 2
    rows = torch.randn(4, size, generator=torch.Generator().manual_seed(1))
    rows[2].abs_()
    whole, halves = rows.clone(), rows.clone()
    adam(parameter(whole), config, turn)
    adam(parameter(halves[:, : size // 3]), config, turn)
    adam(parameter(halves[:, size // 3 :]), config, turn)
    assert not torch.equal(whole[0], rows[0])
    assert torch.equal(whole, halves)


def test_norms_do_not_decay() -> None:
    config = OptimiserConfig(1e-3, 100, weight_decay=0.1)
    for shape, decays in (((8,), False), ((4, 2), True)):
        rows = torch.zeros(4, *shape)
        rows[0] = 1.0
        adam(parameter(rows), config, Turn(1, 1, 1.0))
        assert bool((rows[0] < 1.0).all()) == decays


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_neighbours_in_memory_are_updated_together_and_as_they_would_be_alone(weight_decay: float) -> None:
    """Also where one of them is a norm, and with a gap, which nobody touches."""
    config, turn = OptimiserConfig(1e-3, 100, weight_decay=weight_decay), Turn(3, 3, 1.1)
    shapes = [(5, 4), (7,), (3, 3), (2, 2)]
    places, at = [], 0
    for number, shape in enumerate(shapes):
        at += 2 if number == 3 else 0
        places.append(slice(at, at := at + prod(shape)))
    alone, together = (torch.rand(4, at, generator=torch.Generator().manual_seed(1)) for _ in range(2))

    def named(rows: Tensor) -> list[Parameter]:
        return [
            Parameter("adam", *(rows[row, place].view(shape) for row in (0, 3)),
                      tuple(rows[row, place].view(shape) for row in (1, 2)))
            for place, shape in zip(places, shapes)
        ]  # fmt: skip

    groups = joined(named(together))
    assert [each.weights.numel() for each in groups] == [36, 4]
    for each in named(alone):
        adam(each, config, turn)
    for each in groups:
        adam(each, config, turn)
    assert torch.equal(alone, together)


def test_what_looks_at_a_whole_matrix_stays_apart() -> None:
    rows = torch.zeros(3, 8)
    several = [
        Parameter(rule, rows[0, part].view(2, 2), rows[1, part].view(2, 2), (rows[2, part].view(2, 2),))
        for rule, part in (("muon", slice(0, 4)), ("muon", slice(4, 8)))
    ]
    assert joined(several) == several
