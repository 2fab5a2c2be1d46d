"""Copies between slots and a card, beside what the card computes.

What comes in and what goes out have a stream each, since a copy out waits for its task: the next task's input must not
wait behind it. Events keep the order. A task reads its input after the copy in; the copy out begins after the task.
The sums of a task leave the card behind its output, so whoever has the sums finds the output in its slot, and knows
that the slot of the input is free. Only then a task is answered, and the node lets go of its slots.

CUDA Programming Guide, Asynchronous Concurrent Execution; for the memory, torch's notes on `Tensor.record_stream`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor


class Runtime(Protocol):
    """What we use of a card's streams and events."""

    def stream(self) -> Any:
        """A new one."""
        ...

    def computing(self) -> Any:
        """The stream that tasks are computed on."""
        ...

    def like(self, tensor: Tensor, stream: Any) -> Tensor:
        """Memory on the card, first written on `stream`."""
        ...

    def host(self, tensor: Tensor) -> Tensor:
        """Pinned memory of the host, for as much."""
        ...

    def copy(self, into: Tensor, source: Tensor, stream: Any) -> None:
        """Whenever `stream` comes to it."""
        ...

    def used(self, tensor: Tensor, stream: Any) -> None:
        """Memory of the card is given to nobody else before `stream` has come to here."""
        ...

    def event(self, stream: Any) -> Any:
        """Happens when `stream` has come to here."""
        ...

    def after(self, stream: Any, event: Any) -> None:
        """What `stream` is asked for from now on begins after the event."""
        ...

    def wait(self, event: Any) -> None:
        """Until it has happened."""
        ...


class CopyStreams:
    """Of one card. Nothing here waits but what `bring` returns."""

    beside = True
    """A next task may be begun before the last one is read."""
    tensors = 6
    """Boundary tensors on the card at most: of each of two tasks its input, its gradient, and what it makes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._in, self._out = runtime.stream(), runtime.stream()

    def fetch(self, content: Tensor) -> Tensor:
        """A copy on the card of what lies on the host, for tasks from now on. `content` must stay until `bring` of that
        task has arrived."""
        runtime = self._runtime
        here = runtime.like(content, self._in)
        runtime.copy(here, content, self._in)
        runtime.after(runtime.computing(), runtime.event(self._in))
        runtime.used(here, runtime.computing())
        return here

    def fetch_new(self, content: Tensor) -> Tensor:
        """The same of numbers that nobody keeps."""
        pinned = self._runtime.host(content)
        pinned.copy_(content)
        return self.fetch(pinned)

    def buffer(self, into: Tensor) -> Tensor:
        """Where a task writes what goes to `into`."""
        return self._runtime.like(into, self._runtime.computing())

    def give(self, buffer: Tensor, into: Tensor) -> None:
        """What the tasks so far have written there goes to the host."""
        runtime = self._runtime
        runtime.after(self._out, runtime.event(runtime.computing()))
        runtime.copy(into, buffer, self._out)
        runtime.used(buffer, self._out)

    def bring(self, numbers: Tensor) -> Callable[[], Tensor]:
        """Behind what was given. What it returns waits, and gives the numbers on the host."""
        found = self._runtime.host(numbers)
        self.give(numbers, found)
        arrived = self._runtime.event(self._out)

        def waited() -> Tensor:
            self._runtime.wait(arrived)
            return found

        return waited


class NoCopies:
    """Of a processor, which computes where the slots are, and has done a task when it is begun."""

    beside = False
    tensors = 0

    def fetch(self, content: Tensor) -> Tensor:
        return content

    fetch_new = fetch
    buffer = fetch

    def give(self, buffer: Tensor, into: Tensor) -> None:
        """It is there already."""

    def bring(self, numbers: Tensor) -> Callable[[], Tensor]:
        return lambda: numbers


class Cuda:
    """As torch has it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def stream(self) -> Any:
        return torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def computing(self) -> Any:
        return torch.cuda.current_stream(self._device)

    def like(self, tensor: Tensor, stream: Any) -> Tensor:
        with torch.cuda.stream(stream):
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)

    def host(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def copy(self, into: Tensor, source: Tensor, stream: Any) -> None:
        with torch.cuda.stream(stream):
            into.copy_(source, non_blocking=True)

    def used(self, tensor: Tensor, stream: Any) -> None:
        tensor.record_stream(stream)

    def event(self, stream: Any) -> Any:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(stream)
        return event

    def after(self, stream: Any, event: Any) -> None:
        stream.wait_event(event)

    def wait(self, event: Any) -> None:
        event.synchronize()


def copies_of(device: torch.device) -> CopyStreams | NoCopies:
    return CopyStreams(Cuda(device)) if device.type == "cuda" else NoCopies()
