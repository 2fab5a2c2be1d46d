"""How much of a piece's sum each contributor may be, at the owner of the piece (rule 43).

A contributor tells the norm of its part before anything of it comes. What is usual for it follows from what the group
tells: the median of three or more, or the owner's own part in a group of two. A part that is larger than LARGEST times
that is *outside*. It then counts as in centred clipping (Karimireddy, He and Jaggi 2021): the others' mean takes its
place, and it moves that by at most what is usual. While nobody is outside, the sum is what it is without bounds, to the
bit.

- The norm of a sum of c visits grows with c where they agree, and with √c where they are mostly noise. So whoever did
  other numbers of visits than another is measured by the larger of the two.
- A piece may hold rows of an embedding that only one of the group has seen. So an owner takes as usual what an even
  share of its own whole gradient is, where that is more.
- A part whose numbers come out larger than its norm was told counts up to what was told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot, inf, isfinite, nan, sqrt
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from ftnode.node.reduction.encoding import Numbers

LARGEST: Final = 32.0
"""Times what is usual. Honest parts were up to 23 times, of microbatches of 64 words (docs/explanation/decisions/0047).
"""
LARGEST_SUM: Final = 64.0
"""Times what is usual, for each of the others' parts in a finished sum. Honest sums were up to 8 times. Where nothing
can be cut off, the step is lost."""
ROUNDING: Final = 1.5
"""Encoding in few bits makes a norm so much larger at most, where a block has one large number and many small ones."""
NORM_TOLD_MAX: Final = 1e30
"""Told by who has a larger one, or none. Its square is beyond every norm that a step may have (whole_gradient.py)."""
SIZE_MAX: Final = 1e9
"""Told for any that is larger."""
NEARLY: Final = 1e-3
"""Sums of squares are rounded, not everywhere alike."""
ABOUT: Final = 0.5
"""A norm that follows from a sketch is so much off at most, as a part of it."""
HOPELESS: Final = 2.0**64
"""Above it numbers are not worth saving: the sum is none, and the group names poison (rule 25)."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """What the owner of a piece saw of one contributor's part. `size`: its norm, of what is usual for it; `cosine`: to
    the sum of the others' parts; `counted`: the share of it that counts, 1.0 for all."""

    contributor: int
    size: float
    cosine: float
    counted: float


def stretch(visits: float) -> float:
    """How much larger a norm may be of so many times as many visits."""
    return max(visits, sqrt(visits))


def usual_norms(norms: Sequence[float], counts: Sequence[int], ours: int, whole: float) -> list[float]:
    """For each contributor, of parts of one piece with these norms and visits. `whole`: the norm of our own gradient,
    of all pieces."""
    everybody, found = range(len(counts)), list[float]()
    for count in counts:
        witnesses = everybody if len(counts) > 2 else (ours,)
        votes = sorted(norms[k] * stretch(count / counts[k]) for k in witnesses)
        share = whole / sqrt(len(counts)) * stretch(count / counts[ours])
        found.append(max(votes[(len(votes) - 1) // 2], share))
    return found


class PartBounds:
    """Of one piece. `counts`: visits of each contributor; `norm`, `whole`: of our part of it, and of our gradient."""

    def __init__(self, counts: Sequence[int], ours: int, norm: float, whole: float) -> None:
        self.counts = tuple(counts)
        self._ours, self._whole = ours, whole
        self._norms: list[float | None] = [None] * len(counts)
        self._norms[ours] = norm
        self._usual: list[float] = []
        self._shares: list[float] = []
        self._squares = [0.0] * len(counts)
        """Of each part, of what has come."""
        self._dots = [0.0] * len(counts)
        """Of each part as it came, and the sum."""
        self._sum_square = 0.0
        self._untrue: set[int] = set()
        """Whose numbers are larger than was told."""

    def tell(self, contributor: int, norm: float) -> None:
        """A contributor's norm; its first word counts."""
        if self._norms[contributor] is None:
            self._norms[contributor] = norm

    def told(self, contributor: int) -> float:
        return self._norms[contributor] or 0.0

    def share(self, contributor: int) -> float:
        """Of a part, what counts: 1.0 within bounds. All have told their norms."""
        if not self._shares:
            norms = [norm if norm is not None else 0.0 for norm in self._norms]
            self._usual = usual_norms(norms, self.counts, self._ours, self._whole)
            self._shares = [_share(norm, usual) for norm, usual in zip(norms, self._usual)]
        return self._shares[contributor]

    @property
    def outside(self) -> tuple[int, ...]:
        """Whose parts are beyond the bound."""
        return tuple(k for k in range(len(self.counts)) if self.share(k) != 1.0)

    def within_told(self, contributor: int, numbers: Numbers) -> Numbers:
        """The next numbers of a part, as far as they are no larger than was told."""
        square, told = squared(numbers), self._norms[contributor] or 0.0
        before = self._squares[contributor]
        self._squares[contributor] += square
        room = (told * ROUNDING) ** 2 - before
        if square <= room or not isfinite(square) or contributor == self._ours:
            return numbers
        self._untrue.add(contributor)
        cut: Numbers = numbers * numbers.dtype.type(sqrt(max(0.0, room) / square))
        return cut

    def centred(self, inside: Numbers, parts: Sequence[Numbers]) -> Numbers:
        """The next numbers of the sum, of those of the parts within bounds, and all parts."""
        visits = sum(count for k, count in enumerate(self.counts) if k not in self.outside)
        total = inside.copy()
        kind = inside.dtype.type
        for k in self.outside:
            share = self.share(k)
            total += kind((1 - share) * self.counts[k] / max(1, visits)) * inside
            total += kind(share) * parts[k]
        return total

    def added(self, parts: Sequence[Numbers], total: Numbers) -> None:
        """These parts made the next numbers of the sum."""
        self._sum_square += squared(total)
        for k, part in enumerate(parts):
            self._dots[k] += dot(part, total)

    @property
    def sum_norm(self) -> float:
        """Of what was added."""
        return sqrt(self._sum_square) if isfinite(self._sum_square) else inf

    def weighed(self) -> list[Weighed]:
        """Of each contributor, once the sum is whole."""
        found = []
        for k in range(len(self.counts)):
            square, usual, counted = self._squares[k], self._usual[k] if self._usual else 0.0, self.share(k)
            size = min(sqrt(square) / usual, SIZE_MAX) if usual and isfinite(square) else 0.0
            rest = max(0.0, self._sum_square - 2 * self._dots[k] + square)
            lengths = sqrt(square) * sqrt(rest) if isfinite(rest) and isfinite(square) else 0.0
            cosine = (self._dots[k] - square) / lengths if lengths else 0.0
            counted = 0.0 if k in self._untrue else counted if isfinite(counted) else 0.0
            found.append(Weighed(k, size, max(-1.0, min(1.0, cosine)), counted))
        return found


class SignedParts:
    """Of one piece, what all others than its owner have signed (part_seals.py): by it others see whether the owner may
    have cut anything off. `counts`: visits of each contributor; `owner`: its position."""

    def __init__(self, counts: Sequence[int], owner: int) -> None:
        self._counts, self._owner = tuple(counts), owner
        self._norms = [0.0] * len(counts)
        self._untrue = False

    def add(self, contributor: int, norm: float, square: float) -> None:
        """It told this norm, and its numbers have the square of this one."""
        self._norms[contributor] = norm
        self._untrue |= not sqrt(square) <= norm * ROUNDING * (1 - NEARLY)

    def may_be_cut_off(self, owners: float) -> bool:
        """Whether anything is outside, where what the owner gave has about this norm. Of its whole gradient, by which
        only more is usual, nobody else knows."""
        norms = list(self._norms)
        norms[self._owner] = owners * (1 - ABOUT)
        usual = usual_norms(norms, self._counts, self._owner, 0.0)
        others = (k for k in range(len(norms)) if k != self._owner)
        return self._untrue or any(norms[k] > LARGEST * usual[k] * (1 - NEARLY) for k in others)


def _share(norm: float, usual: float) -> float:
    """Not a number where nothing can be made of it. Nothing is usual where the owner has no gradient at all."""
    if norm >= HOPELESS:
        return nan
    return 1.0 if norm <= LARGEST * usual or not usual else usual / norm


def least_cut_off(owners: float, owners_count: int, count: int) -> float:
    """The least norm of a part of `count` visits that the owner of a piece may cut off, of two, where its own part has
    the norm `owners`. Half of it may be rounding."""
    return LARGEST * owners * stretch(count / owners_count) / 2


def sum_bound(norms: Sequence[float], counts: Sequence[int], ours: int, piece: int) -> float:
    """The largest norm of a finished sum of a piece that we take. `norms`: of our own part of each piece; `counts`:
    visits of each contributor."""
    whole = hypot(*norms)
    if not whole:
        return inf
    usual = max(norms[piece], whole / sqrt(len(counts)))
    others = sum(stretch(count / counts[ours]) for k, count in enumerate(counts) if k != ours)
    return norms[piece] + LARGEST_SUM * usual * others


def squared(numbers: Numbers) -> float:
    """The square of the norm; infinite or none only for numbers that are, or nearly."""
    found = dot(numbers, numbers)
    if isfinite(found):
        return found
    return dot(numbers.astype("float64"), numbers.astype("float64"))


def dot(one: Numbers, other: Numbers) -> float:
    from numpy import einsum, errstate  # nodes that reduce in no group do without numpy

    with errstate(over="ignore", invalid="ignore"):
        return float(einsum("i,i->", one, other))


def told_norm(norm: float) -> float:
    """As it is told to others."""
    return norm if norm < NORM_TOLD_MAX else NORM_TOLD_MAX
