"""Numbers that all replicas must agree on, whatever machine each has."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

import pytest
import torch

from ftnode.models import tensors
from ftnode.models.tensors import squared_norm


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 1000, 786_433, tensors.PASS_NUMBERS + 5])
def test_the_norm_is_the_same_to_the_bit_with_any_number_of_threads(count: int, dtype: torch.dtype) -> None:
    """A dot product's is not: its order follows the threads."""
    flat = torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=dtype)
    before, found = flat.clone(), set()
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        found.add(squared_norm(flat))
    assert len(found) == 1 and torch.equal(flat, before)
    assert found.pop() == pytest.approx(fsum(float(x) ** 2 for x in flat.tolist()), rel=1e-13)
