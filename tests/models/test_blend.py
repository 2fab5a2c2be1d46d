"""The streaming blend against numpy; near misses must differ, or the comparison would prove nothing."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch

from ftnode.models.blend import Blend
from ftnode.models.faults import Misuse, StageFault
from ftnode.protocol.words.donor_shares import shares

SIZE, CHUNK = 1000, 64
OMEGAS = (0.3, 1.7)


def donors() -> list[torch.Tensor]:
    return [torch.randn(SIZE, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2)]


def streamed(order_seed: int, given: tuple[float, ...]) -> torch.Tensor:
    flat = torch.full((SIZE,), float("nan"))
    blend = Blend(flat, CHUNK, stage=2)
    pieces = [
        (index, share, chunk)
        for share, donor in zip(given, donors())
        for index, chunk in enumerate(torch.split(donor, CHUNK))
    ]
    random.Random(order_seed).shuffle(pieces)
    for index, share, chunk in pieces:
        blend.add(index, share, chunk)
    blend.finish()
    return flat


@pytest.mark.parametrize("order_seed", range(3))
def test_any_interleaving_gives_the_weighted_mean(order_seed: int) -> None:
    blended = streamed(order_seed, shares(OMEGAS)).numpy()
    before, after = (donor.double().numpy() for donor in donors())
    expected = (OMEGAS[0] * before + OMEGAS[1] * after) / sum(OMEGAS)
    np.testing.assert_allclose(blended, expected, rtol=0, atol=1e-6)
    noise = np.random.default_rng(0).normal(size=SIZE)
    for wrong in (before, after, (before + after) / 2, noise):
        assert np.abs(blended - wrong).max() > 1e-2


def test_one_donor_is_an_exact_copy() -> None:
    flat = torch.empty(SIZE)
    blend = Blend(flat, CHUNK, stage=1)
    for index, chunk in enumerate(torch.split(donors()[0], CHUNK)):
        blend.add(index, 1.0, chunk)
    blend.finish()
    assert torch.equal(flat, donors()[0])


@pytest.mark.parametrize("omegas", [(0.0, 0.0), (float("nan"), 1.0), (float("inf"), 1.0), (-1.0, 3.0)])
def test_useless_norms_give_a_uniform_blend(omegas: tuple[float, float]) -> None:
    assert shares(omegas) == (0.5, 0.5)


def test_shares_add_up() -> None:
    assert shares((1.0, 3.0)) == (0.25, 0.75)
    assert shares((0.0, 2.0)) == (0.0, 1.0)


def test_missing_and_doubled_chunks_are_refused() -> None:
    chunk = torch.ones(CHUNK)
    blend = Blend(torch.empty(2 * CHUNK), CHUNK, stage=1)
    blend.add(0, 0.25, chunk)
    blend.add(0, 0.75, chunk)
    with pytest.raises(Misuse, match="chunk 0"):
        blend.add(0, 0.25, chunk)
    blend.add(1, 0.25, chunk)
    with pytest.raises(Misuse, match="incomplete"):
        blend.finish()


def test_wrong_chunks_are_refused() -> None:
    blend = Blend(torch.empty(SIZE), CHUNK, stage=1)
    with pytest.raises(Misuse, match="no chunk"):
        blend.add(blend.chunks, 1.0, torch.ones(CHUNK))
    with pytest.raises(Misuse, match="numbers"):
        blend.add(0, 1.0, torch.ones(CHUNK - 1))
    with pytest.raises(Misuse, match="share"):
        blend.add(0, float("nan"), torch.ones(CHUNK))
    poison = torch.ones(CHUNK)
    poison[5] = float("nan")
    with pytest.raises(StageFault):
        blend.add(0, 1.0, poison)
