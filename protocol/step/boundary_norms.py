"""Whose boundary tensors are of another size than usual, by norms that are known anyway (rules 42, 43), or point
another way (boundary_ways.py).

Whoever gets a tensor from another peer learns its L2 norm when it looks whether it can compute with it. Kept are
running statistics of these norms, in powers of two: of each stage, and of each maker beside the others of its stage.
What is far out is doubted, and nobody is accused for it. The receiver holds another stage and cannot do the maker's
visits again, so it tells those who can.

Training moves norms slowly, and the newest ones count most. Where a stage's weights are replaced, all stages make other
numbers, as each is fed by it or learns through it. So the statistics begin again then.

    norm of a task's input → BoundaryNorms.see → reason → Doubted to the other holders of the stage → their Doubts
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2
from typing import Final, NamedTuple

from ftnode.protocol.step.boundary_ways import Ways
from ftnode.protocol.step.doubts import FAR, SEEN_MIN, Running, bound
from ftnode.protocol.words.messages import Begin
from ftnode.protocol.words.types import Direction, Peer
from ftnode.protocol.words.view import View

FAR_MIN: Final = 3.0
"""Powers of two: a factor of eight is never far."""
MEAN_MIN: Final = 0.5
"""Nor is half a power of two on average."""
FAR_MEAN: Final = 4.0
"""Nor so many deviations of a mean."""
NORM_MIN: Final = 2.0**-64
"""Zero counts as this."""
WORDS: Final = {Direction.FORWARD: "activations", Direction.BACKWARD: "gradients"}


class Source(NamedTuple):
    """Where a boundary tensor comes from: `maker` did `visit`, which is the stage's."""

    maker: Peer
    stage: int
    visit: int
    direction: Direction


Place = tuple[int, int, Direction]
"""(stage, visit, direction): on swapped routes a stage has several visits, with unlike inputs."""


@dataclass(slots=True)
class _Usual:
    """Of one place, from all makers."""

    size: Running = field(default_factory=Running)
    away: Running = field(default_factory=Running)
    """From what was usual before it."""
    ways: Ways = field(default_factory=Ways)


class BoundaryNorms:
    """Of one receiver, from step to step."""

    def __init__(self) -> None:
        self._of: tuple[object, ...] = ()
        """Whose weights the norms are of."""
        self._usual: dict[Place, _Usual] = {}
        self._makers: dict[tuple[Peer, Place], Running] = {}
        """Each one's distances from what was usual."""

    def begin(self, view: View, begin: Begin) -> None:
        """A step begins. Where some stage has other weights than training gave it, nothing is usual any more."""
        of = view.lineage.id, view.epochs, view.omitted
        if of != self._of or begin.installs:
            self._of = of
            self._usual.clear()
            self._makers.clear()

    def see(self, source: Source, norm: float, way: tuple[int, ...] = ()) -> str:
        """A tensor from another peer, of this norm, that points this way. Why its maker is doubted; empty when it is
        like others. It counts for what is usual from now on, as far as it is not far out."""
        place = source.stage, source.visit, source.direction
        usual = self._usual.setdefault(place, _Usual())
        maker = self._makers.setdefault((source.maker, place), Running())
        size = log2(max(norm, NORM_MIN))
        away = size - usual.size.mean if usual.size.count else 0.0
        far = max(FAR_MIN, FAR * usual.size.deviation)
        reason = _unlike(WORDS[source.direction], norm, away, far, usual, maker)
        near = min(far, max(-far, away)) if usual.size.count >= SEEN_MIN else away
        usual.size.add(usual.size.mean + near if usual.size.count else size)
        usual.away.add(near)
        maker.add(near)
        bound(self._usual)
        bound(self._makers)
        return reason or usual.ways.see(way)


def _unlike(what: str, norm: float, away: float, far: float, usual: _Usual, maker: Running) -> str:
    if usual.size.count < SEEN_MIN:
        return ""
    if abs(away) > far:
        return f"{_spoken(away)} times as large as {what} usually are" if norm else f"nothing but zeros for {what}"
    apart = maker.mean - usual.away.mean
    if maker.count >= SEEN_MIN and abs(apart) > max(MEAN_MIN, FAR_MEAN * (maker.error + usual.away.error)):
        return f"{_spoken(apart)} times as large as others' {what}, on average"
    return ""


def _spoken(powers: float) -> str:
    factor = 2.0**powers
    return f"{factor:,.0f}" if factor >= 100 else f"{factor:.2g}"
