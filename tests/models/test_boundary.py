"""Codecs of boundary tensors: sizes, errors, determinism, and a reference that decodes the bytes number by number.

Each promise is a function that raises when it is broken, so that planted bugs show that it can be.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from math import sqrt

import pytest
import torch
from torch import Tensor

from ftnode.models import boundary
from ftnode.models.boundary import BLOCK_MAX, SCALE_MAX, BoundaryCodec
from ftnode.models.faults import StageFault
from ftnode.protocol.manifest.boundary import (
    BLOCK_BITS,
    ENCODINGS,
    PLAIN_BITS,
    encoded_bytes,
    scale_bytes,
    sound_scales,
)
from ftnode.protocol.manifest.boundary import BLOCK_MAX as ANNOUNCED_BLOCK_MAX

Shape = tuple[int, int, int]
BLOCKED = tuple(BLOCK_BITS)
SHAPE: Shape = (2, 24, 384)
KEY = (7, 3, 2, 1)
LARGE: Shape = (4, 130, 512)
"""More than is encoded at a time, and no multiple of it."""


def numbers(shape: Shape = SHAPE, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def codec(encoding: str, shape: Shape = SHAPE, dither: bool = False) -> BoundaryCodec:
    return BoundaryCodec(encoding, shape, torch.device("cpu"), dither)


def encoded(made: BoundaryCodec, x: Tensor, key: tuple[int, ...] = KEY) -> bytes:
    into = torch.zeros(made.bytes, dtype=torch.uint8)
    made.encode(x, into, key)
    return into.numpy().tobytes()


def decoded(made: BoundaryCodec, content: bytes) -> Tensor:
    return made.decode(torch.tensor(list(content), dtype=torch.uint8))


def there_and_back(made: BoundaryCodec, x: Tensor, key: tuple[int, ...] = KEY) -> Tensor:
    return decoded(made, encoded(made, x, key))


@contextmanager
def planted(name: str, bug: Callable[..., object], owner: object = boundary) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, bug)
    try:
        yield
    finally:
        setattr(owner, name, before)


# -- sizes


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_sizes_are_those_that_the_manifest_announces(encoding: str) -> None:
    widths = (2, 6, 16, 30, 32, 96, 104, 128, 160, 256, 384, 1000, 1376)
    for sequences, context, width in product((1, 3), (1, 5, 12), widths):
        shape = (sequences, context, width)
        made = codec(encoding, shape, dither=True)
        rows = sequences * context
        assert made.bytes == encoded_bytes(encoding, rows, width)
        content = encoded(made, numbers(shape))
        assert len(content) == made.bytes and sound_scales(content[: scale_bytes(encoding, rows, width)])
        assert decoded(made, content).shape == shape


def test_both_sides_know_the_same_encodings() -> None:
    assert (*boundary.PLAIN, *boundary.BITS) == ENCODINGS and boundary.BITS == BLOCK_BITS
    assert {name: 8 * dtype.itemsize for name, dtype in boundary.PLAIN.items()} == PLAIN_BITS
    assert BLOCK_MAX == ANNOUNCED_BLOCK_MAX


def test_bits_per_number_by_hand() -> None:
    """A scale of 16 bits for 128 numbers is an eighth of a bit for each."""
    assert [8 * codec(encoding, (1, 64, 512)).bytes / (64 * 512) for encoding in ENCODINGS] == [
        64, 32, 16, 8.125, 4.125,
    ]  # fmt: skip


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="an encoding is one of float64, float32, bfloat16, int8, int4, not int3"):
        codec("int3")
    with pytest.raises(ValueError, match="int4 needs rows of an even number"):
        codec("int4", (1, 2, 7))


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("shape", [(0, 4, 96), (1, 1, 2), (1, 1, 96), (1, 1, 512)])
def test_no_row_and_one_row(encoding: str, shape: Shape) -> None:
    found = there_and_back(codec(encoding, shape, dither=True), numbers(shape))
    assert found.shape == shape and torch.isfinite(found).all()


def test_odd_rows_have_a_scale_for_each_number() -> None:
    x = numbers((1, 5, 7))
    assert codec("int8", (1, 5, 7)).bytes == 3 * 35
    assert torch.allclose(there_and_back(codec("int8", (1, 5, 7)), x), x, rtol=0.01)


# -- what arrives


def test_plain_encodings_are_the_numbers_themselves() -> None:
    """As boundary tensors were before there were encodings, to the byte."""
    for name, dtype in boundary.PLAIN.items():
        for dither in (False, True):
            made, x = codec(name, dither=dither), numbers()
            assert encoded(made, x) == x.to(dtype).view(torch.uint8).numpy().tobytes()
            assert torch.equal(there_and_back(made, x), x.to(dtype))


def reference(encoding: str, content: bytes, width: int) -> Tensor:
    """[rows × width] decoded number by number, from what the documentation says. Scales are exact in float64."""
    size = min(128, width & -width)
    count = 8 * len(content) // (16 + size * BLOCK_BITS[encoding])
    scales = [scale_of(content[2 * block : 2 * block + 2]) for block in range(count)]
    levels = content[2 * count :]
    found: list[float] = []
    signs = int.from_bytes(hashlib.blake2b(b"ftnode/boundary/signs", digest_size=16).digest(), "little")
    for block, scale in enumerate(scales):
        if encoding == "int8":
            found += [(level - 128) * scale for level in levels[block * size : (block + 1) * size]]
            continue
        packed = levels[block * size // 2 : (block + 1) * size // 2]
        turned = [((level & 15) - 7.5) * scale for level in packed] + [((level >> 4) - 7.5) * scale for level in packed]
        for i in range(size):
            total = sum(-value if (i & j).bit_count() % 2 else value for j, value in enumerate(turned))
            found.append(-total if signs >> i & 1 else total)
    return torch.tensor(found, dtype=torch.float64)


def scale_of(two: bytes) -> float:
    bits = int.from_bytes(two, "little")
    return float(torch.tensor([bits], dtype=torch.int32).to(torch.int16).view(torch.bfloat16))


@pytest.mark.parametrize("encoding", BLOCKED)
@pytest.mark.parametrize("width", [2, 96, 128, 160, 384])
@pytest.mark.parametrize("dither", [False, True])
def test_the_bytes_mean_what_the_reference_reads(encoding: str, width: int, dither: bool) -> None:
    made = codec(encoding, (2, 3, width), dither)
    content = encoded(made, numbers((2, 3, width)))
    found = decoded(made, content).double().view(-1)
    assert torch.allclose(found, reference(encoding, content, width), rtol=1e-5, atol=1e-6)


def check_errors(encoding: str, dither: bool) -> None:
    """A number is at most a level away, half a level without dither; all together they are as far as uniform
    rounding errors make them: the levels' distance over √12, over √6 with dither."""
    x = numbers(LARGE) * torch.logspace(-4, 4, LARGE[1])[:, None]
    blocks = x.view(-1, 128).double()
    error = there_and_back(codec(encoding, LARGE, dither), x).view(-1, 128).double() - blocks
    if encoding == "int8":
        steps = blocks.abs().amax(1) / 127
        assert (error.abs() <= (1.01 if dither else 0.505) * steps[:, None]).all()
    else:
        turned = blocks @ boundary._rotation(128).double() / sqrt(128)
        steps = turned.abs().amax(1) / 7.5
    wanted = steps / sqrt(6 if dither else 12)
    assert 0.95 < float((error.square().mean(1).sqrt() / wanted).mean()) < 1.05


@pytest.mark.parametrize("encoding", BLOCKED)
@pytest.mark.parametrize("dither", [False, True])
def test_errors_are_those_of_rounding(encoding: str, dither: bool) -> None:
    check_errors(encoding, dither)


@pytest.mark.parametrize("encoding", BLOCKED)
def test_a_decoder_that_ignores_the_scales_is_noticed(encoding: str) -> None:
    """A planted bug: the numbers of all blocks get the scale of the first, and the tensor arrives all the same."""
    honest = BoundaryCodec._decode_into

    def ignoring(made: BoundaryCodec, into: Tensor, scales: Tensor, packed: Tensor) -> None:
        honest(made, into, scales[:1].expand_as(scales), packed)

    with planted("_decode_into", ignoring, BoundaryCodec), pytest.raises(AssertionError):
        check_errors(encoding, dither=False)


def test_a_rotation_helps_against_outliers() -> None:
    """One channel in a hundred is fifty times as large, as in large models. What the others lose is a tenth of what
    they lose without rotation, and int8 does not need it."""
    x = numbers(LARGE)
    x[..., ::100] *= 50
    usual = torch.ones(LARGE[2], dtype=torch.bool)
    usual[::100] = False

    def loss(made: BoundaryCodec) -> float:
        return float((there_and_back(made, x) - x)[..., usual].square().mean())

    unturned = codec("int4", LARGE)
    unturned._rotation = None
    assert loss(codec("int4", LARGE)) < 0.1 * loss(unturned)
    assert loss(codec("int8", LARGE)) < 0.02


@pytest.mark.parametrize("encoding", BLOCKED)
def test_zeros_and_hardly_anything_stay_what_they_are(encoding: str) -> None:
    made = codec(encoding, (1, 4, 256), dither=True)
    assert not there_and_back(made, torch.zeros(1, 4, 256)).any()
    found = there_and_back(made, numbers((1, 4, 256)) * 1e-41)
    assert torch.isfinite(found).all() and float(found.abs().max()) < 1e-36
    mixed = numbers((1, 4, 256))
    mixed[:, 1] = 0
    assert not there_and_back(made, mixed)[:, 1].any(), "no row learns of another through a scale"


@pytest.mark.parametrize("encoding", BLOCKED)
def test_a_row_depends_on_itself_alone(encoding: str) -> None:
    """Otherwise a token could see the ones after it, through a scale."""
    made, x, other = codec(encoding, (1, 3, 96)), numbers((1, 3, 96)), numbers((1, 3, 96), 1)
    other[:, 1] = x[:, 1]
    assert torch.equal(there_and_back(made, x)[:, 1], there_and_back(made, 100 * other / 100)[:, 1])


@pytest.mark.parametrize("encoding", BLOCKED)
def test_numbers_are_encoded_soundly_or_not_at_all(encoding: str) -> None:
    """As long as scales are below SCALE_MAX, nothing overflows; beyond, the step is spoilt here and no peer is to
    blame. float32 ends at 3.4e38."""
    made, x = codec(encoding, (1, 2, 128)), numbers((1, 2, 128))
    content = encoded(made, x * 1e29)
    assert sound_scales(content[: scale_bytes(encoding, 2, 128)])
    assert torch.allclose(decoded(made, content), x * 1e29, atol=5e28)
    for factor in (1e34, 5e37):
        with pytest.raises(StageFault, match=f"too large for {encoding}"):
            encoded(made, x * factor)


def test_the_largest_scale_that_is_made_is_the_largest_that_is_taken() -> None:
    bits = torch.tensor([SCALE_MAX]).to(torch.bfloat16).view(torch.uint8).numpy().tobytes()
    assert not sound_scales(bits)
    below = (int.from_bytes(bits, "little") - 1).to_bytes(2, "little")
    assert sound_scales(below) and scale_of(below) < SCALE_MAX


# -- what hostile senders write


@pytest.mark.parametrize("encoding", BLOCKED)
@pytest.mark.parametrize("level", [0x00, 0x80, 0xFF])
def test_sound_scales_mean_finite_numbers_whatever_the_levels(encoding: str, level: int) -> None:
    made = codec(encoding, (1, 4, 128))
    for bits in (0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x70FF):
        scales = bits.to_bytes(2, "little") * 4
        assert sound_scales(scales)
        content = scales + bytes([level]) * (made.bytes - len(scales))
        assert torch.isfinite(decoded(made, content)).all()


@pytest.mark.parametrize("encoding", BLOCKED)
@pytest.mark.parametrize("bits", [0x7F80, 0x7FC0, 0xFF80, 0xFFFF, 0x7F7F, 0xBF80])
def test_no_bytes_break_the_decoder(encoding: str, bits: int) -> None:
    """These do not pass the sender's link. If they did, the stage would look at the numbers."""
    made = codec(encoding, (1, 4, 128))
    scales = bits.to_bytes(2, "little") * 4
    assert not sound_scales(scales)
    assert decoded(made, scales + bytes(made.bytes - len(scales))).shape == (1, 4, 128)


# -- the same bytes again


def named(content: bytes) -> str:
    """What is compared in place of bytes: pytest takes minutes to show where a megabyte differs."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def check_same_bytes(encoding: str) -> None:
    """Whenever they are made, by whichever codec, after whatever else."""
    x, first = numbers(LARGE), codec(encoding, LARGE, dither=True)
    wanted = named(encoded(first, x))
    for seed, made in enumerate((first, codec(encoding, LARGE, dither=True))):
        torch.manual_seed(seed)
        encoded(made, numbers(LARGE, 1), (1, 2, 3, 4))
        assert named(encoded(made, x)) == wanted
        assert named(encoded(made, x.transpose(0, 1).contiguous().transpose(0, 1))) == wanted


@pytest.mark.parametrize("encoding", BLOCKED)
def test_the_same_tensor_has_the_same_bytes(encoding: str) -> None:
    check_same_bytes(encoding)


@pytest.mark.parametrize("encoding", BLOCKED)
def test_rounding_that_depends_on_the_time_is_noticed(encoding: str) -> None:
    """A planted bug: unbiased as the real one, and a tensor that is made again is another."""
    honest = boundary._turned

    def timed(offsets: Tensor, key: tuple[int, ...]) -> Tensor:
        return honest(offsets, (*key, time.monotonic_ns()))

    with planted("_turned", timed), pytest.raises(AssertionError):
        check_same_bytes(encoding)


@pytest.mark.parametrize("encoding", BLOCKED)
def test_the_number_of_threads_changes_no_byte(encoding: str) -> None:
    x, made, before = numbers(LARGE), codec(encoding, LARGE, dither=True), torch.get_num_threads()
    found = set()
    try:
        for threads in (1, 2, 3, 4):
            torch.set_num_threads(threads)
            content = encoded(made, x)
            found.add(content + decoded(made, content).numpy().tobytes())
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_another_process_makes_the_same_bytes() -> None:
    code = (
        "import hashlib, torch\n"
        "from tests.models.test_boundary import BLOCKED, LARGE, codec, encoded, numbers\n"
        "torch.set_num_threads(1)\n"
        "made = b''.join(encoded(codec(name, LARGE, dither=True), numbers(LARGE)) for name in BLOCKED)\n"
        "print(hashlib.sha256(made).hexdigest())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    here = b"".join(encoded(codec(name, LARGE, dither=True), numbers(LARGE)) for name in BLOCKED)
    assert run.stdout.strip() == hashlib.sha256(here).hexdigest()


# -- rounding by chance


@pytest.mark.parametrize("encoding", BLOCKED)
def test_dithered_numbers_are_right_on_average(encoding: str) -> None:
    """Over the keys, each number by itself. Without dither the mean is as wrong as a single tensor."""
    shape: Shape = (1, 8, 256)
    x, tries = numbers(shape), 600
    steps = x.view(-1, 128).abs().amax(1, keepdim=True) / 127
    if encoding == "int4":
        steps = (x.view(-1, 128) @ boundary._rotation(128) / sqrt(128)).abs().amax(1, keepdim=True) / 7.5

    def bias(dither: bool) -> float:
        made = codec(encoding, shape, dither)
        mean = sum(there_and_back(made, x, (0, step, 0, 1)).double() for step in range(tries)) / tries
        return float(((mean - x).view(-1, 128).abs() / steps).max())

    assert bias(dither=True) < 5 * 0.5 / sqrt(tries)
    assert bias(dither=False) > 0.25


@pytest.mark.parametrize("place", range(len(KEY)))
def test_every_part_of_the_key_counts(place: int) -> None:
    made = codec("int4", dither=True)
    other = tuple(value + (index == place) for index, value in enumerate(KEY))
    assert encoded(made, numbers(), other) != encoded(made, numbers())
    nearest = codec("int4")
    assert encoded(nearest, numbers(), other) == encoded(nearest, numbers())


@pytest.mark.parametrize("encoding", BLOCKED)
def test_the_largest_number_keeps_its_sign_whatever_the_dither(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An offset next to 1 must not lift the highest level over the end of a byte, where it would be the lowest one."""
    monkeypatch.setattr(boundary, "_turned", lambda offsets, key: torch.full_like(offsets, 1 - 2**-24))
    largest = torch.linspace(1.0, 2.0, 1 << 14) * 127 / 128
    x = torch.zeros(1, len(largest), BLOCK_MAX)
    x[0, :, 0] = largest
    if encoding == "int4":  # whose numbers are rotated: the largest one after that
        x = (x @ boundary._rotation(BLOCK_MAX).t()) / BLOCK_MAX
    made = BoundaryCodec(encoding, (1, len(largest), BLOCK_MAX), torch.device("cpu"), dither=True)
    again = there_and_back(made, x)
    if encoding == "int4":
        again = again @ boundary._rotation(BLOCK_MAX)
    assert (again[0, :, 0] > 0.8 * largest).all()
