"""Rebuilding a stage from its neighbours' weights as they stream in.

W_i = (ω_{i-1} W_{i-1} + ω_{i+1} W_{i+1}) / (ω_{i-1} + ω_{i+1}), ω = squared gradient norm: CheckFree, Algorithm 1
("All is Not Lost: LLM Recovery without Checkpoints"). Chunks may come in any interleaving of the donors; besides the
stage's own buffer only the chunk at hand is in memory. One donor with share 1 is an exact copy.
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from ftnode.models.faults import Misuse, StageFault
from ftnode.models.tensors import chunks, is_finite

SHARES_TOLERANCE: Final = 1e-6


class Blend:
    """Collects shares of chunks into a flat buffer [n], which it zeroes first; of a stage that is frozen n is 0.

    Every chunk must in the end have been given shares that add up to 1.
    """

    def __init__(self, flat: Tensor, chunk_numbers: int, stage: int) -> None:
        self.stage = stage
        self._pieces = chunks(flat, chunk_numbers)
        self._received = [0.0] * len(self._pieces)
        flat.zero_()

    @property
    def chunks(self) -> int:
        return len(self._pieces)

    def numbers(self, index: int) -> int:
        """How many numbers chunk `index` has. Raises Misuse."""
        if not 0 <= index < self.chunks:
            raise Misuse(f"there is no chunk {index}; there are {self.chunks}", self.stage)
        return self._pieces[index].numel()

    def add(self, index: int, share: float, chunk: Tensor) -> None:
        """Add share · chunk at its place. Raises Misuse for a wrong index, size or share, StageFault for NaN."""
        if chunk.dim() != 1 or chunk.numel() != self.numbers(index):
            raise Misuse(f"chunk {index} has {chunk.numel()} numbers instead of {self.numbers(index)}", self.stage)
        piece = self._pieces[index]
        if not 0 <= share <= 1 or self._received[index] + share > 1 + SHARES_TOLERANCE:
            raise Misuse(
                f"chunk {index} was given more than once: share {share} of {self._received[index]}", self.stage
            )
        if not is_finite(chunk):
            raise StageFault(f"chunk {index} of a donor holds a number that is not finite", self.stage)
        self._received[index] += share
        with torch.no_grad():
            if share == 1:
                piece.copy_(chunk)  # adding to zero would turn -0 into 0, and a copy is exact to the bit
            else:
                piece.add_(chunk.to(piece.device) * share)

    def finish(self) -> None:
        """Raises Misuse if any chunk's shares do not add up to 1."""
        missing = [i for i, share in enumerate(self._received) if abs(share - 1) > SHARES_TOLERANCE]
        if missing:
            raise Misuse(
                f"{len(missing)} of {self.chunks} chunks are incomplete, the first is {missing[0]}", self.stage
            )
