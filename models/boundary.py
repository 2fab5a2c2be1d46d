"""Boundary tensors as they travel: numbers to bytes after a stage, and bytes to numbers before the next one.

float64, float32 and bfloat16 are numbers by themselves. int8 and int4 cut a row into blocks, each with a bfloat16
scale: all scales first, then the levels, which are whole numbers from 0. The bytes are a function of the numbers and of
a key alone. A tensor that is made again for the same step, microbatch and visit is the same to the byte.

- int8: the largest number of a block is 127 scales away from zero.
- int4: a block is rotated first. Random signs and a Hadamard transform spread an outlier over its whole block, as in
  QuaRot (Ashkboos et al. 2024), so that 16 levels suffice for what is then nearly normal. Levels stand at odd multiples
  of half a scale, since a rotated number is hardly ever zero.
- Tokens come behind activations in a model with a subspace: 2 or 4 bytes each, unsigned.
- Gradients are rounded up or down by chance (`dither`), so that their mean is right. Activations are rounded to the
  nearest level, which makes the smaller error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from math import prod
from typing import Final

import torch
from torch import Tensor

from ftnode.models.number_check import NumberCheck

PLAIN: Final = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
BITS: Final = {"int8": 8, "int4": 4}
REACH: Final = {"int8": 127.0, "int4": 7.5}
"""The largest number of a block, in scales."""
ZERO: Final = {"int8": 128.0, "int4": 7.5}
"""The level of zero, which int4 does not have."""
BLOCK_MAX: Final = 128
SCALE_MAX: Final = 2.0**99
"""From here on a scale is refused by whoever gets it. Below, no decoded number overflows."""
_SCALE_MIN: Final = 2.0**-126
"""Below, numbers count as zero: devices differ in what they make of denormal ones."""
_ROUNDED_UP: Final = 1 + 2**-8 + 2**-15
"""A scale times this is a little too large as a bfloat16, never too small or just right: the largest number stays below
its level, so that no dither lifts it over the end of a byte."""
_TURN_NUMBERS: Final = 1 << 16
"""So many are encoded at a time on a CPU, since they stay in its cache, and so many offsets a dither has."""


class BoundaryCodec:
    """Of one direction. `shape`: [B, T, W] of the numbers, W in a row; `dither`: round by chance.

    Raises ValueError for an encoding that is none, and for int4 with rows that cannot be halved.
    """

    def __init__(self, encoding: str, shape: tuple[int, int, int], device: torch.device, dither: bool) -> None:
        if encoding not in PLAIN and encoding not in BITS:
            raise ValueError(f"an encoding is one of {', '.join((*PLAIN, *BITS))}, not {encoding}")
        if encoding == "int4" and shape[-1] % 2:
            raise ValueError(f"int4 needs rows of an even number of numbers, not {shape[-1]}")
        self.encoding, self.shape, self.device = encoding, shape, device
        self._plain = PLAIN.get(encoding)
        self._block = min(BLOCK_MAX, shape[-1] & -shape[-1])
        numbers = prod(shape)
        self._blocks = 0 if self._plain else numbers // self._block
        bits = 8 * self._plain.itemsize if self._plain else BITS[encoding]
        self.bytes = 2 * self._blocks + numbers * bits // 8
        self._turn = _TURN_NUMBERS // self._block if device.type == "cpu" else max(1, self._blocks)
        self._rotation = _rotation(self._block).to(device) if encoding == "int4" else None
        self._dither = None
        if dither and self._plain is None:
            self._dither = _dither(min(self._turn, self._blocks), self._block).to(device)

    def encode(self, x: Tensor, into: Tensor, key: tuple[int, ...] = (), check: NumberCheck | None = None) -> None:
        """Finite numbers of our shape into bytes [self.bytes] of any device. `key`: what the dither depends on.

        Numbers that are too large are a fault, raised here or by `check`; it is also then that bytes in pinned memory
        are there.
        """
        if self._plain is not None:
            into.view(self._plain).view(self.shape).copy_(x, non_blocking=True)
            return
        numbers = x.detach().to(self.device, torch.float32).reshape(self._blocks, self._block)
        scales = torch.empty(self._blocks, 1, dtype=torch.bfloat16, device=self.device)
        packed = torch.empty(self._blocks, self._packed, dtype=torch.uint8, device=self.device)
        for turn, part in enumerate(self._parts()):
            scales[part], packed[part] = self._encoded(numbers[part], (*key, turn))
        into[: 2 * self._blocks].copy_(scales.view(torch.uint8).view(-1), non_blocking=True)
        into[2 * self._blocks :].copy_(packed.view(-1), non_blocking=True)
        own = check or NumberCheck(-1)
        own.forbid(f"a number is too large for {self.encoding}", ~(scales < SCALE_MAX).all())
        if check is None:
            own.read()

    def decode(self, content: Tensor) -> Tensor:
        """The numbers of bytes [self.bytes], on our device, which may be the memory of `content` itself.

        A scale that is not finite makes numbers that are not; whoever takes them looks.
        """
        if self._plain is not None:
            return content.view(self._plain).view(self.shape)
        content = content.to(self.device)
        # A slice of a slot need not lie where a bfloat16 may begin.
        scales = content[: 2 * self._blocks].clone().view(torch.bfloat16).float().view(self._blocks, 1)
        packed = content[2 * self._blocks :].view(self._blocks, self._packed)
        numbers = torch.empty(self._blocks, self._block, device=self.device)
        for part in self._parts():
            self._decode_into(numbers[part], scales[part], packed[part])
        return numbers.view(self.shape)

    @property
    def _packed(self) -> int:
        """Bytes of the levels of one block."""
        return self._block * BITS[self.encoding] // 8

    def _parts(self) -> Iterator[slice]:
        return (slice(start, start + self._turn) for start in range(0, self._blocks, self._turn))

    def _encoded(self, blocks: Tensor, key: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """(scales [n, 1], packed levels) of blocks [n, block]."""
        gain = 1
        if self._rotation is not None:
            blocks, gain = blocks @ self._rotation, self._block
        scales = blocks.abs().amax(1, keepdim=True).mul_(_ROUNDED_UP / (REACH[self.encoding] * gain))
        scales = torch.where(scales < _SCALE_MIN, 0.0, scales).to(torch.bfloat16)
        per_scale = torch.where(scales == 0, 0.0, 1 / (gain * scales.float()))
        offset = ZERO[self.encoding] + (0.5 if self._dither is None else _turned(self._dither[: len(blocks)], key))
        # All levels are positive, so that cutting off is rounding down.
        levels = (blocks * per_scale).add_(offset).to(torch.uint8)
        return scales, _packed(levels) if self.encoding == "int4" else levels

    def _decode_into(self, numbers: Tensor, scales: Tensor, packed: Tensor) -> None:
        levels = _unpacked(packed) if self.encoding == "int4" else packed
        if self._rotation is None:
            torch.sub(levels, ZERO[self.encoding], out=numbers).mul_(scales)
        else:
            torch.matmul((levels - ZERO[self.encoding]).mul_(scales), self._rotation.t(), out=numbers)


class ActivationCodec:
    """Of activations: their numbers, and behind them the tokens where `token_bytes` is not 0."""

    def __init__(self, encoding: str, shape: tuple[int, int, int], device: torch.device, token_bytes: int) -> None:
        self._numbers = BoundaryCodec(encoding, shape, device, dither=False)
        self._token_type = {0: None, 2: torch.int16, 4: torch.int32}[token_bytes]
        self._mask = (1 << 8 * token_bytes) - 1
        self.bytes = self._numbers.bytes + shape[0] * shape[1] * token_bytes

    def encode(self, x_bts: Tensor, tokens_bt: Tensor | None, into: Tensor, check: NumberCheck | None = None) -> None:
        """Into bytes [self.bytes]. As BoundaryCodec.encode."""
        self._numbers.encode(x_bts, into[: self._numbers.bytes], check=check)
        if self._token_type is not None:
            assert tokens_bt is not None
            narrow = tokens_bt.to(self._token_type).contiguous()
            into[self._numbers.bytes :].copy_(narrow.view(torch.uint8).view(-1), non_blocking=True)

    def decode(self, content: Tensor) -> tuple[Tensor, Tensor | None]:
        """The numbers, as BoundaryCodec.decode, and the tokens [B, T], of which any may be none of the vocabulary."""
        numbers = self._numbers.decode(content[: self._numbers.bytes])
        if self._token_type is None:
            return numbers, None
        narrow = content[self._numbers.bytes :].clone().view(self._token_type)
        return numbers, narrow.long().bitwise_and_(self._mask).view(self._numbers.shape[:2])


def _packed(levels: Tensor) -> Tensor:
    """Levels [n, block] below 16, two to a byte: those of the first half of a block are the low halves of its bytes."""
    low, high = levels.chunk(2, dim=1)
    return (high << 4).bitwise_or_(low)


def _unpacked(packed: Tensor) -> Tensor:
    return torch.cat((packed & 15, packed >> 4), dim=1)


def _rotation(size: int) -> Tensor:
    """[size, size], orthogonal but for a factor √size: random signs, the same for everybody, then Sylvester's Hadamard
    matrix."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    bits = int.from_bytes(_hash("signs", BLOCK_MAX // 8), "little")
    return matrix * torch.tensor([[1.0 - 2 * (bits >> row & 1)] for row in range(size)])


def _dither(blocks: int, block: int) -> Tensor:
    """Offsets [blocks, block], spread evenly over 0 to 1, before a key turns them."""
    generator = torch.Generator().manual_seed(int.from_bytes(_hash("dither", 7), "little"))
    return torch.rand(blocks, block, generator=generator)


def _turned(offsets: Tensor, key: tuple[int, ...]) -> Tensor:
    """All offsets moved by what the key says, around the circle from 0 to 1 (Cranley and Patterson 1976): each is
    spread evenly over the keys, at the price of one addition."""
    turned = offsets + int.from_bytes(_hash(repr(key), 3), "little") / (1 << 24)
    return turned.frac_()


def _hash(name: str, size: int) -> bytes:
    return hashlib.blake2b(f"ftnode/boundary/{name}".encode(), digest_size=size).digest()
