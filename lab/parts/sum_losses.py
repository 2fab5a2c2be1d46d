"""Loss at equal steps with sums that are encoded: the whole model in one process, and each step's gradients summed by
the code that owners of pieces run. Each microbatch is another member's."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import trio

from ftnode.lab.recovery.whole_model import Size, WholeModel
from ftnode.models.config import ModelConfig
from ftnode.models.data import Corpus
from ftnode.models.stage import Stage
from ftnode.node.reduction.encoding import Encoding
from ftnode.node.reduction.exchange import pieces_of
from ftnode.node.reduction.piece_sum import PieceSum

MEMBERS = 4
LOOKS = 10
SIZE = Size("sums", ModelConfig(64, 4, 2, 64, 176), 2, MEMBERS, 4, 3e-3, 20, 32)
Numbers = np.ndarray[Any, np.dtype[np.float32]]


class SummedModel(WholeModel):
    """Every stage has MEMBERS holders, with a microbatch each."""

    def __init__(self, corpus: Corpus, seed: int, encoding: Encoding, size: Size = SIZE) -> None:
        super().__init__(size, corpus, seed)
        self._encoding = encoding
        self._parts: list[list[Numbers]] = [[] for _ in self.stages]

    def _microbatch(self, attempt: tuple[int, int], number: int, tokens: torch.Tensor) -> float:
        loss = super()._microbatch(attempt, number, tokens)
        for stage, parts in zip(self.stages, self._parts):
            parts.append(stage.gradient.numpy().copy())
            stage.gradient.zero_()
        if number == self.microbatches - 1:
            for stage, parts in zip(self.stages, self._parts):
                self._sum(stage, parts, attempt[1])
                parts.clear()
        return loss

    def _sum(self, stage: Stage, parts: list[Numbers], step: int) -> None:
        name = self.seed, stage.index, step
        total = stage.gradient.numpy()
        trio.run(summed_up, total, parts, self._encoding, name)


def loss_of(corpus: Corpus, seed: int, encoding: Encoding, steps: int) -> float:
    """The mean of LOOKS validations in the last sixth of a run, since the last step alone is a matter of luck."""
    model, found = SummedModel(corpus, seed, encoding), []
    for step in range(steps):
        model.train(step)
        if (steps - 1 - step) % max(1, steps // (6 * LOOKS)) == 0 and steps - step <= steps // 6:
            found.append(model.validate())
    return sum(found) / len(found)


async def summed_up(into: Numbers, parts: list[Numbers], encoding: Encoding, name: tuple[object, ...]) -> None:
    """What a group has after a sum of these parts."""
    members = [pieces_of(memoryview(part.tobytes()), len(parts), encoding, name) for part in parts]
    for ours, piece in enumerate(pieces_of(into.data.cast("B"), len(parts), encoding, name)):
        piece.numbers[:] = members[ours][ours].numbers
        own = PieceSum(piece, len(parts), ours)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(own.work)
            for whose, pieces in enumerate(members):
                if whose != ours:
                    nursery.start_soon(_contribute, own, whose, pieces[ours])


async def _contribute(own: PieceSum, whose: int, piece: Any) -> None:
    while room := await own.room(whose):
        at = own.taken(whose)
        room[:] = piece.encode(at, piece.chunk(at), whose)
        own.filled(whose)
        await trio.lowlevel.checkpoint()
