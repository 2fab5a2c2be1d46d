"""What the leader of a new view decides when all members have reported: where the swarm stands (rules 17, 18).

Begin(t+1) needs Ready from every member, so after a commit every survivor has applied t or is Ready for it; that is why
the four cases below are all there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ftnode.protocol.words.messages import Commit, Ready, StageStatus, Status
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Peer, Recovered, Version, initial_version, next_version
from ftnode.protocol.words.view import View

BEHIND: Final = "lacks a step that it took part in"
GOES_ON: Final = "the step goes on"
DONE_AGAIN: Final = "is done again"
"""In the reasons for what is decided. The virtual world and the tests look for these words."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the swarm stands: the committed base, and whether the attempt in progress goes on."""

    base: Version
    skipped: bool
    commits_now: tuple[Ready, ...] | None
    """Case ii: base is committed by this decision, and these are its Readies."""
    continues: Attempt | None
    """Case iii: the attempt that goes on."""
    skip: bool
    """The attempt that goes on skips its step."""
    evaluate: bool
    """The attempt that goes on validates its base."""
    empty: tuple[tuple[int, Peer], ...]
    """(stage, holder) without usable weights of base."""
    reason: str
    behind: tuple[Peer, ...] = ()
    """Members whose word cannot be true; nothing is decided with them."""

    def vacuous(self, view: View) -> frozenset[int]:
        """Stages that have holders, and none with usable weights."""
        missing = set(self.empty)
        groups = enumerate(view.holders)
        return frozenset(stage for stage, group in groups if group and all((stage, peer) in missing for peer in group))


def standing(view: View, statuses: Mapping[Peer, Status]) -> Standing:
    """Decide from the Statuses of all members (rule 18). Requires one from each.

    Only participants, members that have got a Begin, say where the swarm stands. A newcomer that comes back with
    weights of an earlier step must neither hold back a commit that it took no part in nor undo one: it counts as
    empty unless its weights are exactly those of the base. A Begin is the commit of its base, so they know of
    that commit even without weights, as a leader without stages does, and even when the run is over. Without any, the
    voters say it: only they have been Ready in this lineage.
    """
    parts = (
        {peer: status for peer, status in statuses.items() if status.base is not None}
        or {peer: status for peer, status in statuses.items() if peer in view.voters}
        or dict(statuses)
    )
    held = {
        (stage.stage, peer): stage
        for peer, status in statuses.items()
        for stage in status.stages
        if peer in view.holders[stage.stage]
    }
    versions = [stage.version for (_, peer), stage in held.items() if peer in parts and stage.version is not None]
    versions += [status.base for status in parts.values() if status.base is not None]
    nothing = view.lineage.start or initial_version(view.lineage.id)
    base = max(versions, key=lambda version: version.step, default=nothing)
    behind = fallen_behind(view, parts, base)
    if behind:
        return Standing(base, False, None, None, False, False, (), f"a member {BEHIND}", behind)
    skipped = any(status.skipped for status in parts.values() if status.base == base)
    working = {p: s for p, s in parts.items() if any(k[1] == p and _reaches(x, base) for k, x in held.items())}
    attempts = {status.attempt if status.base == base else None for status in working.values()}
    attempt = next(iter(attempts)) if len(attempts) == 1 else None
    skip = any(status.skip for status in working.values())
    readies = tuple(status.ready for status in working.values() if status.ready is not None)
    if attempt is not None and len(readies) == len(working) and agree(readies):
        committed = next_version(base, view.lineage.id, attempt, skip)
        empty = _empty(view, held, committed)
        why = "everybody who is left has done its part: the step counts"
        return Standing(committed, skip, readies, None, False, False, empty, why)
    empty = _empty(view, held, base)
    taking_part = all(stage.working for stage in held.values())  # who gave a stage away may hold it again
    everybody = taking_part and working.keys() >= {peer for _, peer in held}
    if attempt is not None and same_routes(view, attempt) and not empty and everybody:
        evaluate = any(status.evaluate for status in working.values())
        why = f"nobody is missing: {GOES_ON}"
        return Standing(base, skipped, None, attempt, skip, evaluate, empty, why)
    why = "the next step begins" if attempts <= {None} else f"a holder was lost in mid-step: the step {DONE_AGAIN}"
    return Standing(base, skipped, None, None, False, False, empty, why)


def same_routes(view: View, attempt: Attempt) -> bool:
    """Whether the attempt began when routes left out what they leave out now."""
    return all(view.epochs[stage] <= attempt.view for stage in view.omitted)


def agree(readies: Iterable[Ready]) -> bool:
    """Has every holder of a stage the same reduced gradient? One that died may have left two behind (rule 18 iii)."""
    seen: dict[int, str] = {}
    return all(seen.setdefault(r.stage, r.gradient) == r.gradient for ready in readies for r in ready.results)


def _empty(view: View, held: Mapping[tuple[int, Peer], StageStatus], base: Version) -> tuple[tuple[int, Peer], ...]:
    """The (stage, holder) pairs without usable weights of base."""
    return tuple(
        (stage, peer)
        for stage, group in enumerate(view.holders)
        for peer in group
        if (stage, peer) not in held or not _reaches(held[(stage, peer)], base)
    )


def _reaches(stage: StageStatus, base: Version) -> bool:
    """Has the weights of base, or is Ready for exactly the attempt that made it (rule 18 i)."""
    if stage.version is None:
        return False
    return stage.version == base or (stage.version.step == base.step - 1 and stage.reduced == base.attempt)


def fallen_behind(view: View, participants: Mapping[Peer, Status], base: Version) -> tuple[Peer, ...]:
    """Who breaks the invariant behind rule 18 (i): a participant with weights is at base or Ready for it.

    Among honest peers nobody does; the virtual world treats an entry as a violation.
    """
    return tuple(
        peer
        for peer, status in participants.items()
        for stage in status.stages
        if status.attempt is not None and stage.working and stage.version is not None and not _reaches(stage, base)
        if peer in view.holders[stage.stage]
    )


def summarise(
    step: int, seconds: float, skipped: bool, readies: tuple[Ready, ...], recoveries: tuple[Recovered, ...],
    settings: Settings,
) -> Commit:  # fmt: skip
    """What a committed step came to, from the Readies of all members."""
    norms = [0.0] * settings.stage_count
    for ready in readies:
        for result in ready.results:
            norms[result.stage] = result.norm_squared
    loss = sum(ready.loss_sum for ready in readies) / settings.microbatches
    tokens = sum(ready.tokens for ready in readies)
    return Commit(step, loss, tokens, seconds, skipped, tuple(norms), recoveries)
