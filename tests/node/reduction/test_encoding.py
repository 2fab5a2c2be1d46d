"""Numbers of a sum as they travel: near enough, right in the mean, the same bytes each time, and no others accepted."""

from __future__ import annotations

import numpy as np
import pytest

from ftnode.node.reduction.encoding import BLOCK, SCALE_BYTES, SCALE_MAX, Blocks, Exact, Piece, encoding_of
from ftnode.protocol.words.errors import PeerError
from tests.node.reduction.spoilt_encodings import Hasty, Scaleless

KEY = bytes(range(16))
REACH = {"int8": 127, "int4": 7}
NAMES = sorted(REACH)
LENGTHS = [1, BLOCK - 1, BLOCK, BLOCK + 1, 1000]


def normal(count: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(count).astype(dtype)


def there_and_back(encoding: Blocks, numbers: np.ndarray, key: bytes = KEY, chunk: int = 0) -> np.ndarray:
    content = encoding.encode(numbers, key, chunk)
    assert len(content) == encoding.size(len(numbers))
    encoding.check(content)
    return encoding.decode(content, len(numbers))


def largest_of_blocks(numbers: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-len(numbers) // BLOCK) * BLOCK)
    padded[: len(numbers)] = np.abs(numbers)
    return np.repeat(padded.reshape(-1, BLOCK).max(1), BLOCK)[: len(numbers)]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("name", NAMES)
def test_no_number_is_wrong_by_more_than_a_scale_of_its_block(name: str, count: int, dtype: type) -> None:
    numbers = (normal(count) * np.logspace(-12, 12, count)).astype(dtype)
    found = there_and_back(Blocks(name, numbers.itemsize), numbers)
    assert found.dtype == dtype and len(found) == count
    assert (np.abs(found - numbers) <= 1.01 * largest_of_blocks(numbers) / REACH[name]).all()


@pytest.mark.parametrize("name", NAMES)
def test_what_is_far_below_a_scale_is_right_in_the_mean(name: str) -> None:
    """Nearest levels would make nothing of it, in every step."""
    numbers = np.full(BLOCK, 0.01 / REACH[name], np.float32)
    numbers[0] = 1
    encoding = Blocks(name, 4)
    mean = np.mean([there_and_back(encoding, numbers, chunk=chunk)[1:].mean() for chunk in range(500)])
    assert mean == pytest.approx(numbers[1], rel=0.1)


@pytest.mark.parametrize("name", NAMES)
def test_zeros_and_numbers_too_small_for_a_scale_are_zero(name: str) -> None:
    numbers = np.zeros(3 * BLOCK, np.float32)
    numbers[BLOCK:] = 1e-40
    numbers[-1] = -0.0
    found = there_and_back(Blocks(name, 4), numbers)
    assert found.tobytes() == bytes(4 * len(numbers)), "and no zero has a sign"
    numbers[0] = -1
    assert not there_and_back(Blocks(name, 4), numbers)[1:].any()


@pytest.mark.parametrize("poison", [np.nan, -np.nan, np.inf, -np.inf, 3e38, -3e38])
@pytest.mark.parametrize("name", NAMES)
def test_a_number_that_is_none_makes_its_block_larger_than_any_norm(name: str, poison: float) -> None:
    numbers = normal(3 * BLOCK)
    numbers[BLOCK + 5] = poison
    found = there_and_back(Blocks(name, 4), numbers).astype(np.float64)
    assert (found[BLOCK : 2 * BLOCK] >= (REACH[name] - 1) * SCALE_MAX).all()
    assert (found**2).sum() > float(np.finfo(np.float32).max)
    assert np.abs(found[:BLOCK]).max() < 10 > np.abs(found[2 * BLOCK :]).max()


def test_the_sign_and_payload_of_what_is_no_number_make_no_difference() -> None:
    """CUDA's own NaN has all bits set but one."""
    numbers = normal(BLOCK)
    numbers[0:1].view(np.uint32)[:] = 0x7FFFFFFF
    assert (there_and_back(Blocks("int8", 4), numbers) > 1e20).all()
    numbers[0:1].view(np.uint32)[:] = 0xFFFFFFFF
    assert (there_and_back(Blocks("int8", 4), numbers) > 1e20).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", NAMES)
def test_no_float_rounds_a_decoded_number(name: str, dtype: type) -> None:
    """So that no machine, and no way of multiplying, has other bits. Each scale that there may be, and each level."""
    scales = np.array([0, *range(0x0080, 0x5F01)], "<u2")
    levels = np.arange(256, dtype=np.uint8) if name == "int8" else np.arange(256, dtype=np.uint8)[: BLOCK // 2]
    for part in np.split(levels, len(levels) // (BLOCK if name == "int8" else BLOCK // 2)):
        content = memoryview(scales.tobytes() + np.tile(part, len(scales)).tobytes())
        encoding = Blocks(name, np.dtype(dtype).itemsize)
        encoding.check(content)
        found = encoding.decode(content, BLOCK * len(scales)).reshape(len(scales), BLOCK).astype(np.longdouble)
        whole = part.astype(int) - 128 if name == "int8" else np.concatenate((part & 15, part >> 4)).astype(int) - 8
        exact = (scales.astype(np.uint32) << 16).view(np.float32).astype(np.longdouble)[:, None] * whole
        assert np.array_equal(found, exact)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F80, 0xFF80, 0xBF80, 0x8000, 0x0001, 0x007F, 0x5F01, 0xFFFF])
@pytest.mark.parametrize("name", NAMES)
def test_scales_that_are_none_are_an_offence(name: str, bits: int) -> None:
    """No number, infinite, negative, a zero with a sign, denormal, too large."""
    encoding = Blocks(name, 4)
    content = bytearray(encoding.encode(normal(3 * BLOCK), KEY, 0))
    encoding.check(memoryview(content))
    content[SCALE_BYTES : 2 * SCALE_BYTES] = bits.to_bytes(2, "little")
    with pytest.raises(PeerError):
        encoding.check(memoryview(content))


@pytest.mark.parametrize("name", NAMES)
def test_any_levels_are_numbers(name: str) -> None:
    encoding = Blocks(name, 4)
    for fill in (0, 0xFF):
        content = bytearray([fill]) * encoding.size(BLOCK)
        content[:SCALE_BYTES] = (0x5F00).to_bytes(2, "little")
        encoding.check(memoryview(content))
        assert np.isfinite(encoding.decode(memoryview(content), BLOCK)).all()


def piece_of(name: str, numbers: np.ndarray, sum_name: tuple[object, ...] = ("run", 1, 7, 0)) -> Piece:
    return Piece(memoryview(numbers.tobytes()), encoding_of(name, numbers.itemsize), sum_name)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_numbers_of_the_same_step_are_the_same_bytes(name: str) -> None:
    numbers = normal(1000)
    first = bytes(piece_of(name, numbers).encode(0, numbers, 2))
    piece_of(name, normal(1000, 3)).encode(0, normal(1000, 3), 1)
    assert bytes(piece_of(name, numbers).encode(0, numbers, 2)) == first
    others = [("run", 1, 8, 0), ("run", 1, 7, 1), ("run", 2, 7, 0), ("other", 1, 7, 0)]
    found = {bytes(piece_of(name, numbers, other).encode(0, numbers, 2)) for other in others}
    found |= {bytes(piece_of(name, numbers).encode(0, numbers, whose)) for whose in (-1, 0, 1)}
    assert len(found | {first}) == 8


@pytest.mark.parametrize("name", NAMES)
def test_a_rounding_that_depends_on_the_time_is_found(name: str) -> None:
    numbers = normal(1000)
    assert len({bytes(Hasty(name, 4).encode(numbers, KEY, 0)) for _ in range(3)}) > 1


def test_a_decoder_that_ignores_scales_is_found() -> None:
    numbers = normal(BLOCK)
    wrong = there_and_back(Scaleless("int8", 4), numbers)
    assert not (np.abs(wrong - numbers) <= 1.01 * largest_of_blocks(numbers) / REACH["int8"]).all()


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize("name", ["exact", *NAMES])
def test_chunks_are_where_positions_say(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ftnode.node.reduction.encoding.CHUNK_BYTES", 512)
    numbers = normal(count)
    piece, at, sizes = piece_of(name, numbers), 0, []
    while at < piece.bytes:
        assert (piece.begins(at) and not piece.begins(at + 1)) or piece.end(at) == at + 1
        content = piece.encode(at, piece.chunk(at), 0)
        assert len(content) == piece.end(at) - at
        assert len(piece.decode(at, content)) == len(piece.chunk(at))
        sizes.append(len(piece.chunk(at)))
        at = piece.end(at)
    assert sum(sizes) == count and at == piece.bytes and piece.begins(at)
    assert not piece.begins(-1) and not piece.begins(at + 1)


def test_exact_is_what_lies_in_memory() -> None:
    numbers = normal(100)
    piece = piece_of("exact", numbers)
    assert bytes(piece.encode(0, piece.chunk(0), 0)) == numbers.tobytes() and piece.bytes == numbers.nbytes
    assert Exact(8).size(3) == 24


@pytest.mark.parametrize(("name", "share"), [("int8", 0.26), ("int4", 0.135)])
def test_what_it_saves(name: str, share: float) -> None:
    assert Blocks(name, 4).size(1 << 16) <= share * 4 * (1 << 16)
