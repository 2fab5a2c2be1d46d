"""One change of who holds what: where somebody who comes is worth most, and who is worth more elsewhere.

All places that somebody could take are compared by what the layout costs that would follow (costs.py): by the liquid,
and the most promising ones by the schedule. So one rule answers where a newcomer goes, what it takes over from whom,
which replica a lost stage gets, and who moves.

- *Part of what somebody holds*: a range at one end of it, in its place (SWARM and Petals move whole stages).
- *Beside others*: all that the same peers hold, or one stage of it, as one more holder.
- *All that somebody holds*, in its place. Then that one holds nothing, and is placed again as anybody who comes.

A second holder is looked for only where no part of what somebody holds is worth taking. Its sums go over lines of which
nobody knows how fast they are before they are full, so that they would look free. Nobody loses its place unless that is
a tenth better than any other change.

Whoever moves is asked as a newcomer then, by the same costs, so that no change is taken back by the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from math import inf
from typing import Final

from ftnode.protocol.planning.costs import Costs, Worth
from ftnode.protocol.planning.swarm import Holders, stages_of

NOISE: Final = 0.1
"""Of the step. Paces are measured, and the liquid is right within that. One more holder may seem to cost so much: the
stage does not go with the first one then."""
ALIKE: Final = 0.05
"""Of the cost of the best place. Others that cost no more than that beside it are as fast: paces are measured."""
GAIN: Final = 0.1
"""Of the step, what a move must gain at least, and what must be gained by it that somebody loses its place."""
LIMITING: Final = 2
MOVERS: Final = 8
"""Moves are those of the least busy ones, one of each group, to help the busiest: else a large swarm would have
thousands."""
CONFIRMED: Final = 3
"""So many changes are looked at by the schedule, too."""
LIQUID_WORK: Final = 5_000
PAIRS_WORK: Final = 15_000
"""About microseconds: for comparing places of one kind by the liquid, and after which no pairs of changes are thought
of."""
REJECTED: Final = 2
"""So many of a kind are told of."""


@dataclass(frozen=True, slots=True)
class Place:
    """What `name` would learn: `stages`, ascending, in the place of `giver` if anybody's. `holders`: who would hold
    what then."""

    name: str
    stages: tuple[int, ...]
    giver: str | None
    holders: Holders


@dataclass(frozen=True, slots=True)
class Choice:
    """The best place that was found, what it costs, and what the present layout does. `rejected`: the next best ones
    with their costs, in order."""

    place: Place
    worth: Worth
    present: Worth
    rejected: tuple[tuple[Place, Worth], ...] = ()

    def over(self, others: Iterable[tuple[Place, Worth]]) -> Choice:
        """With the best ones of other kinds that were looked at."""
        known = {self.place, *(place for place, _ in self.rejected)}
        return replace(self, rejected=(*self.rejected, *(one for one in others if one[0] not in known)))

    @property
    def reason(self) -> str:
        """In words, with the numbers."""
        others = "; ".join(f"{in_short(place)}: {worth.seconds:.3g} s" for place, worth in self.rejected)
        text = f"a step takes about {self.worth.seconds:.3g} s then, and {self.present.seconds:.3g} s now"
        return text + (f" (rejected: {others})" if others else "")


def in_short(place: Place) -> str:
    """Without the name of who takes it."""
    names = ["head" if not stage else str(stage) for stage in place.stages]
    spoken = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    if place.giver is None:
        return f"{spoken} beside others"
    return f"{spoken} in another's place" + (
        "" if stages_of(place.holders).get(place.giver) else ", which is free then"
    )


class Changes:
    """Of a layout, `present`."""

    def __init__(self, costs: Costs, present: Holders) -> None:
        self.costs, self.present, self.replicas = costs, present, costs.swarm.replicas
        self.held = stages_of(present)

    def after(self, holders: Holders) -> Changes:
        """Of another layout of the same swarm."""
        return Changes(self.costs, holders)

    def best_place(
        self, name: str, learnt: Collection[int] = (), steps: float = inf, beside: bool = False
    ) -> Choice | None:
        """Of somebody who comes; None where nothing that it could do is worth it. `learnt`: stages that somebody learns
        already, and that nobody gives up meanwhile; `steps`: as of best_move(); `beside`: in nobody's place, but where
        one more holder of what it could join would cost too much, so that nobody could be checked there (rule 45)."""
        beside = beside and not self._too_dear_beside(name)
        alone = self.costs.in_one_hand(self.present)
        choice, looked = None, list[tuple[Place, Worth]]()
        reliefs = self.reliefs(name) if not beside else iter(())
        for places, most in ((reliefs, 1 + NOISE * alone), (self.joins(name), 1 + NOISE)):
            if choice is None:
                found = self._compared(place for place in places if not (place.giver and {*place.stages} & {*learnt}))
                choice = self._confirmed(found, most)
                looked += found[:1]
        successions = self.successions(name) if not beside else ()
        found = self._compared(place for place in successions if not {*place.stages} & {*learnt})
        choice = self._instead(found, self.present if choice is None else choice.place.holders, steps) or choice
        return None if choice is None else choice.over([*looked, *found[:1]])

    def _too_dear_beside(self, name: str) -> bool:
        """Wherever it could be one more, sums would make a step clearly longer. Not where a group is full: those who
        hold a stage together check each other."""
        joins = self._compared(self.joins(name)) if all(len(group) < self.replicas for group in self.present) else ()
        most = (1 + NOISE) * self.costs.liquid(self.present).cost
        return bool(joins) and all(worth.cost >= most for _, worth in joins)

    def _instead(self, found: Sequence[tuple[Place, Worth]], before: Holders, steps: float) -> Choice | None:
        """In whose place, where that is clearly better than `before`. It must make up, in so many steps, for a stop
        that is as long as it takes to learn, although there is none."""
        most = self.costs.liquid(before).cost
        choice = self._confirmed([one for one in found if one[1].cost < most], 1 - GAIN, before)
        saved = choice.present.cost - choice.worth.cost if choice is not None else 0.0
        return choice if saved * steps > self.costs.risk.seconds else None

    def _safest_first(self, found: Sequence[tuple[Place, Worth]]) -> list[tuple[Place, Worth]]:
        """Best first, but before them, of those that are as fast as the best one, that after which fewest stages can go
        in one loss: with their only holder, or with the site of all of them. Of equals the one that came first."""
        if not found:
            return []
        most = (1 + ALIKE) * min(worth.cost for _, worth in found)
        equal = (one for one in found if one[1].cost <= most)
        safest = min(equal, key=lambda one: sum(map(self.costs.together, one[0].holders)))
        return [safest, *_in_order([one for one in found if one is not safest])]

    def best_wider(self, names: Sequence[str]) -> Choice | None:
        """Which of these, who hold something, takes a part of what somebody else holds, or all, or joins; None where a
        step gets hardly shorter by that."""
        began, found = self.costs.work, self._wider(names)
        return self._confirmed(found) or self._first_of_two(found, names, began + PAIRS_WORK)

    def best_second(self, names: Sequence[str]) -> Choice | None:
        """Which of these, who hold something, becomes the second holder of neighbouring stages that somebody holds
        alone, so that this one can be checked (rule 42); None where a step gets longer by that."""
        pieces = ((name, run) for name, stages in self.held.items() for run in runs(stages))
        alone = {run for name, run in pieces if all(self.present[stage] == (name,) for stage in run)}
        free = sorted((name for name in names if name in self.held), key=self._busy)[:MOVERS]
        places = (place for name in free for place in self.joins(name) if place.stages in alone)
        return self._confirmed(self._compared(places), 1 + NOISE)

    def _wider(self, names: Sequence[str]) -> list[tuple[Place, Worth]]:
        limiting = self._limiting()
        free = sorted((name for name in names if name in self.held), key=self._busy)[:MOVERS]
        return self._compared(place for name in free for place in self._places(name, limiting))

    def _first_of_two(self, found: Sequence[tuple[Place, Worth]], names: Sequence[str], work: float) -> Choice | None:
        """A change that makes nothing worse, where another one makes it clearly better afterwards: of two machines that
        limit together, each has to be relieved. Where there is so much work, none."""
        for place, worth in found[:CONFIRMED]:
            choice = self._confirmed([(place, worth)], 1.0) if self.costs.work < work else None
            after = self.after(place.holders)
            if choice is not None and after._confirmed(after._wider(names)) is not None:
                return choice
        return None

    def _limiting(self) -> frozenset[str]:
        """Those who are busy longest."""
        return frozenset(self._givers[:LIMITING])

    def _busy(self, name: str) -> tuple[float, str]:
        return self._done[name], name

    @cached_property
    def _done(self) -> dict[str, float]:
        """Until each machine is done, in the present layout."""
        return self.costs.busy(self.present)

    @cached_property
    def _givers(self) -> list[str]:
        """The busiest first: not all places of a large swarm are looked at."""
        return sorted(self.held, key=self._busy, reverse=True)

    def _places(self, name: str, limiting: Collection[str]) -> Iterator[Place]:
        """Those that help somebody who limits."""
        for place in (*self.reliefs(name), *self.joins(name), *self.successions(name)):
            groups = {other for stage in place.stages for other in self.present[stage]}
            if not groups.isdisjoint(limiting):
                yield place

    def _confirmed(
        self, found: Sequence[tuple[Place, Worth]], most: float | None = None, before: Holders = ()
    ) -> Choice | None:
        """The best of the most promising ones by the schedule, where it costs less than `most` times (as a move must)
        the present layout, or what there would be `before`. Of those that are as fast the safest."""
        present = self.costs.scheduled(before or self.present) if found else Worth(0.0, 0.0, 0.0)
        promising = self._safest_first(found)[:CONFIRMED]
        sure = [(place, self.costs.scheduled(place.holders)) for place, _ in promising]
        limit = (1 - GAIN if most is None else most) * present.cost
        sure = self._safest_first([one for one in sure if one[1].cost < limit])
        return _choice(sure, present) if sure else None

    def best_move(self, movable: Mapping[str, tuple[int, ...]], steps: float) -> Choice | None:
        """Of those who could give up what they hold, since others hold it as well: `movable`, with the stages. `steps`:
        how many are expected until the next loss changes everything; a move must have paid for itself by then."""
        present, found, limiting = self.costs.liquid(self.present), list[tuple[Place, Worth]](), self._limiting()
        of_each = {movable[name]: name for name in sorted(movable, key=self._busy, reverse=True)}
        for stages, name in [*of_each.items()][-MOVERS:]:
            rest = without(self.present, name, stages)
            if not all(rest):
                continue
            left = self.after(rest)
            away = self.costs.liquid(rest)
            elsewhere = [place for place in left._places(name, limiting) if place.stages != stages]
            for place, worth in left._compared(elsewhere)[:1]:
                if pays_off(present, away, worth, self.costs.risk.seconds, steps):
                    found.append((place, worth))
        choice = self._confirmed(_in_order(found))
        return self._when_free(choice.place.name, movable[choice.place.name], steps) if choice is not None else None

    def _when_free(self, name: str, stages: Sequence[int], steps: float) -> Choice | None:
        """What somebody is given who has given these up, as anybody who comes: where it is not clearly better, the next
        change would take this one back."""
        given = self.after(without(self.present, name, stages)).best_place(name, steps=steps)
        return self._confirmed([(given.place, given.worth)]) if given is not None else None

    def best_release(self, shared: Mapping[str, tuple[int, ...]]) -> Choice | None:
        """Which of those who limit gives up a part of what it holds, since others hold that as well: `shared`, with the
        stages. Nobody learns anything for that. None where a step gets hardly shorter."""
        places = [
            Place(next(one for one in self.present[part[0]] if one != name), part, name, holders)
            for name in self._givers[:LIMITING] for run in runs(shared.get(name, ()))
            for part in dict.fromkeys((run, *((stage,) for stage in run)))
            if len(part) < len(self.held[name]) and all(holders := without(self.present, name, part))
        ]  # fmt: skip
        return self._confirmed(self._compared(places))

    def best_filler(self, shared: Mapping[str, tuple[int, ...]], stage: int) -> tuple[str, int] | None:
        """Who of `shared` fills a stage that nobody holds at the least cost, and which one of its stages there it gives
        up for that; of equals, the last one of a group. Other stages that nobody holds count as if whoever is able to
        hold them did: that is the same for all."""
        machines = self.costs.swarm.machines
        able = {
            other: next((name for name in sorted(machines) if other in machines[name].paces), None)
            for other, group in enumerate(self.present) if not group and other != stage
        }  # fmt: skip
        costs: list[tuple[float, int, str, int]] = []
        for name, given in ((name, given) for name, stages in shared.items() for given in stages):
            if stage not in machines[name].paces:
                continue
            holders = [*without(self.present, name, (given,))]
            holders[stage] = (*holders[stage], name)
            for other, someone in able.items():
                holders[other] = (someone,) if someone is not None else ()
            place = self.present[given].index(name)
            cost = round(self.costs.liquid(tuple(holders)).cost, 9) if all(holders) else 0.0
            costs.append((cost, -place, name, given))
        return min(costs)[2:] if costs else None

    def reliefs(self, name: str) -> Iterator[Place]:
        """Ranges at one end of what somebody holds who keeps the rest."""
        for giver in self._givers:
            stages = self.held[giver]
            for run in runs(stages) if giver != name and len(stages) > 1 else ():
                for count in range(1, min(len(run), len(stages) - 1) + 1):
                    for part in dict.fromkeys((run[-count:], run[:count])):
                        if self._able(name, part):
                            yield self.place(name, part, giver)

    def successions(self, name: str) -> Iterator[Place]:
        """All that somebody holds whose device is slower."""
        for giver in self._givers:
            stages = self.held[giver]
            if giver != name and self._able(name, stages) and self._faster(name, giver, stages):
                yield self.place(name, stages, giver)

    def _faster(self, name: str, other: str, stages: Sequence[int]) -> bool:
        """Its device is, by what both said of theirs before they worked, which does not change: so places that are lost
        are never won back, whatever is measured. Lines are not looked at, since they are known only where they are
        full: who stands by would seem to have the better one, until it works."""
        said = self.costs.speeds
        if said is not None:
            return said.get(name, 0.0) >= (1 + GAIN) * said.get(other, inf)
        one, two = (self.costs.swarm.machines[each].paces for each in (name, other))
        return sum(map(sum, map(one.__getitem__, stages))) <= (1 - GAIN) * sum(map(sum, map(two.__getitem__, stages)))

    def joins(self, name: str) -> Iterator[Place]:
        """As one more holder of what the same peers hold."""
        groups = groupby(range(len(self.present)), key=self.present.__getitem__)
        teams = [(group, tuple(neighbours)) for group, neighbours in groups]
        for group, run in sorted(teams, key=lambda team: -max(map(self._done.__getitem__, team[0]), default=0.0)):
            for part in dict.fromkeys((run, *((stage,) for stage in run))):
                if len(group) < self.replicas and self._able(name, part):
                    yield self.place(name, part, None)

    def _able(self, name: str, part: Sequence[int]) -> bool:
        mine = self.held.get(name, ())
        return not {*part} & {*mine} and self.costs.swarm.fits(name, (*mine, *part))

    def place(self, name: str, part: tuple[int, ...], giver: str | None) -> Place:
        def group(stage: int, before: tuple[str, ...]) -> tuple[str, ...]:
            return (*(one for one in before if one != giver), name) if stage in part else before

        holders = tuple(group(stage, before) for stage, before in enumerate(self.present))
        return Place(name, part, giver, holders)

    def _compared(self, places: Iterable[Place]) -> list[tuple[Place, Worth]]:
        """As many as there is time for."""
        found, most = list[tuple[Place, Worth]](), self.costs.work + LIQUID_WORK
        for place in places:
            found.append((place, self.costs.liquid(place.holders)))
            if self.costs.work > most:
                break
        return _in_order(found)


def _in_order(found: list[tuple[Place, Worth]]) -> list[tuple[Place, Worth]]:
    """Best first; of equals what moves least, and the last stages: the head is next to both ends."""

    def order(one: tuple[Place, Worth]) -> tuple[object, ...]:
        place, worth = one
        return round(worth.cost, 9), len(place.stages), [-stage for stage in place.stages], place.name

    return sorted(found, key=order)


def _choice(found: Sequence[tuple[Place, Worth]], present: Worth) -> Choice:
    return Choice(*found[0], present, tuple(found[1 : 1 + REJECTED]))


def pays_off(present: Worth, away: Worth, then: Worth, seconds: float, steps: float) -> bool:
    """Whether a layout makes up, in so many steps, for the `seconds` in which steps take as long as `away` says."""
    lost = max(0.0, away.seconds - present.seconds) * (seconds / away.seconds if away.seconds else 0.0)
    return (present.cost - then.cost) * steps > lost


def without(holders: Holders, name: str, stages: Sequence[int]) -> Holders:
    """`name` gives these up."""
    return tuple(
        tuple(one for one in group if one != name) if stage in stages else group for stage, group in enumerate(holders)
    )


def runs(stages: Sequence[int]) -> list[tuple[int, ...]]:
    """Ascending stages in pieces without gaps."""
    pieces = groupby(enumerate(stages), key=lambda one: one[1] - one[0])
    return [tuple(stage for _, stage in piece) for _, piece in pieces]
