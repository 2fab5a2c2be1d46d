"""Shared memory for gradients of whole stages while a group reduces them: written by compute, exchanged by the node.

A gradient is as large as its stage, and a slot of the arena as small as a boundary tensor: through slots, each of
hundreds of chunks would be a command that waits its turn behind somebody's forward pass. So every stage has its place
in one sparse file that both processes map where they need it, and one command fills it, one other uses it. A place
that nobody wrote takes no memory.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

from ftnode.node.machine.tensor_slots import shared_file
from ftnode.protocol.words.errors import LocalError


class GradientMap:
    """The mapping of the file. `numbers[stage]`: how many a stage's gradient has, each of `number_bytes`.

    Views are valid for ever.
    """

    def __init__(self, descriptor: int, numbers: Sequence[int], number_bytes: int) -> None:
        """`descriptor` has to stay open."""
        self.numbers, self.number_bytes = tuple(numbers), number_bytes
        self._descriptor = descriptor
        self._mapped: dict[int, mmap.mmap] = {}

    def view(self, stage: int) -> memoryview:
        """Writable bytes, `number_bytes` per number. Raises LocalError for a stage that does not exist."""
        if not 0 <= stage < len(self.numbers):
            raise LocalError(f"there is no stage {stage}")
        if stage not in self._mapped:
            offset = sum(_room(numbers, self.number_bytes) for numbers in self.numbers[:stage])
            self._mapped[stage] = mmap.mmap(
                self._descriptor, _room(self.numbers[stage], self.number_bytes), offset=offset
            )
        return memoryview(self._mapped[stage])[: self.number_bytes * self.numbers[stage]]

    def release(self, stage: int) -> None:
        """Give the memory back, where the system can; then zeros are there from now on."""
        self.view(stage)
        if hasattr(mmap, "MADV_REMOVE"):
            self._mapped[stage].madvise(mmap.MADV_REMOVE)


class GradientMemory(GradientMap):
    """The node's: makes the file. `descriptor` is for the compute process, which makes a GradientMap of it."""

    def __init__(self, numbers: Sequence[int], number_bytes: int) -> None:
        self.descriptor = shared_file(sum(_room(count, number_bytes) for count in numbers))
        super().__init__(self.descriptor, numbers, number_bytes)

    def close(self) -> None:
        """Let go of the file; its memory goes with the last mapping. A second call does nothing."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def _room(numbers: int, number_bytes: int) -> int:
    """Bytes of a place: mappings begin at multiples of the granularity."""
    size = max(1, number_bytes * numbers)
    return -(-size // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
