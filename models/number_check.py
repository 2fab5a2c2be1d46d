"""Whether the numbers of one task can be computed with: gathered where they are computed, and read once, with its
result.

A look at a number on a graphics card waits until the card has done all that was asked of it. So each tensor only leaves
its norm behind, and the norms of a task come to the host together.

Numbers that are finite can still be so large that what is computed of them is not (rule 43). Then whoever computes it
would be blamed, and not whoever made them. So what comes from another peer has a bound far below, and what goes out has
half of it: an honest peer never sends what the next one refuses.

- An activation is normalised before anything else is done with it, and what a stage adds to it depends little on its
  size. Beside a norm of 2**48 that is less than float32 rounds off, so that nobody can be led just past the bound.
- A gradient is multiplied: by some 2**30 at most until it is the gradient of a stage's weights, over all microbatches
  of a step. Of a mean loss it is well below 1. With 2**24 the norm of the weights' gradient stays below 2**63, which
  `whole_gradient.py` refuses.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, isfinite, nan
from typing import Final

import torch
from torch import Tensor

from ftnode.models.direction import direction, rounded
from ftnode.models.faults import StageFault
from ftnode.models.tensors import norm

ACTIVATION_NORM_MAX: Final = 2.0**48
GRADIENT_NORM_MAX: Final = 2.0**24
"""L2 norms of tensors from other peers."""
OWN: Final = 0.5
"""Of these, for what we make ourselves. Encodings change a norm by much less."""


class NumberCheck:
    """Of one task on one stage, on any device. Nothing waits before `read`."""

    def __init__(self, stage: int) -> None:
        self._stage = stage
        self._reasons: list[str] = []
        self._numbers: list[Tensor] = []
        self._limits: list[float] = []
        self._value = self._received = -1
        self._first = -1.0
        self._points: Tensor | None = None
        self._way: tuple[int, ...] = ()
        self._arrives: Callable[[], Tensor] | None = None

    def activation(self, what: str, x: Tensor, share: float = 1.0) -> Tensor:
        """`x`, of any shape and on any device, should be of a norm that can be computed with: named `what` in the fault
        if it isn't. `share`: of the largest norm."""
        return self._add(what, x, share * ACTIVATION_NORM_MAX)

    def gradient(self, what: str, x: Tensor, share: float = 1.0) -> Tensor:
        """As `activation`, of what travels back."""
        return self._add(what, x, share * GRADIENT_NORM_MAX)

    def received(self, what: str, x: Tensor, gradient: bool = False) -> Tensor:
        """As `activation` or `gradient`, of what comes from another stage. The norm of the first of these is kept."""
        if self._received < 0:
            self._received = len(self._numbers)
        return self.gradient(what, x) if gradient else self.activation(what, x)

    @property
    def norm_received(self) -> float:
        """Of the first tensor that came from another stage; -1.0 without one, and before `read`."""
        return self._first

    def point(self, x: Tensor) -> None:
        """`x`, an activation that comes from another stage: which way it points is kept."""
        self._points = direction(x)

    @property
    def way(self) -> tuple[int, ...]:
        """Which way it points (direction.py); empty where nobody asked, and before `read`."""
        return self._way

    def _add(self, what: str, x: Tensor, limit: float) -> Tensor:
        reason = f"the {what} holds numbers that are not finite, or too large to compute with"
        return self._expect(reason, norm(x), x, limit)

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
        for reason, number, limit in zip(self._reasons, found, self._limits):
            if not (isfinite(number) and number <= limit):
                raise StageFault(reason, self._stage)
        if self._received >= 0:
            self._first = found[self._received]
        if self._points is not None:
            self._way = rounded(found[len(self._numbers) :])
        return found[self._value] if self._value >= 0 else 0.0

    def _together(self) -> Tensor:
        dtype = max((number.dtype for number in self._numbers), key=lambda each: each.itemsize)
        scalars = torch.stack([number.to(dtype) for number in self._numbers])
        return scalars if self._points is None else torch.cat((scalars, self._points.to(dtype)))

    def _expect(self, reason: str, number: Tensor, x: Tensor, limit: float = inf) -> Tensor:
        self._reasons.append(reason)
        self._limits.append(limit)
        self._numbers.append(number)
        return x
