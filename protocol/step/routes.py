"""Routes and paths: which stages a microbatch visits, and who serves each visit (rules 3, 20)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from math import inf

from ftnode.protocol.words.messages import Wait
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, Direction, Peer
from ftnode.protocol.words.view import View

TRIAL = 2
"""Microbatches that show how fast somebody is: the tensor of the second one waits for that of the first."""


@lru_cache(maxsize=1024)
def route(stages: int, microbatch: int, swap: bool = False) -> tuple[int, ...]:
    """The stages that a microbatch visits, in order; the head comes first and last. Visits are its positions.

    With `swap`, odd microbatches meet the first two and the last two block stages in the other order, so that each of
    those learns its partner's part (CheckFree+, section 4.3 of "All is Not Lost"). Needs SWAP_STAGES_MIN stages.
    """
    if swap and microbatch % 2:
        return (HEAD, 2, 1, *range(3, stages - 1), stages, stages - 1, HEAD)
    return (HEAD, *range(1, stages + 1), HEAD)


def route_of(settings: Settings, microbatch: int) -> tuple[int, ...]:
    """The run's route of a microbatch. Those of a validation, which come after the step's own, always take the normal
    one."""
    return route(settings.stages, microbatch, settings.swap and microbatch < settings.microbatches)


def last_visit(stages: int) -> int:
    """The visit at which the head computes the loss."""
    return stages + 1


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


@lru_cache(maxsize=4096)
def expected_visits(stages: int, microbatches: int, stage: int, swap: bool = False) -> frozenset[tuple[int, int]]:
    """The (microbatch, visit) pairs that a stage must accumulate for a step to be complete (rule 23, I1)."""
    return frozenset(
        (microbatch, visit)
        for microbatch in range(microbatches)
        for visit, visited in enumerate(route(stages, microbatch, swap))
        if visited == stage
    )


def soonest(
    group: Sequence[Peer], stage: int, queues: Mapping[Peer, int], pace: Mapping[tuple[Peer, int], float]
) -> Peer:
    """The holder by which one more microbatch is expected to be done first, the first of equals. `queues`: how many
    each has; `pace`: (peer, stage) → seconds that one takes there. So a slow peer gets less. Who has said nothing yet
    is thought to be as fast as the fastest of its group, and gets TRIAL at once beside others that have."""
    known = [pace[peer, stage] for peer in group if (peer, stage) in pace]
    usual = min(known, default=1.0)

    def expected(peer: Peer) -> float:
        queue = queues.get(peer, 0)
        seconds = pace.get((peer, stage), usual if queue < TRIAL or not known else inf)
        return (queue + 1) * seconds

    return min(group, key=expected)


def choose_path(
    view: View, visited: tuple[int, ...], under_way: Collection[tuple[Peer, ...]],
    pace: Mapping[tuple[Peer, int], float], me: Peer,
) -> tuple[Peer, ...]:  # fmt: skip
    """The holder of each visit of the route `visited`, by least expected finish time (rule 20).

    A peer's queue is what `under_way` gives it, one path a microbatch; `pace` as in soonest. The head's own visits stay
    with the head that admits. Of equals each holder of the head begins with another one, since none knows what the
    others give away. Requires a view without vacancies.
    """
    chosen: list[Peer] = []
    heads = view.holders[HEAD]
    first = heads.index(me) if me in heads else 0
    for stage in visited:
        group = view.holders[stage]
        if stage == HEAD and me in group:
            chosen.append(me)
            continue
        if len(group) == 1:
            chosen.append(group[0])
            continue
        queues = Counter(peer for path in (*under_way, chosen) for peer in path)
        turn = first % len(group)
        chosen.append(soonest((*group[turn:], *group[:turn]), stage, queues, pace))
    return tuple(chosen)


@lru_cache(maxsize=256)
def neighbours(view: View, stage: int, swap: bool = False) -> tuple[Peer, ...]:
    """The holders of the stages before and after `stage` on any route: who a holder must be able to dial."""
    around = {near for way in (0, 1) for near in _beside(route(len(view.holders) - 1, way, swap), stage)} - {stage}
    return tuple(sorted({peer for near in around for peer in view.holders[near]}))


def _beside(visited: tuple[int, ...], stage: int) -> set[int]:
    places = [visit for visit, at in enumerate(visited) if at == stage]
    return {visited[near] for visit in places for near in (visit - 1, visit + 1) if 0 <= near < len(visited)}
