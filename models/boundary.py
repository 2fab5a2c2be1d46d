"""Boundary tensors as they travel: numbers to bytes after a stage, and bytes to numbers before the next one.

float64, float32 and bfloat16 are numbers by themselves. int8 and int4 have a bfloat16 scale for each block of a row
(the largest power of two that divides it, up to 128). All of this is a function of the numbers and of a key alone: a tensor that is made again for the same
step, microbatch, visit and direction is the same to the byte.

- int8: the largest number of a block is 127 scales; numbers are rounded to the nearest level.
- int4: a block is rotated first. Random signs and a Hadamard transform spread an outlier over its whole block, as in
  QuaRot (Ashkboos et al. 2024), so that 16 levels suffice for what is then nearly normal. Levels are odd multiples of
  half a scale, since a rotated number is hardly ever zero.
- Gradients are rounded up or down by chance, so that their mean is right (`dither`). Activations are rounded to the
  nearest level, which makes the smaller error.
"""

from __future__ import annotations

import hashlib
from math import prod, sqrt
from typing import Final

import torch
from torch import Tensor

PLAIN: Final = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
BITS: Final = {"int8": 8, "int4": 4}
BLOCK_MAX: Final = 128
LEVELS: Final = {"int8": 127.0, "int4": 7.5}
"""The largest number of a block, in scales."""
_ROUNDED_UP: Final = 1 + 2**-8
"""A scale times this is not smaller as a bfloat16 than it was."""


class BoundaryCodec:
    """Of one direction. `shape`: [B, T, W] of the numbers, W in a row; `dither`: round by chance.

    Raises ValueError for an encoding that is none.
    """

    def __init__(self, encoding: str, shape: tuple[int, int, int], device: torch.device, dither: bool) -> None:
        self.encoding, self.shape, self.device = encoding, shape, device
        self.numbers, self.block = prod(shape), min(BLOCK_MAX, shape[-1] & -shape[-1])
        if encoding not in PLAIN and encoding not in BITS:
            raise ValueError(f"an encoding is one of {', '.join((*PLAIN, *BITS))}, not {encoding}")
        self._plain = PLAIN.get(encoding)
        self._scale_bytes = 0 if self._plain else 2 * (self.numbers // self.block)
        bits = 8 * self._plain.itemsize if self._plain else BITS[encoding]
        self.bytes = self._scale_bytes + self.numbers * bits // 8
        self._rotation = _rotation(self.block).to(device) if encoding == "int4" else None
        self._dither = _dither(self.numbers, self.block).to(device) if dither and self._plain is None else None

    def encode(self, x: Tensor, into: Tensor, key: tuple[int, ...] = ()) -> None:
        """Finite numbers of our shape into bytes [self.bytes] of any device. `key`: what the dither depends on."""
        if self._plain is not None:
            into.view(self._plain).view(self.shape).copy_(x)
            return
        blocks = x.detach().to(self.device, torch.float32).reshape(-1, self.block)
        if self._rotation is not None:
            blocks = blocks @ self._rotation
        largest = blocks.abs().amax(1, keepdim=True)
        scales = (largest * (_ROUNDED_UP / LEVELS[self.encoding])).to(torch.bfloat16)
        levels = blocks / torch.where(scales > 0, scales, torch.ones_like(scales)).float()
        offset = 0.0 if self.encoding == "int8" else -0.5
        if self._dither is None:
            levels = levels.add_(offset).round_()
        else:
            levels = levels.add_(_turned(self._dither, key)).add_(offset).floor_()
        into[: self._scale_bytes].copy_(scales.view(torch.uint8).view(-1))
        into[self._scale_bytes :].copy_(_packed(levels.view(-1), self.encoding))

    def decode(self, content: Tensor) -> Tensor:
        """The numbers of bytes [self.bytes], on our device, which may be the memory of `content` itself.

        A scale that is not finite makes numbers that are not; whoever takes them looks.
        """
        if self._plain is not None:
            return content.view(self._plain).view(self.shape)
        content = content.to(self.device)
        # A slice of a slot need not lie where a bfloat16 may begin.
        scales = content[: self._scale_bytes].clone().view(torch.bfloat16).float()
        blocks = _unpacked(content[self._scale_bytes :], self.encoding).view(-1, self.block) * scales[:, None]
        if self._rotation is not None:
            blocks = blocks @ self._rotation.t()
        return blocks.view(self.shape)


def _packed(levels: Tensor, encoding: str) -> Tensor:
    """Whole numbers [n] as bytes; of two int4 the first is the low half. Beyond the range they are cut off."""
    if encoding == "int8":
        return levels.clamp_(-127, 127).to(torch.int8).view(torch.uint8)
    halves = levels.clamp_(-8, 7).add_(8).to(torch.uint8).view(-1, 2)
    return halves[:, 0] | (halves[:, 1] << 4)


def _unpacked(content: Tensor, encoding: str) -> Tensor:
    """The levels [n] of what `_packed` made."""
    if encoding == "int8":
        return content.view(torch.int8).float()
    halves = torch.stack((content & 15, content >> 4), dim=1)
    return halves.view(-1).float().sub_(7.5)


def _rotation(size: int) -> Tensor:
    """[size, size], orthogonal: random signs, the same for everybody, then Sylvester's Hadamard matrix."""
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    signs = torch.where(_integers("signs", size, 2) > 0, 1.0, -1.0)
    return signs[:, None] * matrix / sqrt(size)


def _dither(numbers: int, block: int) -> Tensor:
    """Offsets [blocks, block], spread evenly over 0 to 1, before they are turned by a key."""
    return (_integers("dither", numbers, 1 << 24).float() / (1 << 24)).view(-1, block)


def _integers(purpose: str, count: int, below: int) -> Tensor:
    """The same on every machine."""
    name = hashlib.blake2b(f"ftnode/boundary/{purpose}".encode(), digest_size=8).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(name, "little") >> 1)
    return torch.randint(below, (count,), generator=generator)


def _turned(offsets: Tensor, key: tuple[int, ...]) -> Tensor:
    """All offsets moved by what the key says, around the circle from 0 to 1 (Cranley and Patterson 1976): each is
    spread evenly over the keys, at the price of one addition."""
    name = hashlib.blake2b(repr(key).encode(), digest_size=3).digest()
    turned = offsets + int.from_bytes(name, "little") / (1 << 24)
    return turned.sub_((turned >= 1).float())
