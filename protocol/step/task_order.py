"""Which task a peer runs next: backward, then recompute, then forward (rule 28; Varuna's order). What another did is
done again at the end."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ftnode.protocol.words.effects import Backward, Forward, Recount, Task, Weigh

COMPUTE_AHEAD = 2
"""Tasks given to the compute process at once: one runs, one waits, so that it never idles for a round trip."""


def priority(task: Task) -> tuple[int, int, int]:
    """Lower runs first. A reduction ends a step, so nothing goes before it."""
    if isinstance(task, Backward):
        return (2 if task.recompute else 1, task.microbatch, -task.visit)
    if isinstance(task, Forward):
        return (3, task.microbatch, -task.visit)
    if isinstance(task, Recount):
        return (4, task.microbatch, task.visit)
    return (5 if isinstance(task, Weigh) else 0, 0, task.stage)


class Pace:
    """How long compute takes for a microbatch of each stage, forward and backward together: moving means. The head does
    two things with each, and they are apart from each other: embedding it and its loss."""

    def __init__(self) -> None:
        self._mean: dict[tuple[int, type, bool], float] = {}
        self._since = 0.0

    def started(self, now: float) -> None:
        """Compute, which was idle, has been given a task."""
        self._since = now

    def done(self, task: Task, now: float) -> None:
        """Compute has finished a task, and goes on with the next if it has one. Block stages are of one size, so that
        each of several in a task took an equal part of its time."""
        seconds, self._since = (now - self._since) / len(task.stages), now
        if isinstance(task, Backward) or (isinstance(task, Forward) and not task.validation):
            for stage in task.stages:
                key = (stage, type(task), task.visit == 0)
                self._mean[key] = seconds if key not in self._mean else 0.8 * self._mean[key] + 0.2 * seconds

    def seconds(self, stage: int) -> float:
        """0.0 before both were measured: forward alone would pass for a fast stage."""
        found = {key[1:]: mean for key, mean in self._mean.items() if key[0] == stage}
        return sum(found.values()) if {kind for kind, _ in found} == {Forward, Backward} else 0.0


class LiveActivations:
    """Device memory is local (rule 28): beyond `limit` saved activations of a stage a peer runs it forward without
    saving."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._saved: dict[tuple[int, int], int] = {}
        """(microbatch, visit) → its stage."""
        self._of = Counter[int]()
        """Stage → how many of it."""

    def decide(self, task: Task) -> Task:
        """The task as it is given to compute."""
        if not isinstance(task, Forward):
            return task
        save = not task.validation and self.take((task.microbatch, task.visit), task.stage)
        return replace(task, save=save)

    def take(self, key: tuple[int, int], stage: int) -> bool:
        """Keep one more of the stage, if there is room."""
        room = self._of[stage] < self.limit
        if room:
            self._saved[key] = stage
            self._of[stage] += 1
        return room

    def __contains__(self, key: tuple[int, int]) -> bool:
        return key in self._saved

    def used(self, key: tuple[int, int]) -> None:
        """Backward has taken it."""
        if (stage := self._saved.pop(key, None)) is not None:
            self._of[stage] -= 1


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

    def drop(self, unwanted: Callable[[Task], bool]) -> None:
        """Forget tasks that need not be done any more."""
        self._heap = [entry for entry in self._heap if not unwanted(entry[2])]
        heapq.heapify(self._heap)
