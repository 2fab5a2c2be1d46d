"""Muon against torch's and against the singular values; and that all machines must find the same bits."""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor

from ftnode.models import muon as module
from ftnode.models.muon import COEFFICIENTS, ITERATIONS, muon, orthogonalised, scratch_bytes
from ftnode.models.optimiser import OptimiserConfig, Parameter, Turn

CONFIG = OptimiserConfig(1e-2, 0, weight_decay=0.1, decay="constant", kind="muon")
SHAPES = [(24, 24), (40, 16), (16, 40)]


def matrix(shape: tuple[int, int], seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """With singular values from 1 down to 0.001."""
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(side, side, generator=generator))[0] for side in shape)
    count = min(shape)
    values = torch.logspace(0, -3, count)
    return (left[:, :count] * values @ right[:count]).to(dtype)


def polynomial(values: Tensor) -> Tensor:
    """What the iteration makes of singular values."""
    a, b, c = COEFFICIENTS
    for _ in range(ITERATIONS):
        values = a * values + b * values**3 + c * values**5
    return values


@pytest.mark.parametrize("shape", SHAPES)
def test_muon_is_torchs_but_for_the_rounding(shape: tuple[int, int]) -> None:
    """torch's computes in bfloat16: so far apart, and no farther."""
    ours, momentum = torch.ones(shape), torch.zeros(shape)
    theirs = torch.nn.Parameter(torch.ones(shape))
    reference = torch.optim.Muon([theirs], lr=1e-2, weight_decay=0.1, adjust_lr_fn="match_rms_adamw")
    for step in range(1, 11):
        gradient = matrix(shape, step)
        theirs.grad = gradient.clone()
        reference.step()
        muon(Parameter("muon", ours, gradient, (momentum,)), CONFIG, Turn(step, step, 1.0))
    way = (ours - 1).norm()
    assert (ours - theirs.detach()).norm() < 0.02 * way
    torch.testing.assert_close(momentum, reference.state[theirs]["momentum_buffer"], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", SHAPES)
def test_singular_values_become_about_one(shape: tuple[int, int], dtype: torch.dtype) -> None:
    given = matrix(shape, dtype=dtype)
    before = given.clone()
    left, values, right = torch.linalg.svd(given.double(), full_matrices=False)
    expected = left * polynomial(values / values.norm()) @ right
    found = orthogonalised(given)
    assert torch.equal(given, before) and found.shape == given.shape
    assert float((found - expected).norm() / expected.norm()) < 1e-3
    large = torch.linalg.svdvals(found)[: min(shape) // 2]
    assert float(large.min()) > 0.65 and float(large.max()) < 1.21


def in_whole_numbers(left: Tensor, right: Tensor) -> Tensor:
    """The product of multiples of STEP, by Python's whole numbers, whose sums are exact in any order."""
    ones = [np.array([[int(number / module.STEP) for number in row] for row in each.tolist()], dtype=object)
            for each in (left, right)]  # fmt: skip
    return torch.tensor((ones[0] @ ones[1]).astype(float) * module.STEP**2, dtype=torch.float64)


def by_whole_numbers(given: Tensor, product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The iteration once more, with another way to multiply. Wide matrices only."""
    a, b, c = COEFFICIENTS
    rounded = module._rounded
    x = rounded(given.double() * (1 / sqrt(module.squared_norm(given.reshape(-1)))))
    for _ in range(ITERATIONS):
        gram = rounded(product(x, x.T))
        factor = rounded(product(gram, gram) * c + gram * b)
        x = rounded(product(factor, x) + x * a)
    return x


def test_products_are_exact_so_that_their_order_cannot_show() -> None:
    given = matrix((16, 40))
    assert torch.equal(by_whole_numbers(given, in_whole_numbers), orthogonalised(given))
    turned = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    other = orthogonalised(given[:, turned].contiguous())
    assert torch.equal(other, orthogonalised(given)[:, turned]), "columns in another order are added in another order"


def test_factors_with_more_digits_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "STEP", 2.0**-50)
    given = matrix((16, 40))
    assert not torch.equal(by_whole_numbers(given, in_whole_numbers), orthogonalised(given))


def test_no_sum_leaves_the_digits_of_a_float64() -> None:
    """Rows and columns are no longer than the largest singular value, which bounds every partial sum of a product."""
    a, b, c = COEFFICIENTS
    values = torch.linspace(0, 1.21, 100_001, dtype=torch.float64)
    after = a * values + b * values**3 + c * values**5
    assert float(after.min()) >= 0 and float(after.max()) < 1.21, "the next iteration begins in the same range"
    for sums in (values**2, values**4, (b * values**2 + c * values**4) * 1.21):
        assert float(sums.abs().max()) < 2.0**53 * module.STEP**2


@pytest.mark.parametrize("threads", [2, 4])
def test_threads_do_not_show(threads: int) -> None:
    given, before = matrix((130, 300)), torch.get_num_threads()
    torch.set_num_threads(1)
    alone = orthogonalised(given)
    torch.set_num_threads(threads)
    try:
        assert torch.equal(orthogonalised(given), alone)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("shape", SHAPES)
def test_an_update_is_as_large_as_adams(shape: tuple[int, int]) -> None:
    config = OptimiserConfig(1e-2, 0, decay="constant", kind="muon", matrix_learning_rate=0.5)
    weights, momentum = torch.zeros(shape), torch.zeros(shape)
    gradient = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    muon(Parameter("muon", weights, gradient, (momentum,)), config, Turn(1, 1, 1.1))
    assert float(weights.square().mean().sqrt()) == pytest.approx(0.2 * 0.5 * 1.1, rel=0.15)


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e15])
def test_gradients_of_nothing_and_of_too_much(size: float) -> None:
    weights, momentum = torch.ones(8, 12), torch.zeros(8, 12)
    for step in (1, 2):
        gradient = size * torch.randn(8, 12, generator=torch.Generator().manual_seed(step))
        muon(Parameter("muon", weights, gradient, (momentum,)), CONFIG, Turn(step, step, 1.0))
    assert torch.isfinite(weights).all() and float((weights - 1).abs().max()) < 0.05
    if size < 1:
        torch.testing.assert_close(weights, torch.full((8, 12), (1 - 1e-3) ** 2), rtol=1e-6, atol=0), "decay alone"


@pytest.mark.parametrize("shape", [(560, 560), (300, 1200), (1200, 300)])
def test_an_update_takes_the_memory_that_was_planned(shape: tuple[int, int]) -> None:
    weights, momentum, gradient = (torch.ones(shape) for _ in range(3))
    one = Parameter("muon", weights, gradient, (momentum,))
    muon(one, CONFIG, Turn(1, 1, 1.0))
    with torch.profiler.profile(profile_memory=True) as profile:
        muon(one, CONFIG, Turn(2, 2, 1.0))
    now = most = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    assert abs(most - scratch_bytes(shape, 4)) < 64, "but for single numbers"
