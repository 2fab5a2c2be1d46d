"""How numbers of a sum travel: as they are ("exact"), or as levels in blocks with a scale each ("int8", "int4").

A piece is cut into chunks, and a chunk is encoded by itself: first the scales of its blocks, bfloat16, then their
levels. A last block that is not full is filled up with zeros. A decoded number is a whole number below 2**8 times a
scale of 8 significant bits, which no float rounds: all machines decode the same bits.

- A level is rounded up or down by chance, so that its mean is right: small numbers would otherwise count as zero in
  every step. The chance is a function of (run, stage, step, piece, whose numbers, chunk). So a stream that broke goes
  on with the same bytes, and a step that is done again with the same shares has the same sum.
- A block with a number that is none, or of 2**63 scales or more, travels as the largest numbers there are. Their
  squares are beyond every norm (whole_gradient.py), so that the group names poison as it does with exact sums.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Protocol

import numpy as np

from ftnode.protocol.words.errors import PeerError

CHUNK_BYTES: Final = 1 << 18
"""Of numbers in memory. Summed at once: at most some 0.5 ms per contributor, in which nothing else of the node runs."""
BITS: Final = {"int8": 8, "int4": 4}
ZERO: Final = {"int8": 128, "int4": 8}
"""The level of zero. Levels go from 1 to twice that less one."""
BLOCK: Final = 128
"""Numbers with one scale."""
SCALE_BYTES: Final = 2
SCALE_BITS: Final = (0x0080, 0x5F00)
"""Scales are zero, or bfloat16 from 2**-126 to 2**63: positive and normal."""
SCALE_MAX: Final = 2.0**63
SLACK: Final = 1.0001
"""A scale is so much larger than it must be, so that no rounding puts a level out of range."""
Numbers = np.ndarray[Any, np.dtype[Any]]


class Encoding(Protocol):
    """Of chunks."""

    dtype: np.dtype[Any]
    in_place: bool
    """Chunks travel as they lie in memory."""

    def size(self, numbers: int) -> int:
        """Bytes of a chunk of so many numbers."""

    def encode(self, numbers: Numbers, key: bytes, chunk: int) -> memoryview:
        """`key`, `chunk`: what the rounding depends on."""

    def check(self, content: memoryview) -> None:
        """Raises PeerError for bytes that nobody encoded."""

    def decode(self, content: memoryview, numbers: int) -> Numbers:
        """Of bytes that were checked."""


class Exact:
    """The bytes in memory."""

    in_place = True

    def __init__(self, number_bytes: int) -> None:
        self.dtype = np.dtype({4: np.float32, 8: np.float64}[number_bytes])

    def size(self, numbers: int) -> int:
        return numbers * self.dtype.itemsize

    def encode(self, numbers: Numbers, key: bytes, chunk: int) -> memoryview:
        return numbers.data.cast("B")

    def check(self, content: memoryview) -> None:
        return None

    def decode(self, content: memoryview, numbers: int) -> Numbers:
        return np.frombuffer(content, self.dtype)


class Blocks:
    """int8 or int4."""

    in_place = False

    def __init__(self, name: str, number_bytes: int) -> None:
        self.dtype = np.dtype({4: np.float32, 8: np.float64}[number_bytes])
        self._zero, self._block_bytes = ZERO[name], BLOCK * BITS[name] // 8
        self._halves = BITS[name] == 4

    def size(self, numbers: int) -> int:
        return -(-numbers // BLOCK) * (SCALE_BYTES + self._block_bytes)

    def encode(self, numbers: Numbers, key: bytes, chunk: int) -> memoryview:
        blocks = -(-len(numbers) // BLOCK)
        x: Numbers = np.zeros((blocks, BLOCK), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            x.reshape(-1)[: len(numbers)] = numbers
        scales = _scales(x, self._zero - 1)
        per_scale = np.zeros(blocks, np.float32)
        np.divide(1, _as_float(scales), out=per_scale, where=scales != 0)
        x *= per_scale[:, None]
        x += self._rounding(blocks, key, chunk)
        levels: Numbers = x.astype(np.uint8)  # they are positive, so that cutting off is rounding down
        if self._halves:
            levels = levels[:, : BLOCK // 2] | levels[:, BLOCK // 2 :] << 4
        return memoryview(scales.tobytes() + levels.tobytes())

    def check(self, content: memoryview) -> None:
        scales = self._split(content)[0]
        least, most = SCALE_BITS
        if not ((scales == 0) | (scales >= least) & (scales <= most)).all():
            raise PeerError("a scale that is none in an encoded sum")

    def decode(self, content: memoryview, numbers: int) -> Numbers:
        scales, levels = self._split(content)
        if self._halves:
            levels = np.concatenate((levels & 15, levels >> 4), axis=1)
        found = np.subtract(levels, self._zero, dtype=self.dtype)
        found *= _as_float(scales)[:, None]
        return found.reshape(-1)[:numbers]

    def _split(self, content: memoryview) -> tuple[Numbers, Numbers]:
        """(scales [blocks], levels [blocks, bytes of a block])."""
        blocks = len(content) // (SCALE_BYTES + self._block_bytes)
        scales = np.frombuffer(content, "<u2", blocks)
        return scales, np.frombuffer(content, np.uint8, offset=SCALE_BYTES * blocks).reshape(blocks, self._block_bytes)

    def _rounding(self, blocks: int, key: bytes, chunk: int) -> Numbers:
        """The level of zero, and a part of a level: 2**16 of them are spread evenly over one."""
        generator = np.random.Philox(key=int.from_bytes(key, "little"), counter=chunk << 128)
        offsets = generator.random_raw(blocks * BLOCK // 4).view(np.uint16).astype(np.float32)
        offsets += 0.5
        offsets *= 2.0**-16
        offsets += self._zero
        return offsets.reshape(blocks, BLOCK)


def _scales(x: Numbers, reach: int) -> Numbers:
    """bfloat16, as numbers of 16 bits, of blocks [n, BLOCK]: no number is more than `reach` scales away from zero.
    Blocks that no scale can tell are replaced in place."""
    least, most = SCALE_BITS
    needed = np.abs(x).max(1) * np.float32(SLACK / reach)
    lost = ~(needed <= SCALE_MAX)
    needed[lost] = 0
    scales: Numbers = (needed.view(np.uint32) + 0xFFFF >> 16).astype("<u2")  # up to the next one
    scales[scales < least] = 0
    if lost.any():
        scales[lost] = most
        x[lost] = (reach - 1) * SCALE_MAX
    return scales


def _as_float(scales: Numbers) -> Numbers:
    return (scales.astype(np.uint32) << 16).view(np.float32)


def encoding_of(name: str, number_bytes: int) -> Encoding:
    """`name`: of the manifest's pipeline.sums."""
    return Exact(number_bytes) if name == "exact" else Blocks(name, number_bytes)


class Piece:
    """One piece of a gradient in shared memory, as it travels. Positions are bytes of it on the wire."""

    def __init__(self, place: memoryview, encoding: Encoding, name: tuple[object, ...], first: int = 0) -> None:
        """`name`: of the sum and the piece, alike at all members; `first`: which number of the gradient it begins
        with."""
        self.place, self.first = place, first
        self.numbers: Numbers = np.frombuffer(place, encoding.dtype)
        self._encoding, self._name = encoding, name
        self._step = CHUNK_BYTES // encoding.dtype.itemsize
        self._chunk = encoding.size(self._step)
        whole, rest = divmod(len(self.numbers), self._step)
        self.bytes = whole * self._chunk + encoding.size(rest)

    def begins(self, at: int) -> bool:
        """Whether a chunk begins there, or the piece ends."""
        return at == self.bytes or (0 <= at < self.bytes and not at % self._chunk)

    def end(self, at: int, chunks: int = 1) -> int:
        """Of the chunk that begins there, or of so many."""
        return min(at + chunks * self._chunk, self.bytes)

    def chunk(self, at: int) -> Numbers:
        """The numbers of the chunk that begins there, in their place."""
        start = at // self._chunk * self._step
        return self.numbers[start : start + self._step]

    def position(self, at: int) -> int:
        """Of the first number of the chunk that begins there, in the gradient."""
        return self.first + at // self._chunk * self._step

    def encode(self, at: int, numbers: Numbers, whose: int) -> memoryview:
        """Of the chunk that begins there. `whose`: a contributor's, by its position; -1: the sum's."""
        key = hashlib.blake2b(repr((self._name, whose)).encode(), digest_size=16).digest()
        return self._encoding.encode(numbers, key, at // self._chunk)

    def check(self, content: memoryview) -> None:
        """Raises PeerError for a chunk that nobody encoded."""
        self._encoding.check(content)

    def decode(self, at: int, content: memoryview) -> Numbers:
        """Of the chunk that begins there, which was checked."""
        return self._encoding.decode(content, len(self.chunk(at)))

    def room(self, chunks: int = 1) -> memoryview:
        """For so many chunks as they travel, or the whole piece, if that is less."""
        return memoryview(bytearray(min(chunks * self._chunk, self.bytes)))

    def for_sum(self) -> memoryview:
        """Where the sum is kept as it travels."""
        return self.place if self._encoding.in_place else memoryview(bytearray(self.bytes))
