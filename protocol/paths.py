"""Routes and paths: which stages a microbatch visits, and who serves each visit (rules 3, 20)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from ftnode.protocol.types import HEAD, Peer
from ftnode.protocol.view import View


@lru_cache(maxsize=1024)
def route(stages: int, microbatch: int) -> tuple[int, ...]:
    """The stages that a microbatch visits, in order; the head comes first and last. Visits are its positions."""
    del microbatch  # every microbatch takes the normal route until routes swap (CheckFree+)
    return (HEAD, *range(1, stages + 1), HEAD)


def last_visit(stages: int) -> int:
    """The visit at which the head computes the loss."""
    return stages + 1


@lru_cache(maxsize=4096)
def expected_visits(stages: int, microbatches: int, stage: int) -> frozenset[tuple[int, int]]:
    """The (microbatch, visit) pairs that a stage must accumulate for a step to be complete (rule 23, I1)."""
    return frozenset(
        (microbatch, visit)
        for microbatch in range(microbatches)
        for visit, visited in enumerate(route(stages, microbatch))
        if visited == stage
    )


def choose_path(
    view: View, stages: int, microbatch: int, finish_seconds: Mapping[Peer, float], me: Peer
) -> tuple[Peer, ...]:
    """The holder of each visit by least expected finish time; the head's own visits stay with the head that admits.

    A path never leaves a peer that is in the view. Requires a view without vacancies.
    """
    chosen = []
    for stage in route(stages, microbatch):
        group = view.holders[stage]
        if stage == HEAD and me in group:
            chosen.append(me)
        else:
            chosen.append(min(group, key=lambda peer: (finish_seconds.get(peer, 0.0), group.index(peer))))
    return tuple(chosen)


@lru_cache(maxsize=256)
def neighbours(view: View, stage: int) -> tuple[Peer, ...]:
    """The holders of the stages before and after `stage` on the normal route: who a holder must be able to dial."""
    count = len(view.holders)
    around = {(stage - 1) % count, (stage + 1) % count} - {stage}
    return tuple(sorted({peer for near in around for peer in view.holders[near]}))
