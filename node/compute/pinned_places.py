"""Tensors over memory that is shared with the node, pinned where a card copies into it.

Pinned pages stay the card's whatever becomes of the file below them. A hole that is punched into the file then parts
the two: the card goes on writing pages that nobody reads, and the node reads zeros. So a place is let go of first, and
its memory given back after that.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Protocol

import torch
from torch import Tensor

from ftnode.models.faults import Misuse


class Places(Protocol):
    """Numbered pieces of shared memory."""

    def view(self, number: int, /) -> memoryview:
        """Writable. Raises LocalError for one that does not exist."""
        ...


class PinRuntime(Protocol):
    """What we use of CUDA's runtime (CUDA Runtime API, Memory Management). 0 is success."""

    def cudaHostRegister(self, pointer: int, size: int, flags: int) -> Any: ...
    def cudaHostUnregister(self, pointer: int) -> Any: ...


class PinnedPlaces:
    """One tensor for each place in `memory`, by stage or by slot, made when it is first asked for, until `let_go`."""

    def __init__(
        self, memory: Places, dtype: torch.dtype, device: torch.device, runtime: PinRuntime | None = None
    ) -> None:
        """`dtype`: of the numbers that `memory` has room for. `runtime`: torch's own; none where nothing is pinned."""
        self._memory, self._dtype, self._device = memory, dtype, device
        self._runtime = runtime
        if runtime is None and device.type == "cuda":
            self._runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
        self._places: dict[int, Tensor] = {}
        self._pinned: set[int] = set()
        """Stages of which the runtime took the place. Slower without, and as right."""

    def place(self, stage: int) -> Tensor:
        """The stage's numbers, flat. Raises LocalError for a stage that does not exist."""
        if stage not in self._places:
            view = self._memory.view(stage)
            place = torch.frombuffer(view, dtype=self._dtype) if view.nbytes else torch.empty(0, dtype=self._dtype)
            self._places[stage] = place
            runtime = self._runtime if view.nbytes else None
            if runtime is not None:
                if int(runtime.cudaHostRegister(place.data_ptr(), place.nbytes, 0)) == 0:
                    self._pinned.add(stage)
                else:
                    self._forgive()
        return self._places[stage]

    def let_go(self, stage: int) -> None:
        """From now on the memory may be given back. Raises Misuse when the runtime keeps it."""
        if stage in self._pinned:
            assert self._runtime is not None
            if int(self._runtime.cudaHostUnregister(self._places[stage].data_ptr())) != 0:
                raise Misuse(f"the memory of stage {stage} stays pinned", stage)
            self._pinned.discard(stage)
        self._places.pop(stage, None)

    def _forgive(self) -> None:
        """CUDA keeps the error of a call that failed until somebody asks, and torch asks after its next kernel: it
        would blame that. So a kernel is run whose failure means nothing."""
        if self._device.type == "cuda":
            with suppress(RuntimeError):
                torch.zeros(1, device=self._device)
