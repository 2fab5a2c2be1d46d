"""What each empty stage of a new view is filled from, and who gives it: the plans of the leader's Begin (rule 19)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ftnode.protocol.recovery.disk_versions import DiskHolders
from ftnode.protocol.recovery.lent_copies import LentCopies
from ftnode.protocol.recovery.rungs import REBUILT, Available, filled_from
from ftnode.protocol.recovery.standing import Standing
from ftnode.protocol.words.messages import Donor, Plan
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Peer, Rung, Version
from ftnode.protocol.words.view import View

KEEPERS_MAX = 4
"""Donors that a plan names of a copy or a snapshot that many have."""


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
    snapshots: DiskHolders = MappingProxyType({}),
    lent: LentCopies | None = None,
    refuted: Collection[tuple[int, Peer]] = (),
) -> tuple[Plan, ...] | Hopeless:
    """A plan for each empty holder, or what stands in the way. `snapshots`: those on disks, of exactly the base.
    `lent`: what holders told of the copies. `refuted`: (stage, holder) that no plan names as a donor (rule 48)."""
    missing = {*where.empty, *refuted}
    whole = frozenset(
        stage for stage, group in enumerate(view.holders) if any((stage, peer) not in missing for peer in group)
    )
    # Nobody blends from a stage that is vacant, whoever keeps a copy: a run that is over ends with what it has.
    copied = {stage: version.step for stage, (version, _) in copies.items() if view.holders[stage]}
    stored = {stage: kept for stage, kept in snapshots.items() if view.holders[stage]}
    unlent = {stage for stage, _ in refuted} - {stage for stage, _ in where.empty} - whole
    available = Available(where.base.step, whole, copied, stored).without(unlent)
    plans: list[Plan] = []
    hopeless, reasons = [], []
    for stage, peer in where.empty:
        rung, lenders, reason = filled_from(stage, available, settings)
        first = next((plan.peer for plan in plans if plan.stage == stage), None)
        if rung is Rung.SNAPSHOT and (first is None or peer in snapshots[stage][1]):
            plans.append(_from_disks(stage, peer, snapshots[stage], where.base, contacts, view))
            continue
        if first is not None:  # a rebuilt stage is rebuilt once
            donor = Donor(stage, first, contacts.get(first, ()))
            reason = f"{first} rebuilds it"
            plans.append(Plan(stage, peer, Rung.REPLICA, (donor,), plans[-1].rate_factor, reason, None))
            continue
        if rung is None:
            hopeless.append((stage, peer))
            reasons.append(reason)
            continue
        copy, digests = copies[stage][0] if rung in (Rung.HEAD, Rung.SHADOW) else None, tuple[str, ...]()
        if copy is not None:
            asked = _nearest(copies[stage][1], peer, view)
            lending = [(stage, keeper) for keeper in asked]
            digests = lent.digests(asked, stage, copy, where.base) if lent is not None else ()
        else:
            lending = [
                (lender, min(view.holders[lender], key=lambda other: ((lender, other) in missing, other != peer)))
                for lender in lenders
            ]
        donors = tuple(Donor(lender, donor, contacts.get(donor, ())) for lender, donor in lending)
        factor = settings.rate_factor if rung in REBUILT else 1.0
        plans.append(Plan(stage, peer, rung, donors, factor, reason, copy, told=digests))
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
