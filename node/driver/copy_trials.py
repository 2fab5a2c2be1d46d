"""Visits that are done again on a copy that this node keeps (a Recount with `copy`).

The weights lie in the node's memory, so they go to compute first, chunk by chunk, while the step's own tasks go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import trio

from ftnode.node.compute.group import ComputeGroup
from ftnode.node.driver.tasks import apart_of, number_in
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError
from ftnode.node.weights.copies import Copy, CopyStore
from ftnode.node.weights.reading import CopyReading, call_in_time, call_with_slot
from ftnode.protocol.words.effects import Recount
from ftnode.protocol.words.events import Done, Event
from ftnode.protocol.words.types import Handle

log = logging.getLogger(__name__)


class CopyTrials:
    """Carries out such tasks, one at a time: the core gives no more."""

    def __init__(
        self, arena: Arena, compute: ComputeGroup, copies: CopyStore, deliver: Callable[[Event], None]
    ) -> None:
        self._arena, self._compute, self._copies, self._deliver = arena, compute, copies, deliver
        self.whole_models = True
        """Copies are all of a stage: nothing of the model is left as it is."""

    def start(self, task: Recount, nursery: trio.Nursery) -> None:
        """Done follows: with value 0 where there is nothing to compare with."""
        handles = [each for each in (task.input, task.gradient, task.passed_on, task.handed_back) if each is not None]
        for handle in handles:
            self._arena.pin(handle)
        nursery.start_soon(self._try, task, handles)

    async def _try(self, task: Recount, pinned: list[Handle]) -> None:
        value, fault = 0.0, ""
        try:
            copy = self._copy_of(task)
            if copy is not None and self.whole_models:
                value, fault = await self._do_again(task, copy)
        except (ComputeError, trio.TooSlowError) as error:
            log.info("the copy of stage %d is not tried: %s", task.stage, error)
        finally:
            for handle in pinned:
                self._arena.unpin(handle)
        self._deliver(Done(task, None, value, 0, "", fault))

    def _copy_of(self, task: Recount) -> Copy | None:
        kept = (self._copies.fetched.get(task.stage), self._copies.held.get(task.stage))
        return next((each for each in kept if each is not None and each.header.version == task.copy), None)

    async def _do_again(self, task: Recount, copy: Copy) -> tuple[float, str]:
        """How far what the holder passed on is from what its visit gives, or why it gives nothing. Raises ComputeError;
        trio.TooSlowError without a slot."""
        reading = CopyReading(self._arena, copy)
        for index in range(len(copy.chunks)):
            chunk = await reading.chunk(index)
            try:
                await call_with_slot(
                    self._compute, "copy_chunk", stage=task.stage, index=index, slot=self._arena.slot(chunk.handle),
                    length=chunk.length, encoding=copy.header.encoding,
                )  # fmt: skip
            finally:
                self._arena.release(chunk.handle)
        assert task.copy is not None
        version = [task.copy.step, task.copy.commit, list(task.copy.attempt)]
        slots = {
            name: None if handle is None else self._arena.slot(handle)
            for name, handle in (
                ("input", task.input), ("gradient", task.gradient), ("passed_on", task.passed_on),
                ("handed_back", task.handed_back),
            )
        }  # fmt: skip
        answer = await call_in_time(
            self._compute, "recount", stage=task.stage, step=task.step, attempt=list(task.attempt),
            microbatch=task.microbatch, visit=task.visit, of=apart_of(task), copy=version, **slots,
        )  # fmt: skip
        return number_in(answer, "value")
