"""Filling vacancies: who is asked to hold a stage, and in which order (rule 10)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import HEAD, Peer, Version

UNANSWERED_MAX: Final = 4096
"""Of whom it is remembered that they let an offer pass: ids in the directory cost nothing."""
WIDTH_MAX: Final = 16
"""Candidates for one stage that are asked side by side."""


def choose_stages(
    vacant: Iterable[int], capacity: int, head: bool, refuses: Collection[int], kept: Collection[int] = ()
) -> tuple[int, ...]:
    """Which of the vacant stages a founder takes: those that it has `kept` on its disk, else the head first, then every
    other block stage, since adjacent losses are the hard ones."""
    open_stages = [stage for stage in vacant if stage not in refuses and (head or stage != HEAD)]
    even_first = sorted(open_stages, key=lambda stage: (stage not in kept, stage != HEAD, stage % 2, stage))
    return tuple(sorted(even_first[:capacity]))


def has_state(presence: Presence, stage: int, base: Version | None) -> bool:
    """By its own word it has the exact state of the stage, or where nobody has any, a snapshot of it."""
    exact = base is not None and any(kept == stage and version == base for kept, version in presence.exact)
    for snapshot in presence.snapshots:
        exact = exact or (snapshot.stage == stage and (base is None or base.step == 0 or snapshot.version == base))
    return exact


def lot(presence: Presence, view_number: int) -> bytes:
    """Differs from view to view, so that nobody is always first."""
    return hashlib.blake2b(f"{presence.peer.id}/{presence.peer.nonce}/{view_number}".encode(), digest_size=8).digest()


def fits(presence: Presence, stage: int) -> bool:
    """Could this peer hold the stage, if it had the room?"""
    return stage not in presence.refuses and (stage != HEAD or presence.head)


def suitable(presence: Presence, stage: int) -> bool:
    """May this peer be asked at all?"""
    return presence.capacity > 0 and fits(presence, stage)


@dataclass(slots=True)
class Offering:
    """One stage's search for a holder. Bounded: each candidate is asked once in a round.

    One candidate is asked at first. While nobody answers, twice as many are asked side by side each time that
    `more_at` comes, so that those who never answer hold the stage up for seconds, however many they are.
    """

    stage: int
    asked: dict[Peer, float] = field(default_factory=dict)
    """Who has been asked, and until when it may answer."""
    width: int = 1
    """So many may be asked at once."""
    more_at: float = float("inf")
    stateful: bool = False
    """Those who are asked say that they have the stage's state. Nobody without it is asked beside them."""
    tried: set[Peer] = field(default_factory=set)
    unanswered: set[Peer] = field(default_factory=set)
    """Peers that let an offer pass, UNANSWERED_MAX at most. What they say of the stage's state counts no more, but
    where nobody without it is asked."""
    accepted: Peer | None = None
    exact: bool = False
    """Who accepted it has the stage's weights."""

    def counts_on(self, presence: Presence, base: Version | None) -> bool:
        """It says that it has the stage's state, and has let no offer pass."""
        return presence.peer not in self.unanswered and has_state(presence, self.stage, base)

    def ask(self, peer: Peer, stateful: bool, now: float, offer_seconds: float, more_seconds: float) -> None:
        """The peer is sent an offer."""
        if not self.asked:
            self.more_at = now + more_seconds
        self.asked[peer], self.stateful = now + offer_seconds, stateful
        self.tried.add(peer)

    def widen(self, now: float, more_seconds: float) -> None:
        """Nobody has answered in time for the next ones to wait."""
        if self.asked and now >= self.more_at:
            self.width, self.more_at = min(2 * self.width, WIDTH_MAX), now + more_seconds

    def expire(self, now: float) -> list[Peer]:
        """Who has had the time to answer is not waited for any more."""
        late = [peer for peer, until in self.asked.items() if now >= until]
        for peer in late:
            del self.asked[peer]
            if len(self.unanswered) < UNANSWERED_MAX:
                self.unanswered.add(peer)
        return late

    def settle(self, peer: Peer, exact: bool) -> None:
        """The peer takes the stage; the others were asked in vain."""
        self.accepted, self.exact = peer, exact
        self.asked.clear()

    @property
    def due(self) -> float:
        """When there is something to do although nobody answers."""
        more = self.more_at if self.width < WIDTH_MAX else float("inf")
        return min(more, *self.asked.values()) if self.asked else float("inf")

    def busy(self) -> set[Peer]:
        """Who has been asked and has time left, or has accepted."""
        return {*self.asked, *([] if self.accepted is None else [self.accepted])}


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
    busy: Callable[[Peer, Sequence[int]], float],
    new: Collection[Peer] = (),
) -> list[tuple[int, Peer]]:
    """The next candidate for each of these stages: who is not `new`, then who has its state, then who has not failed on
    it, and then who will be least busy with it, which spreads stages over candidates, and asks standbys before holders;
    then adjacent stages apart. A stage for which others have been asked already gets a standby, and nobody with less of
    its state than those. `head_wanted`: it is open, or its holders leave; `busy`: seconds of a peer for a microbatch in
    all that it holds and in these stages."""
    taken: dict[Peer, list[int]] = {}
    for offering in offerings.values():
        for peer in offering.busy():
            taken.setdefault(peer, []).append(offering.stage)

    def preference(presence: Presence) -> tuple[object, ...]:
        peer, mine = presence.peer, taken.get(presence.peer, [])
        stateless = not offering.counts_on(presence, base)
        failed, adjacent = failures.get((peer.id, stage), 0), sum(abs(stage - other) == 1 for other in mine)
        return peer in new, stateless, failed, busy(peer, [*mine, stage]), adjacent, lot(presence, view_number)

    stages = list(stages)
    reserved = _only_head(presences.values(), taken) if head_wanted else None
    chosen = []
    for stage in stages:
        offering = offerings.get(stage, Offering(stage))
        tried = offering.tried | offering.busy()
        candidates = [
            presence
            for peer, presence in presences.items()
            if peer not in tried and suitable(presence, stage)
            if len(taken.get(peer, [])) + (peer == reserved and stage != HEAD) < presence.capacity
        ]  # fmt: skip
        if offering.asked:
            candidates = [p for p in candidates if p.peer not in members]
            candidates = [p for p in candidates if offering.counts_on(p, base) == offering.stateful]
        if stage in only_exact:
            candidates = [p for p in candidates if base is not None and (stage, base) in p.exact]
        if candidates:
            best = min(candidates, key=preference)
            taken.setdefault(best.peer, []).append(stage)
            chosen.append((stage, best.peer))
    return chosen
