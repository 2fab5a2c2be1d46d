"""Which way a stage's weights go from one copy to a later one, against what some microbatches give to the gradient.

Whoever keeps copies of a stage that one peer holds alone has its weights every few steps, and the gradient of some
visits that it did again on the first copy. Weights go against gradients on the way from one copy to the next, also
against that one: a step has a part in all that follow it, by the optimiser's momentum, and steps after it have much of
its direction. The holder can do nothing about that but train. It is not asked for anything, and it does not know of
which microbatches the gradient is.

A cosine of the two says little: most of either lies in a few steep directions, in which weights go to and fro. So both
are made orthogonal first, tile by tile: all directions of a matrix count alike then, as in Muon (K. Jordan et al.
2024). Two such tiles that have nothing to do with each other have a product of known size, whatever they are:
E⟨A, B⟩² = ‖A‖² ‖B‖² / (rows · columns).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from random import Random
from typing import Final

from torch import Tensor

from ftnode.models.muon import UPDATE_SIZE, orthogonalised
from ftnode.models.optimiser import OptimiserConfig, learning_rate_at, matrix_rate_at
from ftnode.models.parameters import Entries

SIDE: Final = 256
"""Of a tile, at most: to make one orthogonal takes about 20 ms of one core."""
TILES: Final = 16
NUMBERS_MIN: Final = 8_192
"""In tiles: honest weights of fewer are not far enough from chance (decision 0076)."""
ROUNDED: Final = 0.0025
"""Of weights' size. As int8 they are off by 0.007, and so is each end of their way. A way that is shorter than a
quarter of that says nothing."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of a matrix of `columns` columns: so many `rows` and `width` numbers of each, from `begin` of the flat
    weights on."""

    begin: int
    columns: int
    rows: int
    width: int

    def of(self, flat: Tensor) -> Tensor:
        """A copy [rows, width] in the host's memory."""
        begin = flat.storage_offset() + self.begin
        return flat.as_strided((self.rows, self.width), (self.columns, 1), begin).clone().cpu()


def tiles(entries: Entries, draws: Random) -> list[Tile]:
    """Of a stage's weights, here and there; one of each matrix before there is another one of any."""
    matrices = [(offset, shape) for offset, shape in entries.values() if len(shape) == 2]
    draws.shuffle(matrices)
    found = dict[Tile, None]()
    for turn in range(TILES):
        for offset, (rows, columns) in matrices:
            if turn < -(-rows // SIDE) * -(-columns // SIDE) and len(found) < TILES:
                height, width = min(rows, SIDE), min(columns, SIDE)
                top, left = draws.randint(0, rows - height), draws.randint(0, columns - width)
                found[Tile(offset + top * columns + left, columns, height, width)] = None
    return [*found]


def course(before: Sequence[Tensor], after: Sequence[Tensor], gradients: Sequence[Tensor]) -> float:
    """By how many standard deviations the weights go against the gradient more than by chance; tiles of the same places
    [rows, columns]. 0 where they do not go anywhere."""
    against = spread = 0.0
    for first, last, gradient in zip(before, after, gradients, strict=True):
        moved, given = orthogonalised(last.double() - first.double()), orthogonalised(gradient)
        against -= float((moved * given).sum())
        spread += float(moved.square().sum()) * float(given.square().sum()) / given.numel()
    return against / sqrt(spread) if spread else 0.0


def tells(config: OptimiserConfig, first: int, last: int, weights: Sequence[Tensor]) -> bool:
    """Whether honest steps, from after `first` to `last`, take weights of this size farther than copies are rounded,
    and there are enough of them."""
    rates = (min(learning_rate_at(config, step), matrix_rate_at(config, step)) for step in range(first + 1, last + 1))
    numbers = sum(tile.numel() for tile in weights)
    size = sqrt(sum(float(tile.double().square().sum()) for tile in weights) / numbers) if numbers else 0.0
    return numbers >= NUMBERS_MIN and UPDATE_SIZE * sum(rates) > ROUNDED * size
