"""Routes and paths: which stages a microbatch visits, and who serves each visit (rules 3, 20)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from typing import TypeVar
from zlib import crc32

from ftnode.protocol.words.messages import Wait
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Direction, Peer
from ftnode.protocol.words.view import View

Name = TypeVar("Name", Peer, str)

SHARE_MIN = 1e-6
"""Of a step. Less is a rounding error of two places that meet."""
TRIAL = 2
"""Microbatches that show how fast somebody is: the tensor of the second one waits for that of the first."""


@lru_cache(maxsize=1024)
def route(stages: int, microbatch: int, swap: bool = False, omitted: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The stages that a microbatch visits, in order; the head comes first and last. Visits are its positions.

    With `swap`, odd microbatches meet the first two and the last two block stages in the other order, so that each of
    those learns its partner's part (CheckFree+, section 4.3 of "All is Not Lost"). Needs SWAP_STAGES_MIN stages. The
    stages `omitted` have no visit: whoever comes before one passes on to whoever comes after it.
    """
    if swap and microbatch % 2:
        whole = (HEAD, 2, 1, *range(3, stages - 1), stages, stages - 1, HEAD)
    else:
        whole = (HEAD, *range(1, stages + 1), HEAD)
    return tuple(stage for stage in whole if stage not in omitted) if omitted else whole


def route_of(settings: Settings, microbatch: int, view: View) -> tuple[int, ...]:
    """The route of a microbatch in a view. Those of a validation, which come after the step's own, always take the
    normal order."""
    swap = settings.swap and microbatch < settings.microbatches
    return route(settings.stages, microbatch, swap, view.omitted)


def last_visit(stages: int, view: View) -> int:
    """The visit at which the head computes the loss."""
    return stages + 1 - len(view.omitted)


def place_of(wait: Wait, last: int) -> int:
    """How far a microbatch is on its path when this is waited for: all visits forward, and all of them backward."""
    return wait.visit if wait.direction is Direction.FORWARD else 2 * last + 1 - wait.visit


def furthest(waits: Iterable[Wait], last: int) -> dict[int, Wait]:
    """Microbatch → of what is waited for, what is furthest on its path; of equals the first."""
    found: dict[int, Wait] = {}
    for wait in waits:
        known = found.get(wait.microbatch)
        if known is None or place_of(known, last) < place_of(wait, last):
            found[wait.microbatch] = wait
    return found


def maker_of(visit: int, direction: Direction) -> int:
    """The visit at which a boundary tensor is made that is for this one."""
    return visit - 1 if direction is Direction.FORWARD else visit + 1


@lru_cache(maxsize=4096)
def expected_visits(
    stages: int, microbatches: int, stage: int, swap: bool = False, omitted: tuple[int, ...] = ()
) -> frozenset[tuple[int, int]]:
    """The (microbatch, visit) pairs that a stage must accumulate for a step to be complete (rule 23, I1)."""
    return frozenset(
        (microbatch, visit)
        for microbatch in range(microbatches)
        for visit, visited in enumerate(route(stages, microbatch, swap, omitted))
        if visited == stage
    )


Places = Mapping[Name, tuple[float, float]]
"""Of the holders of a stage: from where to where each lies on a line from 0 to 1."""


def places(group: Sequence[Name], seconds: Mapping[Name, float]) -> Places[Name]:
    """One behind the other, each as long as its part of the group's speed; `seconds`: of each for one microbatch.

    The order is one for all stages, so that peers that hold two lie beside themselves; newcomers are strewn over it.
    Who has said nothing is thought to be as fast as the fastest.
    """
    usual = min(seconds.values(), default=1.0)
    ordered = sorted(group, key=_strewn)
    ends: list[float] = list(accumulate(1 / seconds.get(name, usual) for name in ordered))
    return {name: (start / ends[-1], end / ends[-1]) for name, start, end in zip(ordered, [0.0, *ends], ends)}


def beside(mine: Name, heads: Places[Name], group: Places[Name]) -> dict[Name, float]:
    """Who of a stage's `group` takes what `mine` admits, and which share of the step that is.

    Who lies beside whom works together. So everybody gets as much as it can do, though no holder of the head knows what
    the others give away, and equal groups become pipelines side by side: what one peer gets comes from as few others as
    possible, one after the other, and not from all of them at once.
    """
    start, end = heads.get(mine, (0.0, 1.0))
    over = {name: min(end, last) - max(start, first) for name, (first, last) in group.items()}
    return {name: share for name, share in over.items() if share > SHARE_MIN}


@lru_cache(maxsize=4096)
def _strewn(name: Name) -> tuple[int, Name]:
    return crc32(str(name).encode()), name


def soonest(
    group: Sequence[Name], stage: int, queues: Mapping[Name, int], pace: Mapping[tuple[Name, int], float],
    shares: Mapping[Name, float] | None = None, here: Callable[[], Mapping[Name, int]] | None = None,
) -> Name:  # fmt: skip
    """The holder by which one more microbatch is expected to be done first, the first of equals. `queues`: how many
    each has; `pace`: (peer, stage) → seconds that one takes there, so that a slow peer gets less; `shares`: only these
    are asked, by their share, unless none may have more. Who has said nothing yet is thought to be as fast as the
    fastest of its group, and gets TRIAL at once beside others that have. For that only what they have `here`, at this
    stage, counts: whoever has much to do elsewhere would never show how fast it is."""
    known = _paces(group, stage, pace)
    if here is not None and 0 < len(known) < len(group):
        queues = here()
    free = [peer for peer in group if not known or peer in known or queues.get(peer, 0) < TRIAL]
    if shares is not None and (own := [peer for peer in free if peer in shares]):
        return min(own, key=lambda peer: (queues.get(peer, 0) + 1) / shares[peer])
    usual = min(known.values(), default=1.0)
    return min(free, key=lambda peer: (queues.get(peer, 0) + 1) * known.get(peer, usual))


def choose_path(
    view: View, visited: tuple[int, ...], under_way: Collection[tuple[Peer, ...]],
    pace: Mapping[tuple[Peer, int], float], me: Peer,
) -> tuple[Peer, ...]:  # fmt: skip
    """The holder of each visit of the route `visited`, by least expected finish time (rule 20).

    A peer's queue is what `under_way` gives it, one path a microbatch; `pace` as in soonest. The head's own visits stay
    with the head that admits. Requires a view without vacancies.
    """
    chosen: list[Peer] = []
    heads = places(view.holders[HEAD], _paces(view.holders[HEAD], HEAD, pace))
    queues = Counter(peer for path in under_way for peer in path)
    for stage in visited:
        group = view.holders[stage]
        if stage == HEAD and me in group:
            holder = me
        elif len(group) == 1:
            holder = group[0]
        else:
            shares = beside(me, heads, places(group, _paces(group, stage, pace)))
            here = partial(_at_visit, len(chosen), under_way)
            holder = soonest(group, stage, queues, pace, shares, here)
        chosen.append(holder)
        queues[holder] += 1
    return tuple(chosen)


def _at_visit(visit: int, paths: Iterable[tuple[Peer, ...]]) -> Counter[Peer]:
    return Counter(path[visit] for path in paths if visit < len(path))


def _paces(group: Sequence[Name], stage: int, pace: Mapping[tuple[Name, int], float]) -> dict[Name, float]:
    return {peer: pace[peer, stage] for peer in group if (peer, stage) in pace}


@lru_cache(maxsize=256)
def neighbours(view: View, stage: int, swap: bool = False) -> tuple[Peer, ...]:
    """The holders of the stages before and after `stage` on any route: who a holder must be able to dial. One that is
    left out has those that it will have when it is back."""
    return tuple(sorted({peer for near in stages_beside(view, stage, swap) for peer in view.holders[near]}))


def stages_beside(view: View, stage: int, swap: bool = False) -> set[int]:
    """Those that come before or after `stage` on any route."""
    omitted = tuple(other for other in view.omitted if other != stage)
    stages = len(view.holders) - 1
    return {near for way in (0, 1) for near in _beside(route(stages, way, swap, omitted), stage)} - {stage}


def _beside(visited: tuple[int, ...], stage: int) -> set[int]:
    places = [visit for visit, at in enumerate(visited) if at == stage]
    return {visited[near] for visit in places for near in (visit - 1, visit + 1) if 0 <= near < len(visited)}
