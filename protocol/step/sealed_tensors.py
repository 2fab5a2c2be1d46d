"""What boundary tensors were when they came, as their makers signed them (rule 42).

Who did a visit is told to have lied when something else comes out of what others show that it was given. One of these
may have shown another tensor than it gave. So before anybody says so the accused is asked: it names a tensor that it
was given, with its maker's signature, and that is another one than was shown. Two signatures of one peer for one place
prove who lies, whoever shows them. Who has none is judged by what was shown. A third that sees no lie asks the accuser
in the same way, which may have been shown another tensor than the third.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from ftnode.protocol.step.routes import maker_of
from ftnode.protocol.step.tensor_holds import TensorKey
from ftnode.protocol.wire.admission import GIVEN_MAX
from ftnode.protocol.words.effects import Recount, Weigh
from ftnode.protocol.words.messages import Boundary, SealedTensor
from ftnode.protocol.words.types import Direction, Peer

Named = tuple[int, int, Direction, str]
"""The place of a tensor, and the digest of what was shown of it."""


class Finding(NamedTuple):
    """What a peer passed on, or gave to a sum, is not what its visits give; or, where a third `agrees`, it is."""

    task: Recount | Weigh
    distance: float
    reason: str
    agrees: bool = False

    @property
    def microbatch(self) -> int:
        """-1: of a sum."""
        return self.task.microbatch if isinstance(self.task, Recount) else -1


class SealedTensors:
    """Those of one attempt that one peer was given, or was shown."""

    def __init__(self) -> None:
        self._sealed: dict[TensorKey, SealedTensor] = {}

    def add(self, boundary: Boundary) -> None:
        """It is signed by its maker on the path."""
        maker = boundary.path[maker_of(boundary.visit, boundary.direction)]
        assert boundary.seal is not None
        sealed = SealedTensor(boundary.microbatch, boundary.visit, boundary.direction, maker, boundary.seal)
        self._sealed[boundary.microbatch, boundary.visit, boundary.direction] = sealed

    def of(self, key: TensorKey) -> SealedTensor | None:
        return self._sealed.get(key)

    @property
    def makers(self) -> frozenset[Peer]:
        return frozenset(each.maker for each in self._sealed.values())

    def named(self, keys: Iterable[TensorKey] | None = None) -> tuple[Named, ...]:
        """Of these, as far as they are here; None: of all."""
        found = (key for key in (self._sealed if keys is None else keys) if key in self._sealed)
        return tuple((*key, self._sealed[key].seal.digest) for key in found)[:GIVEN_MAX]

    def other(self, named: Iterable[Named], may_see: Callable[[TensorKey], bool]) -> tuple[SealedTensor, ...]:
        """The first of ours that is another than was named, if any."""
        for microbatch, visit, direction, digest in named:
            key = microbatch, visit, direction
            ours = self._sealed.get(key)
            if ours is not None and ours.seal.digest != digest and may_see(key):
                return (ours,)
        return ()

    def contradiction(self, others: Iterable[SealedTensor]) -> tuple[SealedTensor, ...]:
        """Two that one peer signed for one place, if it did."""
        for other in others:
            ours = self._sealed.get((other.microbatch, other.visit, other.direction))
            if ours is not None and ours.maker == other.maker and ours.seal.digest != other.seal.digest:
                return ours, other
        return ()
