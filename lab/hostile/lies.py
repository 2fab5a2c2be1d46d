"""What a volunteer gives to others instead of what its visits give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Lie = Callable[[Any, Any], None]
"""Of a flat gradient, in place, and that of the step before; torch is the caller's."""


def noise(gradient: Any, before: Any) -> None:
    """As large as the true one."""
    size = gradient.norm()
    gradient.normal_()
    gradient.mul_(size / gradient.norm())


def nothing(gradient: Any, before: Any) -> None:
    gradient.zero_()


def older(gradient: Any, before: Any) -> None:
    """That of the step before."""
    gradient.copy_(before)


LIES: Final[dict[str, Lie]] = {
    "times1000": lambda gradient, before: gradient.mul_(1000.0),
    "times1.5": lambda gradient, before: gradient.mul_(1.5),
    "turned": lambda gradient, before: gradient.neg_(),
    "noise": noise,
    "older": older,
    "nothing": nothing,
}  # fmt: skip


def largest(x: Any, reach: float) -> None:
    """Numbers near the largest float; their plain sum is finite."""
    x.flatten()[:2] = x.new_tensor([reach, -reach])


TENSOR_LIES: Final[dict[str, Callable[[Any, float], None]]] = {"largest": largest}
"""Of a tensor that goes to the next stage, in place, and the largest number that its encoding has."""

SUM_LIES: Final[dict[str, float]] = {"sum1000": 1000.0, "sum_turned": -1.0}
"""By how much it multiplies the finished sum of its piece."""
EVERY: Final = (*LIES, *TENSOR_LIES, *SUM_LIES)
