"""Whose parts of a sum look unlike the others', by what their owner sees of them for nothing (rule 42), and whose
tensors do (boundary_norms.py).

Nobody is accused for it. Whoever is doubted is checked in one of the next steps (check.py), as far as a budget goes:
honest parts have heavy tails, and a drift that all have must not make everybody check all the time. A check that agrees
ends the doubt.

A part is doubted
- when it was cut off, being larger than the group lets it (rule 43);
- when its size is far from what is usual for the stage;
- when its member's sizes have drifted from that, up or down;
- when its member's parts agree less with the sum of the others' than they did, or point against it. Honest parts agree
  or are mostly noise: what one expects of their cosine is never below zero.

Who lies in some of its visits has most parts like others. Of each member we keep how much likelier its parts are if
some of them are off than if none is. Where that is too much a single check may fall on a step without a lie, so the
member is checked again and again, within a budget of its own, until it is less.

Who gives a part to a piece that another one adds up gets the sum of that. What the owner made is doubted like a part,
by how large it is beside what was given to it, and how much it points the same way.

Others beside a stage may doubt one of its holders, and say so. They are believed with a budget of their own, since one
of them may say so without a reason.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from math import exp, log, log2, sqrt
from random import Random
from typing import Final, NamedTuple, TypeVar

from ftnode.protocol.words.types import PartSeen, Peer

RATE: Final = 1 / 16
"""Of a running mean: what was 16 steps ago weighs a third."""
SLOW_RATE: Final = 1 / 64
"""Of a mean that a drift is measured from: a liar must not become what is usual before it is seen."""
ALLOWED: Final = 0.5
"""Deviations from what is usual that count as nothing: half of the drift that is found soonest."""
DRIFT_OF_SIZES: Final = 10.0
"""Deviations altogether, less ALLOWED for each part. Sizes have a heavy tail."""
DRIFT_OF_COSINES: Final = 7.0
DRIFT_OF_SUMS: Final = 12.0
"""Of either, of what an owner makes of its piece: another sum is so far from what is usual that it is seen at once."""
SOME: Final = 0.15
"""The share of parts that are off, of a member that lies in some of its visits."""
LESS_ALIKE: Final = 1.5
LESS_LARGE: Final = 0.8
"""Deviations of the cosine and of the size by which such a part is off: a visit with the sign turned takes away from
the others of the same part."""
SOME_OFF: Final = 3.5
"""The logarithm of how much likelier some parts are off than none: above it a member is doubted."""
CHECK_WORTH: Final = 0.5
"""What a check takes from that. It may have fallen on a step without a lie."""
SOME_MAX: Final = 8.0
SOME_A_STEP: Final = 1 / 64
"""Checks of members of whom some parts are off, besides: at most so many in a row, and on average in one of so many
steps."""
SEEN_MIN: Final = 16
"""Parts before anything is far from what is usual."""
SOME_SEEN_MIN: Final = 64
"""Parts of a member before some of them are off: in its first steps training changes what is usual."""
NEAR: Final = 4.0
"""Deviations that a part counts at most where some are off."""
FAR: Final = 6.0
"""Deviations of one part from the stage's."""
FAR_OUT: Final = 8.0
"""The same, of a size for which a part is doubted alone."""
DEVIATION_MIN: Final = 0.1
"""Of sizes, in powers of two, and of cosines: exact multiples must not make everything far."""
SIZE_MIN: Final = 2.0**-16
BUDGET_MAX: Final = 4.0
BUDGET_A_STEP: Final = 1 / 32
"""Checks of doubted peers, on average at most in one of so many steps."""
HEARD_MAX: Final = 2.0
HEARD_A_STEP: Final = 1 / 64
"""Doubts of one other peer that count: at most half as many as there are checks for doubts."""
PEERS_MAX: Final = 256
TOLD_MAX: Final = 16
QUIET_STEPS: Final = 256
"""A peer is named again after so many steps."""
Key = TypeVar("Key")
Value = TypeVar("Value")


class Doubt(NamedTuple):
    """`stage`: to whose sum, or to which stage, the peer gave it; `step`: when it was noticed; `reason`: in words."""

    peer: Peer
    stage: int
    step: int
    reason: str


@dataclass(slots=True)
class Running:
    """Mean and variance of numbers, where the newest count most."""

    rate: float = RATE
    count: int = 0
    mean: float = 0.0
    variance: float = 0.0

    def add(self, number: float) -> None:
        self.count += 1
        rate = max(self.rate, 1 / self.count)
        away = number - self.mean
        self.mean += rate * away
        self.variance = (1 - rate) * (self.variance + rate * away * away)

    @property
    def deviation(self) -> float:
        return max(DEVIATION_MIN, sqrt(self.variance))

    @property
    def error(self) -> float:
        """Of the mean."""
        return self.deviation * sqrt(max(self.rate / (2 - self.rate), 1 / max(1, self.count)))


@dataclass(slots=True)
class Drift:
    """Whether numbers have left what is usual, to one side: Page's cumulative sum (Biometrika 41, 1954)."""

    most: float
    away: float = 0.0
    """Deviations altogether, less what is allowed of each."""

    def add(self, deviations: float) -> bool:
        """How far the next one is to that side. Whether that is too much; then it begins anew."""
        self.away = max(0.0, self.away + deviations - ALLOWED)
        if self.away <= self.most:
            return False
        self.away = 0.0
        return True


@dataclass(slots=True)
class SomeOff:
    """Whether some parts are off and most are not: Page's sum, of logarithms of likelihood ratios. Honest parts take
    from it on average, and those of a member that lies now and then add to it."""

    away: float = 0.0

    def add(self, less_alike: float, less_large: float) -> None:
        """By how many deviations the next part is."""
        alike, large = (max(-NEAR, min(NEAR, less)) for less in (less_alike, less_large))
        off = LESS_ALIKE * alike + LESS_LARGE * large - (LESS_ALIKE**2 + LESS_LARGE**2) / 2
        self.away = max(0.0, self.away + log(1 - SOME + SOME * exp(off)))

    def check(self) -> None:
        """The member is checked."""
        self.away = max(0.0, self.away - CHECK_WORTH)

    @property
    def too_much(self) -> bool:
        return self.away > SOME_OFF


@dataclass(slots=True)
class Budget:
    """What is left to spend, as of a step."""

    left: float
    step: int = -1

    def grow(self, step: int, a_step: float, most: float) -> None:
        """A little more with each step, up to `most`."""
        if step > self.step:
            self.left = min(most, self.left + a_step * (step - self.step if self.step >= 0 else 1))
            self.step = step

    def spend(self) -> bool:
        """One, if there is one."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True


@dataclass(slots=True)
class _Member:
    """Of one peer and stage."""

    cosine: Running = field(default_factory=lambda: Running(SLOW_RATE))
    size: Running = field(default_factory=lambda: Running(SLOW_RATE))
    some_off: SomeOff = field(default_factory=SomeOff)
    agrees_less: Drift = field(default_factory=lambda: Drift(DRIFT_OF_COSINES))
    gives_more: Drift = field(default_factory=lambda: Drift(DRIFT_OF_SIZES))
    gives_less: Drift = field(default_factory=lambda: Drift(DRIFT_OF_SIZES))


def _owner() -> _Member:
    return _Member(agrees_less=Drift(DRIFT_OF_SUMS), gives_more=Drift(DRIFT_OF_SUMS), gives_less=Drift(DRIFT_OF_SUMS))


class Doubts:
    """Of one holder, from step to step."""

    def __init__(self) -> None:
        self.cut_off = 0
        """Parts that did not count in full."""
        self.told: list[Doubt] = []
        """The newest, oldest first."""
        self._open: dict[Peer, Doubt] = {}
        """Those that wait for a check."""
        self._told_of: dict[Peer, Doubt] = {}
        """The same, by the word of others."""
        self._heard: dict[Peer, Budget] = {}
        """Of these others."""
        self._stages: dict[int, Running] = {}
        self._members: dict[tuple[int, Peer], _Member] = {}
        self._sums: dict[int, Running] = {}
        self._owners: dict[tuple[int, Peer], _Member] = {}
        """The same, of what they make of their pieces."""
        self._named: dict[Peer, int] = {}
        self._budget = Budget(BUDGET_MAX)
        self._budget_for_some = Budget(SOME_MAX)

    def see(self, stage: int, step: int, parts: Iterable[PartSeen]) -> list[Doubt]:
        """What others gave to a sum of the stage. Those of whom there is something new to say."""
        found = list[Doubt]()
        for part in parts:
            self.cut_off += part.counted < 1.0
            member = self._members.setdefault((stage, part.peer), _Member())
            reason = self._judge(stage, part, member)
            doubt = Doubt(part.peer, stage, step, reason or "less like what others give now and then")
            news = self.notice(doubt, True) if reason else member.some_off.too_much and self._is_news(doubt)
            found += [doubt] if news else []
        bound(self._members)
        return found

    def see_sums(self, stage: int, step: int, sums: Iterable[PartSeen]) -> list[Doubt]:
        """What others made of their pieces of a sum, beside our parts of these. As `see`."""
        found = list[Doubt]()
        for made in sums:
            owner = self._owners.setdefault((stage, made.peer), _owner())
            size = _size_as_usual(made, self._sums.setdefault(stage, Running(SLOW_RATE)), owner)
            reason = _agrees_as_usual(made, owner) or size
            if reason and self.notice(doubt := Doubt(made.peer, stage, step, reason), True):
                found.append(doubt)
        bound(self._owners)
        return found

    def notice(self, doubt: Doubt, ours: bool) -> bool:
        """Something of a peer looks unusual to us. `ours`: we hold its stage, and may check it. Whether it is news."""
        if ours:
            self._open[doubt.peer] = doubt
            bound(self._open)
        return self._is_news(doubt)

    def _is_news(self, doubt: Doubt) -> bool:
        if doubt.step - self._named.get(doubt.peer, -QUIET_STEPS) < QUIET_STEPS:
            return False
        self._named[doubt.peer] = doubt.step
        bound(self._named)
        self.told = [*self.told, doubt][-TOLD_MAX:]
        return True

    def hear(self, sender: Peer, doubt: Doubt, step: int) -> bool:
        """Somebody beside our stage doubts another holder of it. Whether that one will be checked for it. `step`: ours,
        since budgets grow with steps."""
        if doubt.peer in self._open or doubt.peer in self._told_of:
            return False
        budget = self._heard.setdefault(sender, Budget(HEARD_MAX))
        budget.grow(step, HEARD_A_STEP, HEARD_MAX)
        if not budget.spend():
            return False
        self._told_of[doubt.peer] = doubt
        bound(self._told_of)
        bound(self._heard)
        return True

    def choose(self, step: int, able: Iterable[Peer], chance: Random) -> Peer | None:
        """Whom to check in this step for a doubt, rather one of our own, if there is one and the budget lets us. It is
        in doubt no more, but where some of its parts are off."""
        self._budget.grow(step, BUDGET_A_STEP, BUDGET_MAX)
        self._budget_for_some.grow(step, SOME_A_STEP, SOME_MAX)
        able = {*able}
        doubted = sorted(able & self._open.keys()) or sorted(able & self._told_of.keys())
        if doubted and self._budget.spend():
            chosen = chance.choice(doubted)
            self._open.pop(chosen, None)
            self._told_of.pop(chosen, None)
        elif (off := self._most_off(able)) is not None and self._budget_for_some.spend():
            chosen = off
        else:
            return None
        for (_, peer), member in self._members.items():
            if peer == chosen:
                member.some_off.check()
        return chosen

    def _most_off(self, able: Collection[Peer]) -> Peer | None:
        """Of these, of whom some parts are off, the one of whom that is likeliest."""
        members = ((member.some_off, peer) for (_, peer), member in self._members.items() if peer in able)
        off = [(some.away, peer) for some, peer in members if some.too_much]
        return max(off)[1] if off else None

    def _judge(self, stage: int, part: PartSeen, member: _Member) -> str:
        """Why a part is doubted; empty when it is like others. It counts for what is usual from now on."""
        usual = self._stages.setdefault(stage, Running(SLOW_RATE))
        _add_to_some_off(part, member)
        size = _size_as_usual(part, usual, member)
        agreement = _agrees_as_usual(part, member)
        return size or agreement


def bound(table: dict[Key, Value]) -> None:
    while len(table) > PEERS_MAX:
        del table[next(iter(table))]


def _size_as_usual(part: PartSeen, usual: Running, member: _Member) -> str:
    """Empty when it is. One that is far out does not become what is usual."""
    if part.counted < 1.0:
        return f"{part.size:,.0f} times what is usual in its group; {part.counted:.1%} of it counts"
    size = log2(max(part.size, SIZE_MIN))
    if usual.count < SEEN_MIN:
        usual.add(size)
        return ""
    mean, away = usual.mean, (size - usual.mean) / usual.deviation
    within = max(-FAR, min(FAR, away))
    more, less = member.gives_more.add(within), member.gives_less.add(-within)
    usual.add(mean + within * usual.deviation)
    if abs(away) > FAR_OUT:
        return f"{part.size:.2g} times what is usual in its group, after {2.0**mean:.2g} times on average"
    if more or less:
        return (
            f"one of many that are {'larger' if more else 'smaller'} than usual on the whole, though not each of them"
        )
    return ""


def _add_to_some_off(part: PartSeen, member: _Member) -> None:
    """A part is measured by the member's own ones: who does few visits gives others. One that is far out does not
    become what is usual."""
    size, sizes, cosines = log2(max(part.size, SIZE_MIN)), member.size, member.cosine
    if sizes.count >= SOME_SEEN_MIN:
        less_alike = (max(0.0, cosines.mean) - part.cosine) / cosines.deviation
        less_large = (sizes.mean - size) / sizes.deviation
        member.some_off.add(less_alike, less_large)
        size = sizes.mean - max(-FAR, min(FAR, less_large)) * sizes.deviation
    sizes.add(size)


def _agrees_as_usual(part: PartSeen, member: _Member) -> str:
    """Empty when it does, with the sum of the others' parts."""
    usual, fallen = member.cosine, False
    expected = max(0.0, usual.mean)
    if usual.count >= SEEN_MIN:
        fallen = member.agrees_less.add((expected - part.cosine) / usual.deviation)
    usual.add(part.cosine)
    return (
        f"less like what others give than before (cosine {part.cosine:.2f}, {expected:.2f} on average)"
        if fallen
        else ""
    )
