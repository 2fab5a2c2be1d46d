"""Which way an activation points: a few numbers that tell a turned one, or noise, from others of its stage."""

from __future__ import annotations

from math import hypot

import pytest
import torch

from ftnode.models.direction import LARGEST, NUMBERS, direction, rounded

WIDTHS = (16, 64, 768)


def cosine(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    return sum(a * b for a, b in zip(one, other)) / (hypot(*one) * hypot(*other))


def way(x: torch.Tensor) -> tuple[int, ...]:
    return rounded(direction(x).tolist())


@pytest.mark.parametrize("width", WIDTHS)
def test_what_all_tokens_share_gives_the_way(width: int) -> None:
    chance = torch.Generator().manual_seed(width)
    shared = torch.randn(width, generator=chance)
    x, y = (shared + torch.randn(2, 64, width, generator=chance) for _ in range(2))
    assert cosine(way(x), way(y)) > 0.95
    assert cosine(way(x), way(1000.0 * y)) > 0.95 and cosine(way(x), way(-y)) < -0.95


def test_noise_of_the_same_size_points_anywhere() -> None:
    chance = torch.Generator().manual_seed(1)
    x = 1.0 + torch.randn(4, 64, 64, generator=chance)
    far = [cosine(way(x), way(torch.randn(4, 64, 64, generator=chance))) for _ in range(200)]
    assert sum(abs(each) < 0.25 for each in far) > 100 and max(far) < 0.95


def test_it_is_told_in_bytes_and_without_a_length_it_is_zeros() -> None:
    found = way(torch.randn(3, 5, 64))
    assert len(found) == NUMBERS and all(isinstance(each, int) and abs(each) <= LARGEST for each in found)
    assert hypot(*found) == pytest.approx(LARGEST, rel=0.02)
    assert way(torch.zeros(3, 5, 64)) == (0,) * NUMBERS == rounded([float("inf")] * NUMBERS)


def test_receivers_with_other_precisions_agree() -> None:
    x = torch.randn(2, 8, 64, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    assert max(abs(a - b) for a, b in zip(way(x), way(x.float()))) <= 1
