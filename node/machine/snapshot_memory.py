"""Shared memory for the copy of a stage's state while it is written to the disk: filled by compute in one command,
read by the node's writer.

Training waits for the copy alone. A place has room for the whole state of its stage, is used again at the next
snapshot, and takes memory only once it was written; so all places together are one more copy of what this node holds.
"""

from __future__ import annotations

from ftnode.node.machine.gradient_memory import GradientMemory


class SnapshotMemory(GradientMemory):
    """The node's: makes the file. `descriptor` is for the compute process, which makes a GradientMap of it.

    `numbers`: of the whole state of each stage, the head's first.
    """

    def __init__(self, numbers: tuple[int, ...], number_bytes: int) -> None:
        super().__init__(numbers, number_bytes)
        self._taken: set[int] = set()

    def view(self, stage: int) -> memoryview:
        """As GradientMap's. Whoever looks finds what was copied."""
        self._taken.add(stage)
        return super().view(stage)

    def missing(self, stage: int) -> int:
        """Bytes that the next copy takes of the host: none where an earlier one has them already."""
        return 0 if stage in self._taken else self.bytes(stage)

    def bytes(self, stage: int) -> int:
        """Of its state."""
        return self.number_bytes * self.numbers[stage]

    def release(self, stage: int) -> None:
        """What nobody has looked at was not written."""
        if stage in self._mapped:
            super().release(stage)
            self._taken.discard(stage)

    def close(self) -> None:
        """Let go of the file; its memory goes with the last who writes from it. A second call does nothing."""
        self._mapped.clear()
        super().close()
