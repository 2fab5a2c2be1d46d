"""Carries out the core's tasks in the compute process.

A slot that a task reads is pinned until its answer, so that releasing its handle meanwhile frees it only afterwards.
The slot that it writes belongs to the task until then, and to the core from Done on.
"""

from __future__ import annotations

import logging
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from ftnode.node.compute.group import ComputeGroup
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import REASON_TEXT_MAX, ComputeError
from ftnode.node.reduction.exchange import Noted
from ftnode.node.reduction.reductions import Reductions
from ftnode.protocol.words.effects import NOT_SHOWN, Backward, Forward, Recount, Reduce, StepTask, Weigh
from ftnode.protocol.words.events import Done, Event, SumOwed
from ftnode.protocol.words.types import HEAD, Attempt, Handle, PartSeen

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Waiting:
    """A task on its way to compute. `used`: its inputs, pinned. `slots`: of its input and its gradient."""

    task: StepTask
    used: list[Handle]
    slots: list[int | None]


class TaskRunner:
    """`fail` is told when a command fails in a way that leaves the process's state unknown."""

    def __init__(
        self,
        arena: Arena,
        compute: ComputeGroup,
        deliver: Callable[[Event], None],
        fail: Callable[[str], None],
    ) -> None:
        self._arena, self._compute, self._deliver, self._fail = arena, compute, deliver, fail
        self._waiting: deque[_Waiting] = deque()
        """Tasks that got no slot for their output. Bounded by COMPUTE_AHEAD, since the core gives no more."""
        self.covered: dict[StepTask, list[list[int]]] = {}
        """Per reduction, the visits that the compute process itself counted; taken by the trace."""
        self.reductions: Reductions | None = None
        """Of groups."""

    def discard(self, keep: Attempt | None) -> None:
        """Compute forgets all attempts but `keep`: its commands come in order, so it knows of no later one."""
        self.drop_waiting(keep)
        if self.reductions is not None:
            self.reductions.discard(keep)
        self._compute.post("discard", self.check, keep=list(keep) if keep is not None else None)

    def start(self, task: StepTask) -> None:
        """Give a task to compute; Done follows. One whose output finds no slot waits for it, and the next behind it."""
        inputs: tuple[Handle | None, ...] = ()
        if not isinstance(task, Reduce | Weigh):
            inputs = (task.input, None if isinstance(task, Forward) else task.gradient)
        if isinstance(task, Recount):
            inputs += task.passed_on, task.handed_back
        used = [handle for handle in inputs if handle is not None]
        for handle in used:
            self._arena.pin(handle)
        slots = [None if handle is None else self._arena.slot(handle) for handle in inputs]
        self._waiting.append(_Waiting(task, used, slots))
        self.resume()
        if self._waiting:
            log.warning("%d tasks wait for a slot: all %d are taken", len(self._waiting), self._arena.slots)

    def resume(self) -> None:
        """Start the tasks that wait for slots, as far as there are any now."""
        while self._waiting and (self._arena.free or not self._has_output(self._waiting[0].task)):
            waiting = self._waiting.popleft()
            task = waiting.task
            if isinstance(task, Reduce):
                self._reduce(task)
            elif isinstance(task, Weigh):
                self._weigh(task)
            else:
                self._run(task, waiting.used, waiting.slots)

    def drop_waiting(self, keep: Attempt | None) -> None:
        """Forget the tasks that wait and are of an attempt before `keep` (None: all). Nothing follows for them."""
        dropped = [waiting for waiting in self._waiting if keep is None or waiting.task.attempt < keep]
        for waiting in dropped:
            self._waiting.remove(waiting)
            for handle in waiting.used:
                self._arena.unpin(handle)

    def _run(self, task: Forward | Backward | Recount, used: list[Handle], slots: list[int | None]) -> None:
        output = self._arena.take() if self._has_output(task) else None

        def answered(answer: dict[str, Any] | ComputeError) -> None:
            for handle in used:
                self._arena.unpin(handle)
            if isinstance(answer, ComputeError):
                if output is not None:
                    self._arena.release(output)
                self.check(answer)
                return
            value, fault = number_in(answer, "value")
            faulty = int(answer.get("faulty", -1)) if fault else -1
            received = float(answer.get("received", -1.0))
            way, tokens = tuple(map(int, answer.get("way", ()))), int(answer["tokens"] or 0)
            self._deliver(Done(task, output, value, tokens, "", fault, faulty=faulty, received=received, way=way))

        fields: dict[str, Any] = {
            "stage": task.stage, "step": task.step, "attempt": list(task.attempt), "microbatch": task.microbatch,
            "visit": task.visit, "input": slots[0], "onward": list(task.onward),
        }  # fmt: skip
        if isinstance(task, Recount):
            if task.rebuilt >= 0:  # what was lent for a stage is where that one is
                fields |= {"stage": task.rebuilt, "lent": task.stage}
            self._compute.post(
                "recount", answered, **fields, gradient=slots[1], of=apart_of(task), passed_on=slots[2],
                handed_back=slots[3],
            )  # fmt: skip
            return
        fields["output"] = None if output is None else self._arena.slot(output)
        if isinstance(task, Forward):
            self._compute.post("forward", answered, **fields, save=task.save, validation=task.validation)
        else:
            self._compute.post("backward", answered, **fields, gradient=slots[1], recompute=task.recompute)

    def _reduce(self, task: Reduce) -> None:
        def answered(answer: dict[str, Any] | ComputeError) -> None:
            if isinstance(answer, ComputeError):
                self.check(answer)
                return
            norm, fault = number_in(answer, "norm_squared")
            self.covered[task] = [list(pair) for pair in answer["covered"]]
            relayed = tuple(sorted(answer.get("relayed", {}).items()))
            parts, sums = (
                tuple(PartSeen(peer, seen.size, seen.cosine, seen.counted) for peer, seen in answer.get(what, ()))
                for what in ("parts", "sums")
            )
            giver, gradient = answer.get("giver"), str(answer["gradient"])
            self._deliver(Done(task, None, norm, 0, gradient, fault, relayed, parts=parts, giver=giver, sums=sums))

        if task.group:
            assert self.reductions is not None
            self.reductions.start(task, answered, lambda parts, sums: self._deliver(SumOwed(task, parts, sums)))
            return
        if self.reductions is not None:
            self.reductions.replace(task.stage)
        self._compute.post("reduce", answered, stage=task.stage, step=task.step, attempt=list(task.attempt))

    def _weigh(self, task: Weigh) -> None:
        """Compute has what is right, and the sum's exchange what was given, and what was made of it: all sketched with
        one key."""
        reductions = self.reductions

        def found(noted: Noted | str | None) -> None:
            if noted is None or isinstance(noted, str):
                reason = f"{NOT_SHOWN}: {noted}" if noted else "nothing of it was noted"
                self._deliver(Done(task, None, 0.0, 0, "", reason[:REASON_TEXT_MAX]))
                return
            assert reductions is not None
            holders = [task.of] if task.shown_by is None else [task.of, task.shown_by]

            def added(made: Noted | str) -> None:
                if isinstance(made, str):
                    self._compare(task, [noted], made)
                else:
                    self._compare(task, [noted, made])

            reductions.add_up_again(task.stage, task.attempt, task.of, noted.sketch.key, holders, added)

        def shown(made: Noted | str) -> None:
            if isinstance(made, str):
                fault = "" if made else "nobody keeps what was given to it"
                self._deliver(Done(task, None, 0.0, 0, "", fault, hidden=made[:REASON_TEXT_MAX]))
            else:
                self._compare(task, [made])

        if reductions is not None and task.seconds:
            key = secrets.randbits(64)
            reductions.add_up_again(task.stage, task.attempt, task.of, key, [task.of], shown, task.seconds)
        elif reductions is None or task.shown_by is None:
            found(reductions.noted(task.stage, task.attempt, task.of) if reductions is not None else None)
        else:
            reductions.ask_for_part(task.stage, task.attempt, task.shown_by, task.of, found)

    def _compare(self, task: Weigh, given: Sequence[Noted], hidden: str = "") -> None:
        """How far the farthest of it is from what is right. `hidden`: why the rest is not seen."""
        from ftnode.node.reduction.sketch import distance, norm  # nodes that check nobody do without numpy

        def answered(answer: dict[str, Any] | ComputeError) -> None:
            if isinstance(answer, ComputeError):
                self.check(answer)
                return
            fault, away = str(answer["fault"]), list[float]()
            for one, right in zip(given, answer["sums"]):
                if one.others is None or not one.others.may_be_cut_off(norm(right)):
                    away.append(distance(one.sketch.sums, right, one.beside))
            if not away and not fault:
                fault = "some of what was given to its piece may have been cut off"
            value = max(away, default=0.0)
            self._deliver(Done(task, None, value, 0, "", fault, hidden=hidden[:REASON_TEXT_MAX]))

        self._compute.post(
            "weigh", answered, stage=task.stage, step=task.step, attempt=list(task.attempt), of=apart_of(task),
            key=given[0].sketch.key, parts=[[list(part) for part in one.parts] for one in given],
        )  # fmt: skip

    def _has_output(self, task: StepTask) -> bool:
        """Forward makes an activation but at the last visit, backward a gradient but at the first."""
        if isinstance(task, Forward):
            return task.stage != HEAD or task.visit == 0
        return isinstance(task, Backward) and task.visit > 0

    def check(self, answer: dict[str, Any] | ComputeError) -> None:
        """An answer that should be a success. Of a process that is gone, or of a stage for which there was no memory,
        the group tells; anything else ends the process."""
        if not isinstance(answer, ComputeError) or answer.kind == "lost":
            return
        if answer.kind != "oom" or answer.stage < 0:
            self._fail(f"compute: {answer}")


def apart_of(task: Recount | Weigh) -> list[Any]:
    """Under which name compute keeps what is done again: for our leader apart from what a check of our own did."""
    return [*task.of, task.judged]


def number_in(answer: dict[str, Any], name: str) -> tuple[float, str]:
    """(value, fault). The fault of a good answer is the data's, and poisons the step: the process is well.

    A number that is not finite never leaves this peer: others would take it for an offence.
    """
    fault, value = str(answer.get("fault") or "")[:REASON_TEXT_MAX], float(answer[name] or 0.0)
    if not fault and not isfinite(value):
        fault = f"{name} is {value}"
    return (0.0, fault) if fault else (value, "")
