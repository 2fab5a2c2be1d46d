"""Where to go when no single change is worth it: a layout that the search finds (search.py), and the next change there.

Unequal volunteers behind unequal lines come to a layout that each single change makes slower, and from which some
changes lead to one that is much faster. On the way a step takes hardly longer than at first. So a goal is worth it when
its layout costs clearly less than the present one, and when what it saves makes up for all the changes. Each change is
one that a node makes anyway: somebody learns stages in another's place or beside others, or gives up what others hold.

Who has no place at the goal has none on the way: it would be in the way of those that go there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Final

from ftnode.protocol.planning.changes import GAIN, NOISE, PAIRS_WORK, Changes, Choice, Place, without
from ftnode.protocol.planning.search import best_layout
from ftnode.protocol.planning.swarm import Holders, stages_of

CHANGES_MAX: Final = 60
"""A goal that is further away is none."""
FASTER: Final = 0.25
"""Of what the present layout costs, a goal must save at least. An estimate is wrong by as much as a tenth or two, and
many changes are made for it."""


@dataclass(frozen=True, slots=True)
class Goal:
    """`holders`: who is to hold what. `cost`: of the layout that there was when it was set, by the liquid; `names`: all
    who were known then. Somebody else who comes is placed, and the goal is none any more."""

    holders: Holders
    cost: float
    names: frozenset[str]

    def stands(self, present: Holders, names: Collection[str]) -> bool:
        """All who are to hold something are among `names`, and it is not reached."""
        return {*stages_of(self.holders)} <= {*names} and not same_holders(present, self.holders)


@dataclass(frozen=True, slots=True)
class Limits:
    """`still`: whose stages stay as they are; `stays`: who must not give up all that it holds, but to one who learns
    it; `barred`: stages that somebody may not learn."""

    still: Collection[str] = ()
    stays: str | None = None
    barred: Mapping[str, Collection[int]] = field(default_factory=dict)


NO_LIMITS: Final = Limits()


def find_goal(
    changes: Changes, steps: float = inf, limits: Limits = NO_LIMITS, checked: bool = False, usual: float = inf
) -> Goal | None:
    """The best layout, where it is worth going to. `steps`: how many are expected until the next loss changes
    everything; `checked`: no fewer stages than now have two holders, who check each other; `usual`: seconds of a step,
    measured. An estimate by which the present layout is slower than that is no reason to leave it."""
    costs, present = changes.costs, changes.present
    found = best_layout(costs.swarm, present)
    if found is None:
        return None
    pairs = sum(len(group) > 1 for group in present) if checked else 0
    fine = (
        one.holders for one in found.considered
        if one.scheduled and sum(len(group) > 1 for group in one.holders) >= pairs
    )  # fmt: skip
    best = next(fine, None)
    if best is None:
        return None
    best = _with_those_who_are_left(changes, best)
    now, then = costs.scheduled(present).cost, costs.scheduled(best).cost
    if then > (1 - FASTER) * min(now, usual):
        return None
    goal = Goal(best, costs.liquid(present).cost, frozenset(costs.swarm.machines))
    count = way_to(changes, goal, limits)
    return goal if count is not None and (now - then) * steps > count * costs.risk.seconds else None


def _with_those_who_are_left(changes: Changes, target: Holders) -> Holders:
    """Who holds something now, and nothing there, is placed there as anybody who comes, as many as there is time for:
    else the next one that is asked takes a place again of which the goal did not know."""
    until = changes.costs.work + PAIRS_WORK
    for name in sorted({*changes.held} - {*stages_of(target)}):
        if changes.costs.work > until:
            break
        found = changes.after(target).best_place(name)
        target = target if found is None else found.place.holders
    return target


def way_to(changes: Changes, goal: Goal, limits: Limits = NO_LIMITS) -> int | None:
    """How many changes lead there; None: too many, or a step would take longer by more than noise in between than now,
    or none do."""
    for count in range(CHANGES_MAX):
        if same_holders(changes.present, goal.holders):
            return count
        place = _next(changes, goal, limits)
        if place is None:
            return None
        changes = changes.after(place.holders)
    return None


def next_change(changes: Changes, goal: Goal, limits: Limits = NO_LIMITS) -> Choice | None:
    """Of the changes that lead there the one after which the layout costs least.

    None: as in way_to(), or the goal is hardly better any more, or not possible. In a place whose name holds its stages
    already the giver gives them up, and nobody learns anything.
    """
    costs, now = changes.costs, changes.costs.scheduled(changes.present)
    if not costs.swarm.feasible(goal.holders) or costs.scheduled(goal.holders).cost > (1 - GAIN) * now.cost:
        return None
    place = _next(changes, goal, limits)
    return Choice(place, costs.scheduled(place.holders), now) if place is not None else None


def _next(changes: Changes, goal: Goal, limits: Limits) -> Place | None:
    costs = changes.costs
    places = [(costs.liquid(place.holders), place) for place in _towards(changes, goal.holders, limits)]
    if not places:
        return None
    worth, place = min(places, key=lambda one: (round(one[0].cost, 9), len(one[1].stages), one[1].stages, one[1].name))
    return place if worth.cost <= (1 + NOISE) * max(goal.cost, costs.liquid(changes.present).cost) else None


def same_holders(one: Holders, other: Holders) -> bool:
    """The same peers hold the same, in whatever order."""
    return [*map(frozenset, one)] == [*map(frozenset, other)]


def _towards(changes: Changes, target: Holders, limits: Limits) -> Iterator[Place]:
    yield from _learnt(changes, target, limits)
    for name, stages in changes.held.items():
        staying = {
            stage: [other for other in changes.present[stage] if other in target[stage] and other not in limits.still]
            for stage in stages if name not in target[stage]
        }  # fmt: skip
        spare = tuple(stage for stage, others in staying.items() if others)
        if spare and name not in limits.still and not (name == limits.stays and len(spare) == len(stages)):
            yield Place(staying[spare[0]][0], spare, name, without(changes.present, name, spare))


def _learnt(changes: Changes, target: Holders, limits: Limits) -> Iterator[Place]:
    """What somebody learns: all at once in one giver's place or beside it, or, without the room for that, one stage of
    it. Where several come in the place of one, the first may be too slow alone."""
    for name, stages in stages_of(target).items():
        mine, givers = changes.held.get(name, ()), dict[str | None, list[int]]()
        for stage in stages if name not in limits.still else ():
            group, barred = changes.present[stage], limits.barred.get(name, ())
            leave = [other for other in group if other not in target[stage] and other not in limits.still]
            if stage not in mine and stage not in barred and (leave or len(group) < changes.replicas):
                givers.setdefault(leave[0] if leave else None, []).append(stage)
        for giver, part in givers.items():
            whole = changes.costs.swarm.fits(name, (*mine, *part))
            for some in (part,) if whole else ((stage,) for stage in part):
                if changes.costs.swarm.fits(name, (*mine, *some)):
                    yield changes.place(name, tuple(some), giver)
                    if giver is not None and all(len(changes.present[stage]) < changes.replicas for stage in some):
                        yield changes.place(name, tuple(some), None)
