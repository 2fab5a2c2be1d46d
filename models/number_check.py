"""Whether the numbers of one task are finite: gathered where they are computed, and read once, with its result.

A look at a number on a graphics card waits until the card has done all that was asked of it. So each tensor only leaves
a sum behind, which is finite when all its numbers are, and the sums of a task come to the host together.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, nan

import torch
from torch import Tensor

from ftnode.models.faults import StageFault
from ftnode.models.tensors import plain_sum


class NumberCheck:
    """Of one task on one stage, on any device. Nothing waits before `read`."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._reasons: list[str] = []
        self._numbers: list[Tensor] = []
        self._value = -1
        self._arrives: Callable[[], Tensor] | None = None

    def add(self, what: str, x: Tensor) -> Tensor:
        """`x`, of any shape and on any device, should be finite: named `what` in the fault if it isn't."""
        return self._expect(f"the {what} holds a number that is not finite", plain_sum(x), x)

    def forbid(self, reason: str, broken: Tensor) -> None:
        """`broken`: one truth value, and the whole `reason` if it is true."""
        self._expect(reason, torch.zeros((), device=broken.device).masked_fill(broken, nan), broken)

    def loss(self, loss: Tensor) -> None:
        """One number, which `read` gives."""
        self._value = len(self._numbers)
        self._expect("the loss holds a number that is not finite", loss.detach(), loss)

    def gather(self, bring: Callable[[Tensor], Callable[[], Tensor]]) -> None:
        """The last of what the device is asked to do for the task: have the sums brought to the host. `read` waits for
        that alone, and for nothing that the device is asked for afterwards. `bring`: as of CopyStreams."""
        if self._numbers:
            self._arrives = bring(self._together())

    def read(self) -> float:
        """Wait for the device: the loss, or 0. Raises StageFault for the first that is broken. A second call finds the
        same."""
        if not self._numbers:
            return 0.0
        found: list[float] = (self._arrives() if self._arrives is not None else self._together()).tolist()
        for reason, number in zip(self._reasons, found):
            if not isfinite(number):
                raise StageFault(reason, self._stage)
        return found[self._value] if self._value >= 0 else 0.0

    def _together(self) -> Tensor:
        dtype = max((number.dtype for number in self._numbers), key=lambda each: each.itemsize)
        return torch.stack([number.to(dtype) for number in self._numbers])

    def _expect(self, reason: str, number: Tensor, x: Tensor) -> Tensor:
        self._reasons.append(reason)
        self._numbers.append(number)
        return x
