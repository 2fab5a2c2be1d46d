"""Flat buffers of a stage, all of the model's precision, and where each named tensor lies in them.

Norm, clipping, hash, export and blend are then single passes over contiguous memory, whatever the model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from typing import Final

import numpy as np
import torch
from torch import Tensor

from ftnode.models.parameters import Entries

PASS_NUMBERS: Final = 1 << 18
"""Numbers per piece of a pass over a flat buffer: 1 MiB, so that scratch stays in cache and memory stays bounded."""
PIECES_AT_ONCE: Final = 64
"""On a card, which would otherwise wait for the next command all the time."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each named tensor lies, without gaps; `size`: of all, in numbers."""

    entries: Entries
    size: int

    def view(self, flat: Tensor, name: str) -> Tensor:
        """The named tensor, sharing the memory of `flat` [size]."""
        offset, shape = self.entries[name]
        return flat[offset : offset + prod(shape)].view(shape)

    def joined(self, flat: Tensor, first: str, shape: tuple[int, ...]) -> Tensor:
        """Neighbouring tensors seen as one, from `first` on: q, k and v make one matrix product."""
        offset, _ = self.entries[first]
        return flat[offset : offset + prod(shape)].view(shape)

    def of(self, flat: Tensor) -> Callable[[str, tuple[int, ...]], Tensor]:
        """As `joined`, of one flat tensor."""
        return partial(self.joined, flat)


def digest(flat: Tensor) -> str:
    """BLAKE2b (16 bytes, hex) of the numbers as little-endian bytes in order."""
    return hashlib.blake2b(as_bytes(flat.cpu()), digest_size=16).hexdigest()


def as_bytes(flat: Tensor) -> memoryview:
    """The memory of a contiguous CPU tensor."""
    if not (flat.is_contiguous() and flat.device.type == "cpu"):
        raise ValueError("only contiguous tensors in host memory have bytes")
    return flat.detach().view(-1).view(torch.uint8).numpy().data


def plain_sum(x: Tensor) -> Tensor:
    """One number of float32 or wider on the device of `x`: finite only if every number of `x` is. One pass.

    A sum that overflows though its terms do not (beyond 3e38 in float32) also counts as broken; it is.
    """
    return x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32))


def norm(x: Tensor) -> Tensor:
    """L2, one number of float32 or wider on the device of `x`: infinite where squares overflow that. One pass."""
    found: Tensor = torch.linalg.vector_norm(x.detach(), dtype=torch.promote_types(x.dtype, torch.float32))
    return found


def is_finite(x: Tensor) -> bool:
    """Whether no number is NaN or infinite. Waits for the device."""
    return bool(torch.isfinite(plain_sum(x)))


def swap(one: Tensor, other: Tensor) -> None:
    """Each gets the numbers of the other: flat tensors of one size and device."""
    for a, b in zip(pieces(one), pieces(other)):
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)


def take_root(x: Tensor) -> Tensor:
    """Square roots in place, each the nearest number there is, on every processor and card. torch asks MKL for those of
    a processor, and MKL's depend on its instructions: of 100,000 numbers some hundreds are not the nearest, or a sixth
    without AVX2. numpy takes the processor's own, which IEEE 754 defines to the bit; a card's are so anyway."""
    if x.device.type != "cpu":
        return x.sqrt_()
    numbers = x.detach().numpy()
    np.sqrt(numbers, out=numbers)
    return x


def pieces(flat: Tensor) -> tuple[Tensor, ...]:
    """A flat tensor for one pass over it: in pieces that stay in a processor's cache, or that keep a card at work."""
    return torch.split(flat, PASS_NUMBERS * (1 if flat.device.type == "cpu" else PIECES_AT_ONCE))


def chunks(flat: Tensor, numbers: int) -> tuple[Tensor, ...]:
    """A flat tensor cut as it travels, in chunks of so many numbers; none of one that is empty."""
    return torch.split(flat, numbers) if len(flat) else ()


def squared_norm(flat: Tensor) -> float:
    """Sum of squares of a flat tensor in float64: equal to the bit whatever the processor, its threads and the card.

    Replicas clip by it, each for itself. A dot product adds in an order that depends on the machine; here the numbers
    of a piece are added by halves, and then the pieces in order. A card takes many pieces at once and waits once.
    """
    sums = [_sums_of_squares(part) for part in pieces(flat.detach())]
    total = 0.0
    for number in torch.cat(sums).tolist():  # not sum(), which rounds differently from Python 3.12 on
        total += number
    return total


def bits_digest(flat: Tensor, factor: float = 1.0) -> str:
    """32 hex digits of the bits of `flat` · `factor`, [n] of float32 or float64: the same on every processor and card,
    which read them where they are. Two pieces that differ by accident agree with a chance of about 2^-64.

    Each piece comes to two sums of bits · keys modulo 2^64 (multilinear hashing: Carter & Wegman 1979), and the sums
    are hashed. It finds replicas that have gone apart; against a liar no hash of his own numbers helps.
    """
    keys = _keys(flat.device)
    found = [_bit_sums(part * factor if factor < 1 else part.clone(), keys) for part in pieces(flat.detach())]
    hash_ = hashlib.blake2b(flat.numel().to_bytes(8, "little"), digest_size=16)
    hash_.update(as_bytes(torch.cat(found).cpu()))
    return hash_.hexdigest()


def _pieces(flat: Tensor) -> list[Tensor]:
    """As rows [pieces, PASS_NUMBERS], and the shorter last one as a row by itself."""
    whole = flat.numel() // PASS_NUMBERS * PASS_NUMBERS
    rows = [flat[:whole].view(-1, PASS_NUMBERS), flat[whole:].view(1, -1)]
    return [row for row in rows if row.numel()]


def _sums_of_squares(flat: Tensor) -> Tensor:
    """One number for each piece."""
    found = []
    for wide in _pieces(flat):
        wide = wide.double()
        wide = wide * wide
        while wide.shape[1] > 1:
            half = wide.shape[1] // 2
            rest = wide[:, 2 * half :]
            wide = wide[:, :half] + wide[:, half : 2 * half]
            if rest.shape[1]:
                wide[:, :1] += rest
        found.append(wide[:, 0])
    return torch.cat(found) if found else flat.new_zeros(0, dtype=torch.float64)


def _bit_sums(flat: Tensor, keys: Tensor) -> Tensor:
    """[pieces, 2] of a tensor with memory of its own; sums of integers are exact in any order, and wrap around."""
    found = []
    for row in _pieces(flat):
        even = row if row.nbytes % 8 == 0 else torch.nn.functional.pad(row, (0, 1))
        bits = even.contiguous().view(torch.int64)
        found.append(torch.stack([(bits * key[: bits.shape[1]]).sum(1) for key in keys], dim=1))
    return torch.cat(found) if found else keys.new_zeros(0, 2)


@lru_cache(maxsize=4)
def _keys(device: torch.device) -> Tensor:
    """[2, PASS_NUMBERS], odd, the same everywhere: a counter, mixed as by SplitMix64 (Steele, Lea & Flood 2014)."""
    counter = np.arange(1, 2 * PASS_NUMBERS + 1, dtype=np.uint64)
    mixed = counter * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = (mixed ^ (mixed >> np.uint64(31))) | np.uint64(1)
    return torch.from_numpy(mixed.view(np.int64)).view(2, PASS_NUMBERS).to(device)
