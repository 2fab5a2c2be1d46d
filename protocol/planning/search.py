"""The layout with which a step takes least: a search over who holds which stages, bounded in work.

There are far too many layouts to look at all of them. So some are drafted (drafts.py), the best of these are changed
one machine at a time as long as the liquid says that it pays (flow.py), and the schedule itself has the last word on
the few that are left. The present layout and equal stages are among those, unless the liquid rules them out and work is
short. Nothing here is random, and the bound counts work, not time, so that the same question has the same answer
everywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ftnode.protocol.planning.costs import FLOW_WORK, schedule_work
from ftnode.protocol.planning.drafts import EQUAL, PAIR, SOLE, Draft, drafts
from ftnode.protocol.planning.flow import Flow
from ftnode.protocol.planning.schedule import step_timing
from ftnode.protocol.planning.swarm import Holders, Range, Swarm, holders_of, in_words, stages_of

WORK_MAX: Final = 40_000
"""About microseconds, of one core of 2024."""
DRAFT_WORK: Final = 4
"""Of these, what drafts take for each machine and stage."""
SCHEDULED: Final = 0.6
"""The part of it that is left for schedules."""
PRESENT: Final = "as it is"
CHANGED: Final = ", changed"
"""What comes behind the name of a draft that was changed."""
BETTER: Final = 0.995
"""Of the seconds. A change that gives less is none."""
CLEARLY_WORSE: Final = 1.35
WORSE: Final = 1.05
"""By the liquid, where work is short. Then the present layout is scheduled unless it is clearly worse than what was
found, and equal stages unless they are worse at all."""
PROMISING: Final = 1.2
"""By the liquid. A change that gives more seconds is not scheduled."""
HELPERS: Final = 6
"""So many machines with time to spare are thought of for the one that limits."""
STARTS: Final = 3
"""Drafts that are changed, each of another kind, with as much work each, but the present layout with all."""
NO_NUMBERS: Final = str.maketrans("", "", "0123456789")
"""Kinds differ by more than a number."""
FEW: Final = 200
"""Changes of one machine that are all tried."""


@dataclass(frozen=True, slots=True)
class Considered:
    """`what`: where it comes from; `seconds`: of a step, by the schedule if it is `scheduled`, else by the liquid."""

    what: str
    holders: Holders
    seconds: float
    scheduled: bool

    def __str__(self) -> str:
        about = "" if self.scheduled else "about "
        return f"{self.what}: {about}{self.seconds:.3g} s a step ({in_words(self.holders)})"


@dataclass(frozen=True, slots=True)
class BestLayout:
    """`seconds`: of a step, by the schedule. `considered`: the present layout and equal stages where there are such,
    all drafts, and what they were changed to, best first."""

    seconds: float
    holders: Holders
    what: str
    considered: tuple[Considered, ...]

    @property
    def reason(self) -> str:
        """What was chosen, and over what."""
        others = [one for one in self.considered if one.holders != self.holders]
        rejected = "; ".join(f"{one.what}, {one.seconds:.3g} s" for one in others[:5])
        return f"{self.what}, {self.seconds:.3g} s a step: {in_words(self.holders)}" + (
            f"; rejected: {rejected}" if rejected else ""
        )


def best_layout(swarm: Swarm, present: Holders = (), work: int = WORK_MAX) -> BestLayout | None:
    """None where the machines have no room for all stages, as far as drafts can tell. `present`: who holds what now;
    `work`: how much may be looked at."""
    return _Search(swarm, present, work).best() if swarm.machines else None


class _Search:
    def __init__(self, swarm: Swarm, present: Holders, work: int) -> None:
        self.swarm, self.flow, self.left = swarm, Flow(swarm), float(work)
        self.before = present if len(present) == len(swarm.sizes) else ()
        self.present = self.before if swarm.feasible(self.before) else ()
        self.numbers = {name: number for number, name in enumerate(self.flow.names)}
        self.about: dict[Holders, tuple[str, float]] = {}
        """What was looked at → where it comes from, and its seconds by the liquid."""
        self.done: dict[Holders, list[float]] = {}
        """Until each machine is done, by the liquid."""
        self.scheduled: dict[Holders, float] = {}
        self.reserved = SCHEDULED * work

    def best(self) -> BestLayout | None:
        found: list[tuple[float, str, Draft]] = []
        if self.present:
            seconds, _ = self._look(PRESENT, self.present)
            draft = self._draft(self.present)
            if draft is not None:
                found.append((seconds, PRESENT, draft))
        for what, draft in drafts(self.flow):
            holders = self._holders(draft)
            if self._allowed(holders):
                seconds, _ = self._look(what, holders)
                found.append((seconds, what, draft))
        self.left -= DRAFT_WORK * len(self.flow.names) * self.flow.stages
        found.sort(key=lambda one: one[0])
        kinds: dict[str, tuple[str, Draft]] = {}
        for _, what, draft in found:
            kinds.setdefault(what.translate(NO_NUMBERS), (what, draft))
        starts = [*kinds.values()][:STARTS]
        for number, (what, draft) in enumerate(starts):
            share = 1 if what == PRESENT else len(starts) - number
            self._climb(what, draft, self.left - (self.left - self.reserved) / share)
        if not self.about:
            return None
        self._schedule_the_best()
        self._refine()
        return self._result()

    def _holders(self, draft: Draft) -> Holders:
        names = self.flow.names
        return holders_of({names[number]: one for number, one in draft.items()}, self.flow.stages, self.before)

    def _allowed(self, holders: Holders) -> bool:
        return max(map(len, holders)) <= self.swarm.replicas

    def _look(self, what: str, holders: Holders) -> tuple[float, list[float]]:
        """What the liquid says of it."""
        if holders not in self.done:
            groups = [tuple(self.numbers[name] for name in group) for group in holders]
            seconds, done = self.flow.seconds(groups)
            self.left -= FLOW_WORK * (len(holders) + sum(map(len, holders)))
            self.about[holders], self.done[holders] = (what, seconds), done
        return self.about[holders][1], self.done[holders]

    def _climb(self, what: str, draft: Draft, reserved: float) -> None:
        """Changes of one machine, or of two that swap, as long as one of them pays, and more work than that is left."""
        seconds, done = self._look(what, self._holders(draft))
        better = True
        while better:
            better = False
            for changed in self._changes(draft, done):
                if self.left < reserved:
                    return
                holders = self._holders(changed)
                if holders in self.about or not self._allowed(holders):
                    continue
                after, then = self._look(what + CHANGED, holders)
                if after < BETTER * seconds:
                    draft, seconds, done, better = changed, after, then, True
                    break

    def _refine(self) -> None:
        """As _climb, where the schedule decides: of the changes of the best layout the most promising ones first. When
        none is better, those of the next best follow, as long as work is left."""
        refined: set[Holders] = set()
        while True:
            left = sorted((seconds, holders) for holders, seconds in self.scheduled.items() if holders not in refined)
            if not left or left[0][0] > PROMISING * min(self.scheduled.values()):
                return
            seconds, holders = left[0]
            refined.add(holders)
            for changed in self._promising(holders):
                if self.left < self._work(changed):
                    return
                if changed not in self.scheduled and self._scheduled(changed) < BETTER * seconds:
                    break

    def _promising(self, holders: Holders) -> list[Holders]:
        """Changes of a layout, by what the liquid says of them."""
        draft, found = self._draft(holders), dict[Holders, float]()
        if draft is None:
            return []
        what = self.about[holders][0].removesuffix(CHANGED)
        _, done = self._look(what, holders)
        for one in self._changes(draft, done):
            if self.left < self._work(holders):
                break
            changed = self._holders(one)
            if not self._allowed(changed):
                continue
            if changed not in self.about:
                self._look(what + CHANGED, changed)
            found[changed] = self.about[changed][1]
        most = PROMISING * self.scheduled[holders]
        return sorted((one for one in found if found[one] <= most), key=lambda one: (found[one], one))

    def _draft(self, holders: Holders) -> Draft | None:
        """None where somebody's stages are no range."""
        ranges = {self.numbers[name]: (stages[0], stages[-1]) for name, stages in stages_of(holders).items()}
        return ranges if self._holders(ranges) == holders else None

    def _changes(self, draft: Draft, done: list[float]) -> Iterator[Draft]:
        """Those that may help whoever limits the step come first."""
        flow, numbers = self.flow, range(len(self.flow.names))
        cover = [0] * flow.stages
        for first, last in draft.values():
            for stage in range(first, last + 1):
                cover[stage] += 1
        helpers = sorted(numbers, key=lambda number: (done[number], number))
        few = len(numbers) * flow.stages * (flow.stages + 1) // 2 <= FEW
        for limiting in sorted(draft, key=lambda number: (-done[number], number))[: None if few else 1]:
            yield from _relieved(flow, draft, limiting, helpers if few else helpers[:HELPERS], cover)
        if few:
            for number in helpers:
                for first in range(flow.stages):
                    for last in range(first, flow.stages):
                        if flow.fits(number, first, last):
                            yield from _moved(draft, number, (first, last), cover)
                yield from _moved(draft, number, None, cover)

    # -- by the schedule

    def _schedule_the_best(self) -> None:
        """The best of each kind first, since the liquid is wrong about all of a kind alike."""
        order = sorted(self.about, key=lambda holders: (self.about[holders][1], holders))
        kinds: dict[str, Holders] = {}
        for holders in order:
            kinds.setdefault(self.about[holders][0].translate(NO_NUMBERS), holders)
        best = self._scheduled(order[0])
        for kind, worse in ((PRESENT, CLEARLY_WORSE), (EQUAL, WORSE)):
            holders = kinds.get(kind, ())
            if holders and (self.left >= self._work(holders) or self.about[holders][1] < worse * best):
                best = min(best, self._scheduled(holders))
        for holders in dict.fromkeys((*kinds.values(), *order)):
            if self.left < self._work(holders):
                break
            if self.about[holders][1] < CLEARLY_WORSE * best:
                best = min(best, self._scheduled(holders))

    def _work(self, holders: Holders) -> float:
        return schedule_work(holders, self.swarm.batch)

    def _scheduled(self, holders: Holders) -> float:
        if holders not in self.scheduled:
            self.left -= self._work(holders)
            self.scheduled[holders] = step_timing(self.swarm.layout(holders), self.swarm.batch).seconds
        return self.scheduled[holders]

    def _result(self) -> BestLayout:
        best = min(self.scheduled, key=lambda holders: (self.scheduled[holders], holders != self.present, holders))
        considered = [
            Considered(what, holders, self.scheduled.get(holders, about), holders in self.scheduled)
            for holders, (what, about) in self.about.items()
            if holders in self.scheduled or not what.endswith((CHANGED, SOLE, PAIR))
        ]
        considered.sort(key=lambda one: (not one.scheduled, one.seconds, one.what))
        return BestLayout(self.scheduled[best], best, self.about[best][0], tuple(considered))


def _moved(draft: Draft, number: int, to: tuple[int, int] | None, cover: list[int]) -> Iterator[Draft]:
    """With another range for one machine, or none, where nobody is needed in the one that it has."""
    old = draft.get(number)
    if old == to:
        return
    kept = range(to[0], to[1] + 1) if to else range(0)
    if old and any(cover[stage] < 2 and stage not in kept for stage in range(old[0], old[1] + 1)):
        return
    yield {one: its for one, its in draft.items() if one != number} | ({number: to} if to else {})


def _relieved(flow: Flow, draft: Draft, slowest: int, helpers: list[int], cover: list[int]) -> Iterator[Draft]:
    """What may help the machine that limits: another one takes one of its ends, joins it, or takes its place."""
    first, last = draft[slowest]
    yield from _shifted(flow, draft, (first, last))
    yield from _moved(draft, slowest, None, cover)
    for end, rest in ((first, (first + 1, last)), (last, (first, last - 1))):
        if cover[end] > 1 and first < last:
            yield draft | {slowest: rest}
        for number in helpers:
            mine = draft.get(number)
            if number == slowest or mine is None or first == last:
                continue
            wider = min(mine[0], end), max(mine[1], end)
            if wider[1] - wider[0] == mine[1] - mine[0] + 1 and flow.fits(number, *wider):
                yield draft | {number: wider, slowest: rest}
                yield draft | {number: wider}
    for number in helpers:
        if number == slowest:
            continue
        for middle in range(first, last):
            for to, rest in (((first, middle), (middle + 1, last)), ((middle + 1, last), (first, middle))):
                if flow.fits(number, *to):
                    yield from (moved | {slowest: rest} for moved in _moved(draft, number, to, cover))
        for to in dict.fromkeys(((first, last), (first, first), (last, last))):
            if flow.fits(number, *to):
                yield from _moved(draft, number, to, cover)
        mine = draft.get(number)
        if mine and mine != (first, last) and flow.fits(number, first, last) and flow.fits(slowest, *mine):
            yield draft | {number: (first, last), slowest: mine}
        if mine is None and flow.fits(number, first, last):
            yield {one: its for one, its in draft.items() if one != slowest} | {number: (first, last)}


def _shifted(flow: Flow, draft: Draft, mine: Range) -> Iterator[Draft]:
    """All who hold just this range give the stage at one of its ends to those whose ranges begin or end there."""
    first, last = mine
    team = [number for number, one in draft.items() if one == mine]
    for end, rest in ((first, (first + 1, last)), (last, (first, last - 1))):
        wider = {
            number: (min(one[0], end), max(one[1], end))
            for number, one in draft.items()
            if end in (one[1] + 1, one[0] - 1)
        }
        if first < last and wider and all(flow.fits(number, *one) for number, one in wider.items()):
            yield draft | dict.fromkeys(team, rest) | wider
