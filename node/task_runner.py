"""Carries out the core's tasks in the compute process, and keeps the books of tensors: which slot, of which attempt.

A slot that a running task reads or writes is pinned, so that releasing its handle meanwhile frees it only afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ftnode.node.arena import Arena
from ftnode.node.compute import ComputeProcess
from ftnode.node.ports import ComputeError
from ftnode.protocol.effects import Backward, Forward, Reduce, Task
from ftnode.protocol.events import Done, Event
from ftnode.protocol.types import Attempt, Handle


class TaskRunner:
    """`fail` is told when a command fails in a way that leaves the process's state unknown."""

    def __init__(
        self,
        arena: Arena,
        compute: ComputeProcess,
        deliver: Callable[[Event], None],
        fail: Callable[[str, int], None],
    ) -> None:
        self._arena, self._compute, self._deliver, self._fail = arena, compute, deliver, fail
        self._attempts: dict[Handle, Attempt] = {}
        self.covered: dict[Task, list[list[int]]] = {}
        """Per reduction, the visits that the compute process itself counted; taken by the trace."""

    # -- tensors

    def own(self, handle: Handle, attempt: Attempt) -> None:
        """This tensor belongs to an attempt and goes with it."""
        self._attempts[handle] = attempt

    def release(self, handles: Iterable[Handle]) -> None:
        for handle in handles:
            if self._attempts.pop(handle, None) is not None:
                self._arena.release(handle)

    def discard(self, keep: Attempt | None) -> None:
        """Free the tensors of every attempt before `keep`, and have compute drop what it accumulated for them."""
        old = [handle for handle, attempt in self._attempts.items() if keep is None or attempt < keep]
        self.release(old)
        self._compute.post("discard", self.check, keep=list(keep) if keep is not None else None)

    # -- tasks

    def start(self, task: Task) -> None:
        """Give a task to compute; Done follows."""
        if isinstance(task, Reduce):
            self._compute.post(
                "reduce", lambda answer: self._reduced(task, answer), stage=task.stage, step=task.step,
                attempt=list(task.attempt),
            )  # fmt: skip
            return
        inputs = [task.input, task.gradient if isinstance(task, Backward) else None]
        used = [handle for handle in inputs if handle is not None]
        output = self._arena.take() if _has_output(task, self._compute.config.stages + 1) else None
        if output is not None:
            self.own(output, task.attempt)
            used.append(output)
        for handle in used:
            self._arena.pin(handle)

        def answered(answer: dict[str, Any] | ComputeError) -> None:
            for handle in used:
                self._arena.unpin(handle)
            self._done(task, output, answer)

        fields: dict[str, Any] = {
            "stage": task.stage, "step": task.step, "attempt": list(task.attempt), "microbatch": task.microbatch,
            "visit": task.visit, "input": self._slot(task.input), "output": self._slot(output),
        }  # fmt: skip
        if isinstance(task, Forward):
            self._compute.post("forward", answered, **fields, save=task.save, validation=task.validation)
        else:
            gradient = self._slot(task.gradient)
            self._compute.post("backward", answered, **fields, gradient=gradient, recompute=task.recompute)

    def _slot(self, handle: Handle | None) -> int | None:
        return None if handle is None else self._arena.slot(handle)

    def _done(self, task: Task, output: Handle | None, answer: dict[str, Any] | ComputeError) -> None:
        alive = output if output in self._attempts else None
        if isinstance(answer, ComputeError):
            if answer.kind != "fault":
                self.check(answer)
                return
            self._deliver(Done(task, alive, 0.0, 0, "", answer.reason))
            return
        fault = str(answer.get("fault") or "")
        value = 0.0 if fault else float(answer["value"] or 0.0)
        self._deliver(Done(task, alive, value, int(answer["tokens"] or 0), "", fault))

    def _reduced(self, task: Reduce, answer: dict[str, Any] | ComputeError) -> None:
        if isinstance(answer, ComputeError):
            if answer.kind != "fault":
                self.check(answer)
                return
            self._deliver(Done(task, None, 0.0, 0, "", answer.reason))
            return
        fault = str(answer.get("fault") or "")
        self.covered[task] = [list(pair) for pair in answer["covered"]]
        norm = 0.0 if fault else float(answer["norm_squared"])
        self._deliver(Done(task, None, norm, 0, str(answer["gradient"]), fault))

    def check(self, answer: dict[str, Any] | ComputeError) -> None:
        """An answer that should be a success. A process that is gone tells of itself; anything else ends it."""
        if isinstance(answer, ComputeError) and answer.kind != "lost":
            self._fail(f"compute: {answer}", answer.stage if answer.kind == "oom" else -1)


def _has_output(task: Forward | Backward, last_visit: int) -> bool:
    """Forward makes an activation but at the last visit, backward a gradient but at the first."""
    return task.visit < last_visit if isinstance(task, Forward) else task.visit > 0
