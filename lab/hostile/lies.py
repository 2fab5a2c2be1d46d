"""What a volunteer gives to the sum of its stage instead of what its visits give."""

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
