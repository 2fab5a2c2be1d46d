"""Encodings against numbers worked out by hand, and their bounds on random ones."""

from __future__ import annotations

import struct

import pytest
import torch

from ftnode.models.encoded_size import BLOCK_NUMBERS, ENCODINGS, encoded_bytes
from ftnode.models.encoding import decode, encode

SIZES = (0, 1, 255, 256, 257, 1000)


def numbers(n: int) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("n", SIZES)
def test_sizes_are_those_announced(encoding: str, n: int) -> None:
    content = encode(numbers(n), encoding)
    assert len(content) == encoded_bytes(n, encoding)
    back = decode(content, encoding, n)
    assert back.shape == (n,) and back.dtype == torch.float32


def test_bytes_per_number() -> None:
    assert [encoded_bytes(512, encoding) for encoding in ENCODINGS] == [2048, 1024, 520]
    assert encoded_bytes(257, "int8") == 257 + 2 * 4


def test_raw_is_exact() -> None:
    assert torch.equal(decode(encode(numbers(1000), "raw"), "raw", 1000), numbers(1000))


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_float64_stays_float64(encoding: str) -> None:
    """Raw keeps all bits; the others are of float32 numbers in either precision, but decode to what was encoded."""
    flat = numbers(1000).double() / 3
    content = encode(flat, encoding)
    assert len(content) == encoded_bytes(1000, encoding, 8)
    back = decode(content, encoding, 1000, torch.float64)
    assert back.dtype == torch.float64
    if encoding == "raw":
        assert len(content) == 8000 and torch.equal(back, flat)
    else:
        assert content == encode(flat.float(), encoding)
        assert torch.equal(back, decode(content, encoding, 1000).double())


def test_bfloat16_rounds_to_nearest() -> None:
    back = decode(encode(torch.tensor([1.0, 1.0 + 2**-8 + 2**-12, -3.0e38]), "bfloat16"), "bfloat16", 3)
    assert back[:2].tolist() == [1.0, 1.0 + 2**-7]
    assert torch.isfinite(back).all()


def test_int8_by_hand() -> None:
    """A block whose largest number is 12.7 has steps of 0.1: 1.26 is 13 of them."""
    content = encode(torch.tensor([12.7, -12.7, 1.26, 0.0]), "int8")
    assert struct.unpack("<f4b", content) == (pytest.approx(0.1), 127, -127, 13, 0)
    assert decode(content, "int8", 4).tolist() == pytest.approx([12.7, -12.7, 1.3, 0.0])


def test_int8_is_off_by_half_a_step_of_its_own_block() -> None:
    flat = numbers(1000)
    flat[:BLOCK_NUMBERS] *= 1000
    off = (decode(encode(flat, "int8"), "int8", 1000) - flat).abs()
    for block, piece in zip(off.split(BLOCK_NUMBERS), flat.split(BLOCK_NUMBERS)):
        step = float(piece.abs().max()) / 127
        assert step / 100 < float(block.max()) <= step * 0.5001


def test_zero_and_tiny_blocks_stay_near_zero() -> None:
    for tiny in (0.0, 1e-45, 1e-40):
        back = decode(encode(torch.full((300,), tiny), "int8"), "int8", 300)
        assert torch.isfinite(back).all() and float(back.abs().max()) <= 2e-40


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="one of"):
        encode(numbers(4), "zip")
    with pytest.raises(ValueError, match="float32"):
        encode(numbers(4).half(), "raw")
    with pytest.raises(ValueError, match="not finite"):
        encode(torch.tensor([1e300], dtype=torch.float64), "int8")
    with pytest.raises(ValueError, match="32 bytes, not 16"):
        decode(encode(numbers(4), "raw"), "raw", 4, torch.float64)
    with pytest.raises(ValueError, match="flat"):
        encode(numbers(4).view(2, 2), "raw")
    with pytest.raises(ValueError, match="not finite"):
        encode(torch.tensor([1.0, float("nan")]), "int8")
    with pytest.raises(ValueError, match="bytes"):
        decode(b"\0" * 7, "bfloat16", 4)
    with pytest.raises(ValueError, match="cannot"):
        encoded_bytes(-1, "raw")


def test_the_result_has_memory_of_its_own() -> None:
    content = bytearray(encode(numbers(8), "raw"))
    back = decode(content, "raw", 8)
    content[:] = bytes(len(content))
    assert torch.equal(back, numbers(8))
