"""Which of several layouts to take: the most work until the next change, less what it costs to get there, and less what
is expected to be lost. Pure, and of names and numbers only, so that a node can ask it as well.

Odyssey's equation 8 has the first two: work in the time that is expected until the next failure, less the time that a
transition takes. Two things are added.

- *Risk.* Where one cause, such as a machine or a site, can take the last holder of a layer, so many steps of learning
  are lost each time that it happens. Where it leaves one holder, somebody must come to help soon, which is a stop.
- *Patience.* A stop that does not pay for itself before the next change may pay over several. So what was missed since
  the last move is counted, and a move is made as soon as that and the gain until the next change come to its price.
  Whoever does so pays at most about twice what somebody pays who knows the future (Karlin, Manasse, Rudolph and Sleator
  1988, on when to buy skis).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Cause = tuple[float, frozenset[str]]
"""How often a second, and whom it takes away at once."""


@dataclass(frozen=True, slots=True)
class Option:
    """`seconds`: of a step; `pause`: seconds without training before it; `lost`: steps of learning that it costs;
    `risk`: steps a second that are expected to be lost, as of `risk`."""

    seconds: float
    pause: float = 0.0
    lost: float = 0.0
    risk: float = 0.0

    @property
    def pace(self) -> float:
        """Steps a second, less what is expected to be lost."""
        return 1 / self.seconds - self.risk

    def worth(self, seconds: float) -> float:
        """Steps in so many seconds. A stop that lasts longer takes from what comes after it."""
        return (seconds - self.pause) / self.seconds - seconds * self.risk - self.lost


@dataclass(frozen=True, slots=True)
class Choice:
    """`place`: of the chosen option; `missed`: steps that were missed so far by staying; `missing`: how many a second
    are missed from now on, since the best pace would cost too much at present."""

    place: int
    missed: float
    missing: float


def chosen(options: Sequence[Option], seconds: float, missed: float = 0.0) -> Choice:
    """`seconds`: until the next change; `missed`: of the choices before. Raises ValueError without an option."""
    worths = [option.worth(seconds) for option in options]
    free = [place for place, option in enumerate(options) if not option.pause and not option.lost]
    if not free:
        return Choice(max(range(len(options)), key=worths.__getitem__), 0.0, 0.0)
    staying = max(free, key=worths.__getitem__)
    gain = max(option.pace for option in options) - options[staying].pace
    if gain <= 0:
        return Choice(staying, 0.0, 0.0)
    best = max(
        range(len(options)),
        key=lambda place: worths[place] + missed * max(0.0, options[place].pace - options[staying].pace) / gain,
    )
    return Choice(staying, missed, gain) if best in free else Choice(best, 0.0, 0.0)


def risk(groups: Sequence[frozenset[str]], causes: Sequence[Cause], price: float, help_price: float = 0.0) -> float:
    """Steps a second that are expected to be lost. `groups`: who holds what, each set of holders once; `price`: steps
    of learning when a layer has lost its last holder; `help_price`: steps that it takes to help a layer that has one
    left."""
    found = 0.0
    for often, names in causes:
        left = [len(group - names) for group in groups]
        if 0 in left:
            found += often * price
        elif any(left_here == 1 and len(group) > 1 for left_here, group in zip(left, groups)):
            found += often * help_price
    return found
