"""Numbers that all replicas must agree on, whatever machine each has."""

from __future__ import annotations

from collections.abc import Iterator
from math import fsum

import pytest
import torch

from ftnode.models import tensors
from ftnode.models.tensors import PASS_NUMBERS, bits_digest, squared_norm
from tests.models.tiny import DEVICE


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


COUNTS = [0, 1, 5, PASS_NUMBERS, PASS_NUMBERS + 3, 3 * PASS_NUMBERS + 1]


def numbers(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(count), dtype=dtype)


@pytest.mark.parametrize("count", COUNTS)
def test_many_pieces_at_once_come_to_the_same_bits(count: int) -> None:
    """A card takes them so."""
    flat = numbers(count).to(DEVICE[0])
    one_by_one = squared_norm(flat), bits_digest(flat), bits_digest(flat, 0.3)
    turn = 2 * PASS_NUMBERS
    together = torch.cat([tensors._sums_of_squares(part) for part in torch.split(flat, turn)]).tolist()
    total = 0.0
    for number in together:
        total += number
    assert total == one_by_one[0]
    keys = tensors._keys(flat.device)
    for factor, digest in zip((1.0, 0.3), one_by_one[1:]):
        sums = torch.cat([tensors._bit_sums(part * factor, keys) for part in torch.split(flat, turn)])
        alone = torch.cat([tensors._bit_sums(part * factor, keys) for part in torch.split(flat, PASS_NUMBERS)])
        assert torch.equal(sums, alone) and len(digest) == 32


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_digest_knows_each_bit_and_each_place(dtype: torch.dtype) -> None:
    flat = numbers(PASS_NUMBERS + 7, dtype)
    found = {bits_digest(flat), bits_digest(flat[1:]), bits_digest(flat, 0.5)}
    for place in (0, 1, PASS_NUMBERS - 1, PASS_NUMBERS, PASS_NUMBERS + 6):
        changed = flat.clone()
        changed[place] = torch.nextafter(changed[place], torch.tensor(9.0, dtype=dtype))
        found.add(bits_digest(changed))
    swapped = flat.clone()
    swapped[[3, 4]] = swapped[[4, 3]]
    found.add(bits_digest(swapped))
    signed = torch.zeros(3, dtype=dtype)
    found |= {bits_digest(signed), bits_digest(-signed)}
    assert len(found) == 3 + 5 + 1 + 2


def test_the_digest_of_a_clipped_gradient_is_that_of_the_product() -> None:
    flat = numbers(1000)
    assert bits_digest(flat.to(DEVICE[0]), 0.25) == bits_digest(flat * 0.25)
    assert squared_norm(flat.to(DEVICE[0])) == squared_norm(flat)


def test_the_digest_is_known() -> None:
    """All replicas of a run must have the same: a change of it is another version's."""
    assert bits_digest(torch.arange(10, dtype=torch.float32)) == KNOWN_DIGEST


KNOWN_DIGEST = "30aeb88924da20b391dcce6d571e72e5"
