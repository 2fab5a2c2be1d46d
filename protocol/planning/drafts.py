"""Layouts to begin a search with: equal stages, teams beside each other, and a chain without gaps.

Where only devices count, a chain is best: everybody holds as many stages as it can do in the time, and shares those
at its ends with the next ones. Where lines count, few hops are: a team shares the microbatches of as many stages as
each of its members has room for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, combinations, pairwise
from math import comb, perm
from typing import Final

from ftnode.protocol.planning.flow import Flow
from ftnode.protocol.planning.swarm import Range

PARTS: Final = (1, 2, 3, 4, 6, 8, 12)
"""So many equal parts are tried."""
CHAINS_MAX: Final = 400
"""Where there are no more chains of sole holders than this, all are tried."""
PAIRS_MAX: Final = 1500
"""The same for what two machines may hold."""
EQUAL: Final = "equal stages"
SOLE: Final = "sole holders"
PAIR: Final = "two machines"
Draft = dict[int, Range]
"""Who holds which stages, by the numbers of a Flow."""
HALVINGS: Final = 6
"""Of the interval in which the time of the slowest lies."""
SLIVER: Final = 0.15
"""Of a stage: a chain leaves less than this to whoever holds the rest of it."""


def drafts(flow: Flow) -> Iterator[tuple[str, Draft]]:
    """Each with what it is. All stages have holders, and everybody has room for what it holds."""
    equal = equal_stages(flow)
    if equal is not None:
        yield EQUAL, equal
    fastest = sorted(range(len(flow.names)), key=lambda number: (_block(flow, number), number))
    devices = sorted(fastest, key=lambda number: flow.paces[number][min(1, flow.stages - 1)])
    roomy = sorted(fastest, key=lambda number: -flow.room[number])
    length = max(last - first + 1 for reach in flow.reach for first, last in enumerate(reach))
    for sliver in (SLIVER, 0.5):
        found = _least(flow, partial(_chain, flow, fastest, sliver))
        if found is not None:
            yield f"a chain without slivers of {sliver:g} of a stage", _helped(flow, found)
    for stages in _halves(length):
        found = _least(flow, partial(_teams, flow, roomy, stages))
        if found is not None:
            yield f"teams of up to {stages} stages", _helped(flow, found)
    for count in PARTS:
        parts = _parts(flow, fastest, count)
        if parts is not None:
            yield f"{count} equal parts", parts
        for what, order, apart in (
            ("fastest", fastest, False),
            ("fastest, behind a head", fastest, True),
            ("fastest devices, behind a head", devices, True),
        ):
            alone = _parts_alone(flow, order, count, apart)
            if alone is not None:
                yield f"{count} equal parts of the {what}", alone
    for few in _halves(len(fastest) // 2):
        for name, draft in (
            ("a chain", partial(_chain, flow, fastest[:few], SLIVER)),
            ("teams", partial(_teams, flow, fastest[:few], length)),
        ):
            found = _least(flow, draft)
            if found is not None:
                yield f"{name} of the fastest {few}", found
    whole = [number for number in fastest if flow.fits(number, 0, flow.stages - 1)]
    if whole:
        best = min(whole, key=lambda number: (flow.cost(number, 0, flow.stages - 1), number))
        yield "one machine for everything", {best: (0, flow.stages - 1)}
    yield from ((SOLE, draft) for draft in sole_holders(flow))
    yield from ((PAIR, draft) for draft in pairs(flow))


def _halves(number: int) -> Iterator[int]:
    while number:
        yield number
        number //= 2


def sole_holders(flow: Flow) -> Iterator[Draft]:
    """All layouts in which each stage has one holder. Few machines and stages have few."""

    def longer(first: int, held: Draft) -> Iterator[Draft]:
        if first == flow.stages:
            yield held
            return
        for number in range(len(flow.names)):
            if number not in held:
                for last in range(first, flow.reach[number][first] + 1):
                    yield from longer(last + 1, held | {number: (first, last)})

    count, machines, cuts = 0, len(flow.names), flow.stages - 1
    for holders in range(1, min(machines, flow.stages) + 1):
        count += perm(machines, holders) * comb(cuts, holders - 1)
    if count <= CHAINS_MAX:
        yield from longer(0, {})


def pairs(flow: Flow) -> Iterator[Draft]:
    """All layouts of two machines, where these are few."""
    ranges = flow.stages * (flow.stages + 1) // 2
    machines = range(len(flow.names))
    if comb(len(machines), 2) * ranges**2 > PAIRS_MAX:
        return
    for one, other in combinations(machines, 2):
        for first, mine in ((one, other), (other, one)):
            for end in range(flow.reach[first][0] + 1):
                for start in range(end + 2):
                    if start < flow.stages and flow.reach[mine][start] == flow.stages - 1:
                        yield {first: (0, end), mine: (start, flow.stages - 1)}


def equal_stages(flow: Flow) -> Draft | None:
    """What a run does that knows of no paces: as many stages for each as there are for the number of machines, and one
    more holder of the slowest stage as long as any is left. None where somebody has no room for that."""
    numbers, stages = [*range(len(flow.names))], flow.stages
    holding = min(len(numbers), stages)
    heads = sorted(numbers, key=lambda number: (not flow.fits(number, 0, 0), number))
    held: Draft = {}
    for place, number in enumerate(heads[:holding]):
        held[number] = place * stages // holding, (place + 1) * stages // holding - 1
    if not all(flow.fits(number, first, last) for number, (first, last) in held.items()):
        return None
    rates = [1 / max(flow.busy(number, *held[number]), 1e-9) for number in heads[:holding]]
    ranges, places = [held[number] for number in heads[:holding]], [1] * holding
    for number in heads[holding:]:
        for place in sorted(range(holding), key=rates.__getitem__):
            if flow.fits(number, *ranges[place]) and places[place] < flow.swarm.replicas:
                places[place] += 1
                held[number] = ranges[place]
                rates[place] += 1 / max(flow.busy(number, *ranges[place]), 1e-9)
                break
    return held


def _parts(flow: Flow, order: Sequence[int], count: int) -> Draft | None:
    """The stages in parts of equal work, with groups that are equally fast, as far as machines fit."""
    work = [0.0, *accumulate(flow.work)]
    cuts = [min(range(len(work)), key=lambda at: abs(work[at] - work[-1] * part / count)) for part in range(count + 1)]
    ranges = [(first, last - 1) for first, last in pairwise(cuts)]
    if cuts[0] or any(last < first for first, last in ranges):
        return None
    rates, places, held = [0.0] * count, [0] * count, Draft()
    for number in order:
        able = [part for part, (first, last) in enumerate(ranges)
                if flow.reach[number][first] >= last and places[part] < flow.swarm.replicas]  # fmt: skip
        if able:
            slowest = min(able, key=rates.__getitem__)
            held[number] = ranges[slowest]
            places[slowest] += 1
            rates[slowest] += 1 / max(flow.busy(number, *ranges[slowest]), 1e-9)
    return held if all(rates) else None


def _parts_alone(flow: Flow, order: Sequence[int], count: int, apart: bool) -> Draft | None:
    """Equal parts, each held by the first one that has room and nothing yet. `apart`: the head is a part by itself."""
    first, held, left = int(apart), Draft(), [*order]
    count = min(count, flow.stages - first)
    cuts = [first + part * (flow.stages - first) // count for part in range(count + 1)]
    for one in (*[(0, 0)][:first], *((start, end - 1) for start, end in pairwise(cuts))):
        number = next((number for number in left if flow.fits(number, *one)), None)
        if number is None:
            return None
        left.remove(number)
        held[number] = one
    return held


def _block(flow: Flow, number: int) -> float:
    """How slow a machine is, as far as one number can say it: its time for one block stage."""
    stage = min(1, flow.stages - 1)
    return flow.busy(number, stage, stage)


def _least(flow: Flow, draft: Callable[[float], Draft | None]) -> Draft | None:
    """The draft for the shortest time of a microbatch for which there is one."""
    work = sum(flow.work)
    low, high = work / len(flow.names) / 4, 4 * work + 4 * max(flow.line_seconds) + 1e-9
    best = draft(high)
    if best is None:
        high *= 1e4
        best = draft(high)
    for _ in range(HALVINGS if best is not None else 0):
        middle = (max(low, high / 1e6) * high) ** 0.5
        found = draft(middle)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _chain(flow: Flow, order: Sequence[int], sliver: float, seconds: float) -> Draft | None:
    """One after the other takes as much of the stages as it can do in `seconds`. The place on the chain is the stage,
    and what part of it others have done."""
    left, held = [*order], Draft()
    stage, done = 0, 0.0
    while stage < flow.stages:
        number = next((one for one in left if flow.fits(one, stage, stage)), None)
        if number is None:
            return None
        left.remove(number)
        paces, first, time = flow.paces[number], stage, max(seconds - flow.line_seconds[number] / 1e3, 0.0)
        while stage < flow.stages and flow.fits(number, first, stage):
            need = (1 - done) * paces[stage]
            if time >= need - sliver * paces[stage] or need <= 0:
                time, stage, done = time - need, stage + 1, 0.0
                continue
            part = max(time, 0.0) / paces[stage]
            if part >= sliver or stage == first:
                done += part
                held[number] = first, stage
            break
        held.setdefault(number, (first, max(first, stage - 1)))
    return held


def _teams(flow: Flow, order: Sequence[int], length: int, seconds: float) -> Draft | None:
    """Teams, one after the other, each for as many stages as it can do in `seconds`, up to `length`."""
    left, held, first = [*order], Draft(), 0
    while first < flow.stages:
        for last in range(min(first + length, flow.stages) - 1, first - 1, -1):
            team = _team(flow, left, seconds, first, last)
            if team:
                break
        else:
            return None
        held |= dict.fromkeys(team, (first, last))
        left = [number for number in left if number not in held]
        first = last + 1
    return held


def _team(flow: Flow, left: Sequence[int], seconds: float, first: int, last: int) -> list[int]:
    """The first of those that are left that are fast enough together; empty: they are not."""
    team, part = [], 0.0
    for number in left:
        if flow.reach[number][first] >= last:
            team.append(number)
            part += seconds / max(flow.busy(number, first, last), 1e-9)
            if part >= 1:
                return team if len(team) <= flow.swarm.replicas else []
    return []


def _helped(flow: Flow, held: Draft) -> Draft:
    """Whoever has nothing joins the stages that need it most."""
    idle = [number for number in range(len(flow.names)) if number not in held]
    ranges = sorted({*held.values()})
    rates, places = dict.fromkeys(ranges, 0.0), Counter(held.values())
    for number, one in held.items():
        rates[one] += 1 / max(flow.busy(number, *one), 1e-9)
    found = dict(held)
    for number in sorted(idle, key=lambda number: (_block(flow, number), number)):
        able = [one for one in ranges if flow.fits(number, *one) and places[one] < flow.swarm.replicas]
        if able:
            slowest = min(able, key=lambda one: (rates[one], one))
            found[number] = slowest
            places[slowest] += 1
            rates[slowest] += 1 / max(flow.busy(number, *slowest), 1e-9)
    return found
