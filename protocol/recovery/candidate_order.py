"""Filling vacancies: who is asked to hold a stage, and in which order (rule 10)."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import HEAD, Peer, Version


def choose_stages(
    vacant: Iterable[int], capacity: int, head: bool, refuses: Collection[int], kept: Collection[int] = ()
) -> tuple[int, ...]:
    """Which of the vacant stages a founder takes: those that it has `kept` on its disk, else the head first, then every
    other block stage, since adjacent losses are the hard ones."""
    open_stages = [stage for stage in vacant if stage not in refuses and (head or stage != HEAD)]
    even_first = sorted(open_stages, key=lambda stage: (stage not in kept, stage != HEAD, stage % 2, stage))
    return tuple(sorted(even_first[:capacity]))


def rank(presence: Presence, stage: int, view_number: int, base: Version | None, failures: int) -> tuple[object, ...]:
    """Candidates in order, smaller first: has the exact state, or where nobody has any, a snapshot of the stage; failed
    least on this stage, has most room, then a hash that differs from view to view, so that nobody is always first."""
    exact = base is not None and any(kept == stage and version == base for kept, version in presence.exact)
    for snapshot in presence.snapshots:
        exact = exact or (snapshot.stage == stage and (base is None or base.step == 0 or snapshot.version == base))
    lot = hashlib.blake2b(f"{presence.peer.id}/{presence.peer.nonce}/{view_number}".encode(), digest_size=8).digest()
    return (not exact, failures, -presence.capacity, lot)


def fits(presence: Presence, stage: int) -> bool:
    """Could this peer hold the stage, if it had the room?"""
    return stage not in presence.refuses and (stage != HEAD or presence.head)


def suitable(presence: Presence, stage: int) -> bool:
    """May this peer be asked at all?"""
    return presence.capacity > 0 and fits(presence, stage)


@dataclass(slots=True)
class Offering:
    """One stage's search for a holder. Bounded: each candidate is asked once in a round."""

    stage: int
    asked: Peer | None = None
    deadline: float = 0.0
    tried: set[Peer] = field(default_factory=set)
    accepted: Peer | None = None
    exact: bool = False
    """Who accepted it has the stage's weights."""

    def busy(self) -> set[Peer]:
        """Who has been asked and has time left, or has accepted."""
        return {peer for peer in (self.asked, self.accepted) if peer is not None}


def _only_head(presences: Iterable[Presence], taken: Mapping[Peer, list[int]]) -> Peer | None:
    """The one peer that may take the head. With its room full of block stages nobody could."""
    able = [p.peer for p in presences if suitable(p, HEAD) and len(taken.get(p.peer, [])) < p.capacity]
    return able[0] if len(able) == 1 else None


def assign(
    stages: Iterable[int],
    presences: Mapping[Peer, Presence],
    offerings: Mapping[int, Offering],
    view_number: int,
    base: Version | None,
    failures: Mapping[tuple[str, int], int],
    only_exact: Collection[int],
    members: Collection[Peer],
    head_wanted: bool,
) -> list[tuple[int, Peer]]:
    """The next candidate for each stage that has nobody asked or found; spreads stages over candidates first,
    standbys before holders with room, and adjacent stages apart. `head_wanted`: it is open, or its holders leave."""
    taken: dict[Peer, list[int]] = {}
    for offering in offerings.values():
        for peer in offering.busy():
            taken.setdefault(peer, []).append(offering.stage)

    def preference(presence: Presence) -> tuple[object, ...]:
        exact, *rest = rank(presence, stage, view_number, base, failures.get((presence.peer.id, stage), 0))
        mine = taken.get(presence.peer, [])
        adjacent = sum(abs(stage - other) == 1 for other in mine)
        return (exact, presence.peer in members, len(mine), adjacent, *rest)

    stages = list(stages)
    reserved = _only_head(presences.values(), taken) if head_wanted else None
    chosen = []
    for stage in stages:
        tried = offerings[stage].tried if stage in offerings else set()
        candidates = [
            presence
            for peer, presence in presences.items()
            if peer not in tried and suitable(presence, stage)
            if len(taken.get(peer, [])) + (peer == reserved and stage != HEAD) < presence.capacity
        ]  # fmt: skip
        if stage in only_exact:
            candidates = [p for p in candidates if base is not None and (stage, base) in p.exact]
        if candidates:
            best = min(candidates, key=preference)
            taken.setdefault(best.peer, []).append(stage)
            chosen.append((stage, best.peer))
    return chosen
