"""Visits that are done again on a copy that this node keeps (a Recount with `copy`), and samples of how it is trained.

The weights lie in the node's memory, so they go to compute first, chunk by chunk, while the step's own tasks go on.
Samples are fetched from the stage's holder (Sample), lie here until both are wanted (Retrace), and go the same way.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

import trio

from ftnode.models.state_sample import parts_of
from ftnode.node.compute.group import ComputeGroup
from ftnode.node.compute.state_shape import shape_of
from ftnode.node.driver.tasks import apart_of, number_in
from ftnode.node.machine.tensor_slots import Arena
from ftnode.node.ports import ComputeError
from ftnode.node.weights.copies import Copy, CopyStore
from ftnode.node.weights.copy_fetching import Fetched
from ftnode.node.weights.reading import CopyReading, call_in_time, call_with_slot
from ftnode.protocol.words.codec import to_plain
from ftnode.protocol.words.effects import NOT_DONE, Course, Keep, Recount, Retrace, Sample, Task
from ftnode.protocol.words.events import Done, Event, KeepFailed
from ftnode.protocol.words.types import Handle, Version

log = logging.getLogger(__name__)


class CopyTrials:
    """Carries out such tasks, one at a time: the core gives no more."""

    def __init__(
        self, arena: Arena, compute: ComputeGroup, copies: CopyStore, deliver: Callable[[Event], None]
    ) -> None:
        self._arena, self._compute, self._copies, self._deliver = arena, compute, copies, deliver
        self.whole_models = True
        """Copies are all of a stage: nothing of the model is left as it is."""
        self.fetch: Callable[[Keep], Awaitable[Fetched]] | None = None
        """What fetches copies of others' states."""
        self._samples: dict[Version, Copy] = {}
        """Of the newest trial, by what they are of: two at most."""
        self._key = -1
        """By which samples of that trial are drawn."""

    def start(self, task: Recount | Sample | Retrace | Course, nursery: trio.Nursery) -> None:
        """Done follows: with value NOT_DONE, of a Retrace 0, where there is nothing to compare with."""
        if isinstance(task, Sample):
            if task.key != self._key:
                self._key, self._samples = task.key, {}
            nursery.start_soon(self._take_sample, task)
            return
        if isinstance(task, Retrace):
            nursery.start_soon(self._retrace, task)
            return
        if isinstance(task, Course):
            nursery.start_soon(self._course, task)
            return
        named = {
            "input": task.input, "gradient": task.gradient, "passed_on": task.passed_on,
            "handed_back": task.handed_back,
        }  # fmt: skip
        # The core may be done with them while the copy is on its way to compute. So they are looked up now.
        slots = {name: None if handle is None else self._arena.slot(handle) for name, handle in named.items()}
        handles = [handle for handle in named.values() if handle is not None]
        for handle in handles:
            self._arena.pin(handle)
        nursery.start_soon(self._try, task, slots, handles)

    async def _try(self, task: Recount, slots: dict[str, int | None], pinned: list[Handle]) -> None:
        value, fault = NOT_DONE, ""
        try:
            copy = self._copy_of(task)
            if copy is not None and self.whole_models:
                value, fault = await self._do_again(task, copy, slots)
        except (ComputeError, trio.TooSlowError) as error:
            log.info("the copy of stage %d is not tried: %s", task.stage, error)
            with suppress(ComputeError, trio.TooSlowError):
                await call_in_time(self._compute, "copy_drop", stage=task.stage)
        finally:
            for handle in pinned:
                self._arena.unpin(handle)
        self._answer(task, value, fault)

    async def _take_sample(self, task: Sample) -> None:
        fault = "there is no use for it"
        if self.fetch is not None and self.whole_models:
            fetched = await self.fetch(Keep(task.donor, task.version, parts_of(task.key), "raw", -1))
            fault = fetched.event.reason if isinstance(fetched.event, KeepFailed) else ""
            if fetched.copy is not None and task.key == self._key:
                self._samples[task.version] = fetched.copy
        self._answer(task, 0.0, fault)

    async def _retrace(self, task: Retrace) -> None:
        value, fault = 0.0, ""
        samples = [self._samples.get(version) for version in (task.before, task.after)]
        lent = [copy for copy in samples if copy is not None]
        try:
            if len(lent) == len(samples) and task.key == self._key:
                value, fault = await self._compare(task, lent)
        except (ComputeError, trio.TooSlowError) as error:
            log.info("how stage %d was trained is not looked at: %s", task.stage, error)
        self._answer(task, value, fault)

    async def _course(self, task: Course) -> None:
        value, fault = 0.0, "compute does not answer"
        try:
            before, after = to_plain(task.before), to_plain(task.after)
            answer = await call_in_time(self._compute, "course", stage=task.stage, before=before, after=after)
            value, fault = number_in(answer, "value")
        except (ComputeError, trio.TooSlowError) as error:
            log.info("which way stage %d went is not looked at: %s", task.stage, error)
        self._answer(task, value, fault)

    def _answer(self, task: Task, value: float, fault: str) -> None:
        self._deliver(Done(task, None, value, 0, "", fault))

    async def _compare(self, task: Retrace, lent: list[Copy]) -> tuple[float, str]:
        """Raises ComputeError; trio.TooSlowError without a slot."""
        for after, copy in enumerate(lent):
            await self._bring(copy, "sample_chunk", stage=task.stage, key=task.key, after=bool(after))
        answer = await call_in_time(
            self._compute, "retrace", stage=task.stage, version=to_plain(task.before),
            key=task.key, updates=[copy.header.step_count for copy in lent],
            rate_factors=[copy.header.rate_factor for copy in lent],
        )  # fmt: skip
        return number_in(answer, "value")

    async def _bring(self, copy: Copy, op: str, lengths: Sequence[int] = (), **fields: Any) -> None:
        """To compute, chunk by chunk; of each so many bytes, of all chunks all where none are given. Raises as
        `_compare`."""
        reading = CopyReading(self._arena, copy)
        for index, length in enumerate(lengths or map(len, copy.chunks)):
            chunk = await reading.chunk(index)
            try:
                await call_with_slot(
                    self._compute, op, index=index, slot=self._arena.slot(chunk.handle), length=length, **fields
                )
            finally:
                self._arena.release(chunk.handle)

    def _copy_of(self, task: Recount) -> Copy | None:
        kept = (self._copies.fetched.get(task.stage), self._copies.held.get(task.stage))
        return next((each for each in kept if each is not None and each.header.version == task.copy), None)

    async def _do_again(self, task: Recount, copy: Copy, slots: dict[str, int | None]) -> tuple[float, str]:
        """How far what the holder passed on is from what its visit gives, or why it gives nothing. Raises ComputeError;
        trio.TooSlowError without a slot."""
        encoding, weights = copy.header.encoding, tuple[int, ...]()
        if copy.parts == "all":  # the optimiser's moments come behind the weights
            weights = shape_of(self._compute.config).lengths(task.stage, "weights", encoding)
        await self._bring(copy, "copy_chunk", weights, stage=task.stage, encoding=encoding)
        answer = await call_in_time(
            self._compute, "recount", stage=task.stage, step=task.step, attempt=list(task.attempt),
            microbatch=task.microbatch, visit=task.visit, of=apart_of(task), copy=to_plain(task.copy),
            key=task.key, **slots,
        )  # fmt: skip
        return number_in(answer, "value")
