"""What a volunteer gives away instead of what its visits give, and when.

A lie is said in one word, `turned` or `activations-turned`, with more after commas: `turned,share=0.1,from=200`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

Lie = Callable[[Any, Any], None]
"""Of a flat tensor, in place, and that of the step before; torch is the caller's."""
GRADIENTS, ACTIVATIONS, DONORS, SUMS, SHOWN, COPIES = "gradients", "activations", "donors", "sums", "shown", "copies"
LARGEST: Final = 2.0**98
"""Near the largest number that every encoding of boundary tensors has; its square is no float32."""


def noise(tensor: Any, before: Any) -> None:
    """As large as the true one."""
    size = tensor.norm()
    tensor.normal_()
    tensor.mul_(size / tensor.norm())


def nothing(tensor: Any, before: Any) -> None:
    tensor.zero_()


def older(tensor: Any, before: Any) -> None:
    """That of the step before."""
    tensor.copy_(before)


def largest(tensor: Any, before: Any) -> None:
    """Their plain sum is finite."""
    tensor.flatten()[:2] = tensor.new_tensor([LARGEST, -LARGEST])


LIES: Final[dict[str, Lie]] = {
    "times1000": lambda tensor, before: tensor.mul_(1000.0),
    "times1.5": lambda tensor, before: tensor.mul_(1.5),
    "turned": lambda tensor, before: tensor.neg_(),
    "noise": noise,
    "older": older,
    "nothing": nothing,
    "largest": largest,
}  # fmt: skip
SUM_FACTORS: Final = {"times1000": 1000.0, "times1.5": 1.5, "turned": -1.0, "nothing": 0.0}
"""By how much it multiplies the finished sum of its piece."""


@dataclass(frozen=True, slots=True)
class Told:
    """`what`: gradients, which it gives to sums; activations, which it passes on; donors, the weights that it lends;
    sums, of the piece of a gradient that it adds up; shown, the tensors that it made, to who does others' visits
    again; copies, the weights that it keeps for others."""

    what: str
    lie: str
    share: float = 1.0
    """Of its visits."""
    begins: int = 0
    """The first step whose weights it lies on."""
    order: str = ""
    """Once there is this file; empty: at once."""
    agrees: bool = False
    """When it checks another, it says that whoever tells the same lie is right, and nobody else."""
    hides: bool = False
    """It shows nobody what it made its piece of a sum of, or lends no samples of the state that it trains."""
    adapts: bool = False
    """In a step whose weights somebody asks for it tells the truth."""

    def due(self, step: int) -> bool:
        return step >= self.begins and (not self.order or Path(self.order).exists())

    def chosen(self, step: int, microbatch: int, visit: int) -> bool:
        """Whether it lies in this visit."""
        return self.share >= 1.0 or crc32(f"{step}/{microbatch}/{visit}".encode()) < self.share * 2**32


def told(text: str) -> Told:
    """Raises ValueError for what is no lie."""
    name, *more = text.split(",")
    what, _, lie = name.rpartition("-")
    known: Collection[str] = SUM_FACTORS if what == SUMS else ("turned",) if what in (SHOWN, COPIES) else LIES
    if (what or GRADIENTS) not in (GRADIENTS, ACTIVATIONS, DONORS, SUMS, SHOWN, COPIES) or lie not in known:
        raise ValueError(f"no lie: {name}; one of {', '.join(known)}")
    said = {key: value for key, _, value in (one.partition("=") for one in more)}
    if unknown := said.keys() - {"share", "from", "order", "agrees", "hides", "adapts"}:
        raise ValueError(f"a lie has no {min(unknown)}")
    share, begins, agrees = (said.get(key, usual) for key, usual in (("share", "1"), ("from", "0"), ("agrees", "0")))
    hides, adapts = (said.get(key) == "1" for key in ("hides", "adapts"))
    return Told(what or GRADIENTS, lie, float(share), int(begins), said.get("order", ""), agrees == "1", hides, adapts)
