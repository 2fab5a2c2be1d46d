"""Which task a peer runs next: backward, then recompute, then forward (rule 28; Varuna's order)."""

from __future__ import annotations

import heapq

from ftnode.protocol.effects import Backward, Forward, Task

COMPUTE_AHEAD = 2
"""Tasks given to the compute process at once: one runs, one waits, so that it never idles for a round trip."""


def priority(task: Task) -> tuple[int, int, int]:
    """Lower runs first. A reduction ends a step, so nothing goes before it."""
    if isinstance(task, Backward):
        return (2 if task.recompute else 1, task.microbatch, -task.visit)
    if isinstance(task, Forward):
        return (3, task.microbatch, -task.visit)
    return (0, 0, task.stage)


class TaskQueue:
    """Tasks that could run now. Bounded by the step: at most one per (microbatch, visit, direction)."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int], int, Task]] = []
        self._serial = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, task: Task) -> None:
        self._serial += 1
        heapq.heappush(self._heap, (priority(task), self._serial, task))

    def take(self) -> Task:
        return heapq.heappop(self._heap)[2]
