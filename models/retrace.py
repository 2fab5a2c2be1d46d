"""How a stage was trained in a step, seen from a sample of its state before and after it.

The first moments tell which gradient went into the step: each is the one before, a little smaller, and a share of that
gradient. From there the update can be made once more, number by number. What nobody but the stage's holder knows is
whether that gradient is the one of the step's microbatches. So those of some of them are computed by another, and have
to be in it: the gradient is their sum with others, which have most of their direction in common with these, or are at
right angles to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import sqrt
from typing import Final

import torch
from torch import Tensor

from ftnode.models.adam import adam
from ftnode.models.muon import orthogonalised
from ftnode.models.optimiser import ADAM, OptimiserConfig, Parameter, Turn
from ftnode.models.state_sample import Piece

ANOTHER_UPDATE: Final = 3.0
"""What is answered where the update is another than the optimiser's. A cosine takes 2 at most away from 1."""
UPDATE_AWAY_MAX: Final = 0.05
"""Honest ones are 2e-7 off as float32: the gradient is found from a difference of rounded numbers."""
COPY_AWAY_MAX: Final = 0.1
"""Weights as int8 are 0.006 off."""
ROUNDED: Final = 1e-6
"""Of a float32, so that an update of next to nothing is not held against its rounding."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """A sample of a state: its numbers, and what is said of it."""

    flat: Tensor
    updates: int
    rate_factor: float


def gathered(flat: Tensor, drawn: Iterable[Piece], rows: bool = True) -> Tensor:
    """The sample of a whole state [n]; without `rows` only where its weights lie."""
    begins = ((begin, piece.numbers) for piece in drawn for begin in (piece.begins if rows else piece.begins[:1]))
    return torch.cat([flat[begin : begin + numbers] for begin, numbers in begins])


def retrace(
    drawn: Sequence[Piece], config: OptimiserConfig, step: int, before: Sampled, after: Sampled, kept: Tensor,
    part: Tensor,
) -> float:  # fmt: skip
    """How far the gradient that went into `step` is from `part`, that of some of its microbatches: 1 less how much they
    are alike(). ANOTHER_UPDATE, where the update does not follow from it, or `before` is not of the weights `kept`.

    Whether matrices that Muon updates follow from their momentum is not seen, as that takes all of a matrix.
    """
    sound = bool(torch.isfinite(before.flat).all() and torch.isfinite(after.flat).all())
    if not sound or after.updates != before.updates + 1 or after.rate_factor != before.rate_factor:
        return ANOTHER_UPDATE
    turn, at, place = Turn(step, after.updates, after.rate_factor), 0, 0
    gradients, off, moved = list[Tensor](), _Sum(), _Sum()
    stood, apart = _Sum(), _Sum()
    for piece in drawn:
        count, rows = piece.numbers, len(piece.begins)
        old = before.flat[at : at + count * rows].view(rows, 1, count)
        new = after.flat[at : at + count * rows].view(rows, 1, count)
        beta = config.beta1 if piece.rule == ADAM else config.momentum
        gradient = (new[1] - old[1] * beta) / (1 - beta)
        gradients.append(gradient.view(-1))
        stood.add(old[0])
        apart.add(old[0].view(-1) - kept[place : place + count])
        if piece.rule == ADAM:
            made = old.clone()
            adam(Parameter(ADAM, made[0], gradient, (made[1], made[2])), config, turn)
            off.add(new[0] - made[0])
            moved.add(made[0] - old[0])
            moved.add(made[0] * ROUNDED)
            if not float((new[2] - made[2]).norm()) <= UPDATE_AWAY_MAX * float(made[2].norm()):
                return ANOTHER_UPDATE
        at, place = at + count * rows, place + count
    if not (off.norm <= UPDATE_AWAY_MAX * moved.norm and apart.norm <= COPY_AWAY_MAX * stood.norm):
        return ANOTHER_UPDATE  # also where a moment is negative, which has no root
    return 1.0 - alike(drawn, torch.cat(gradients), part)


def alike(drawn: Sequence[Piece], one: Tensor, other: Tensor) -> float:
    """The cosine of two samples of gradients, of which each tile is made orthogonal, so that all directions of a matrix
    count alike; 0 where either is nothing."""
    product, first, second, at = 0.0, _Sum(), _Sum(), 0
    for _, rows in groupby(drawn, key=lambda piece: piece.tile):
        widths = [piece.numbers for piece in rows]
        numbers = sum(widths)
        tile, tile_of_other = (orthogonalised(flat[at : at + numbers].view(len(widths), -1)) for flat in (one, other))
        product += float((tile * tile_of_other).sum())
        first.add(tile)
        second.add(tile_of_other)
        at += numbers
    size = first.norm * second.norm
    return product / size if size else 0.0


class _Sum:
    """Of squares."""

    def __init__(self) -> None:
        self._squares = 0.0

    def add(self, x: Tensor) -> None:
        self._squares += float(x.double().square().sum())

    @property
    def norm(self) -> float:
        return sqrt(self._squares)
