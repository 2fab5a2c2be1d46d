"""What the leader of a new view decides when all members have reported: where the swarm stands (rules 17, 18).

Begin(t+1) needs Ready from every member, so after a commit every survivor has applied t or is Ready for it; that is why
the four cases below are all there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ftnode.protocol.messages import Commit, Donor, Plan, Ready, StageStatus, Status
from ftnode.protocol.recovery import REBUILT, choose_rung
from ftnode.protocol.settings import Settings
from ftnode.protocol.snapshots import Kept
from ftnode.protocol.types import Attempt, Peer, Recovered, Rung, Version, initial_version, next_version
from ftnode.protocol.view import View

KEEPERS_MAX = 4
"""Donors that a plan names of a copy or a snapshot that many have."""


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
        return Standing(base, False, None, None, False, False, (), "a member is behind a commit", behind)
    skipped = any(status.skipped for status in parts.values() if status.base == base)
    working = {p: s for p, s in parts.items() if any(k[1] == p and _reaches(x, base) for k, x in held.items())}
    attempts = {status.attempt if status.base == base else None for status in working.values()}
    attempt = next(iter(attempts)) if len(attempts) == 1 else None
    skip = any(status.skip for status in working.values())
    readies = tuple(status.ready for status in working.values() if status.ready is not None)
    if attempt is not None and len(readies) == len(working) and agree(readies):
        committed = next_version(base, view.lineage.id, attempt, skip)
        empty = _empty(view, held, committed)
        why = "all survivors are ready: the step is committed"
        return Standing(committed, skip, readies, None, False, False, empty, why)
    empty = _empty(view, held, base)
    taking_part = all(stage.working for stage in held.values())  # who gave a stage away may hold it again
    if attempt is not None and not empty and taking_part and working.keys() >= {peer for _, peer in held}:
        evaluate = any(status.evaluate for status in working.values())
        why = "nobody new and nobody missing: the attempt goes on"
        return Standing(base, skipped, None, attempt, skip, evaluate, empty, why)
    why = "nothing is in progress" if attempts <= {None} else "a holder was lost in mid-step: the step is redone"
    return Standing(base, skipped, None, None, False, False, empty, why)


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


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Stages that no rung can fill."""

    stages: tuple[int, ...]
    holders: tuple[Peer, ...]
    reason: str


def usable_copies(
    kept: Mapping[Peer, tuple[tuple[int, Version], ...]], base: Version
) -> dict[int, tuple[Version, tuple[Peer, ...]]]:
    """Stage → its newest copy that is not of a later step than `base`, and who keeps it."""
    found: dict[int, tuple[Version, tuple[Peer, ...]]] = {}
    for peer in sorted(kept):
        for stage, version in kept[peer]:
            best = found.get(stage)
            if version.step > base.step or (best is not None and best[0].step > version.step):
                continue
            with_it = best[1] if best is not None and best[0] == version else ()
            found[stage] = version, (*with_it, peer)
    return found


def plan_installs(
    view: View,
    where: Standing,
    settings: Settings,
    contacts: Mapping[Peer, tuple[str, ...]],
    copies: Mapping[int, tuple[Version, tuple[Peer, ...]]],
    snapshots: Kept = MappingProxyType({}),
) -> tuple[Plan, ...] | Hopeless:
    """A plan for each empty holder, or what stands in the way. `snapshots`: those on disks, of exactly the base."""
    missing = set(where.empty)
    copied = {stage: version.step for stage, (version, _) in copies.items()}
    whole = frozenset(
        stage for stage, group in enumerate(view.holders) if any((stage, peer) not in missing for peer in group)
    )
    plans: list[Plan] = []
    hopeless, reasons = [], []
    for stage, peer in where.empty:
        keepers = snapshots[stage][1] if stage in snapshots and stage not in whole else ()
        if peer in keepers or (keepers and not any(plan.stage == stage for plan in plans)):
            plans.append(_from_disks(stage, peer, snapshots[stage], where.base, contacts, view))
            continue
        first = next((plan.peer for plan in plans if plan.stage == stage), None)
        if first is not None:  # a rebuilt stage is rebuilt once
            donor = Donor(stage, first, contacts.get(first, ()))
            reason = f"{first} rebuilds it"
            plans.append(Plan(stage, peer, Rung.REPLICA, (donor,), plans[-1].rate_factor, reason, None))
            continue
        alive = whole | ((copied.keys() | snapshots.keys()) - {stage})  # a stage that comes back as a copy lends then
        rung, lenders, reason = choose_rung(stage, alive, where.base.step, settings, copied)
        if rung is None:
            hopeless.append((stage, peer))
            reasons.append(reason)
            continue
        copy = copies[stage][0] if rung in (Rung.HEAD, Rung.SHADOW) else None
        if copy is not None:
            lending = [(stage, keeper) for keeper in _nearest(copies[stage][1], peer, view)]
        else:
            lending = [
                (lender, min(view.holders[lender], key=lambda other: (lender, other) in missing)) for lender in lenders
            ]
        donors = tuple(Donor(lender, donor, contacts.get(donor, ())) for lender, donor in lending)
        factor = settings.rate_factor if rung in REBUILT else 1.0
        plans.append(Plan(stage, peer, rung, donors, factor, reason, copy))
    if hopeless:
        return Hopeless(tuple(s for s, _ in hopeless), tuple(p for _, p in hopeless), "; ".join(sorted(set(reasons))))
    return tuple(plans)


def _nearest(keepers: tuple[Peer, ...], peer: Peer, view: View) -> list[Peer]:
    """Whom to ask, first to last: itself, members, anybody. A Begin has no room for all who say so."""
    return sorted(keepers, key=lambda keeper: (keeper != peer, keeper not in view.members(), keeper))[:KEEPERS_MAX]


def _from_disks(
    stage: int, peer: Peer, kept: tuple[str, tuple[Peer, ...]], base: Version, contacts: Mapping[Peer, tuple[str, ...]],
    view: View,
) -> Plan:  # fmt: skip
    """The snapshot of the base: from the peer's own disk, else from a member's, else from anybody's."""
    digest, keepers = kept
    donors = tuple(Donor(stage, keeper, contacts.get(keeper, ())) for keeper in _nearest(keepers, peer, view))
    reason = f"a snapshot of step {base.step} is on {'its own disk' if peer in keepers else 'a disk'}"
    return Plan(stage, peer, Rung.SNAPSHOT, donors, 1.0, reason, base, digest)


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
