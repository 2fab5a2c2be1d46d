"""How a participant presents itself: its record in the directory, and what it waits for, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ftnode.protocol.admission import EXACT_PER_STAGE, usable_addresses
from ftnode.protocol.messages import StageStatus, Status
from ftnode.protocol.records import Presence
from ftnode.protocol.view import View

if TYPE_CHECKING:
    from ftnode.protocol.participant import Participant


def presence_of(core: Participant) -> Presence:
    """What this peer can do for the run now. The view number is left out, so that it changes seldom."""
    holder = core.holder
    lineage, number = (core.view.lineage.id, 0) if core.view is not None else ("", -1)
    exact = tuple((stage, version) for stage, version in holder.exact(lineage) if stage not in core.mine)
    return Presence(
        peer=core.me,
        addresses=core.addresses,
        lineage=lineage,
        view=number,
        capacity=core.room,
        head=holder.may_head,
        refuses=tuple(sorted(holder.refuses)),
        exact=exact[: EXACT_PER_STAGE * core.settings.stage_count],
        copies=() if core.member else holder.copies.versions(),
        tokens_per_second=holder.tokens_per_second,
        snapshots=() if core.member else core.disk.told(),
    )


def state_of(core: Participant, stage: int) -> str:
    """What a stage of ours is about, in one word, for people."""
    holder = core.holder
    if stage in holder.installs:
        return "rebuilding"
    if holder.begin is None or holder.work is None:
        return "waiting"
    if not holder.begin.training:
        return "finished"
    return "ready" if holder.work.complete else "training"


def status_of(core: Participant, view: View) -> Status:
    """What this member tells the leader of a new view (rule 17)."""
    holder = core.holder
    work, begin = holder.work, holder.begin
    training = begin is not None and work is not None and begin.training
    versions = holder.ours
    base, skipped = (begin.base, begin.skipped) if begin is not None else holder.told or (None, False)
    return Status(
        lineage=view.lineage.id,
        view=view.number,
        attempt=begin.attempt if begin is not None and training else None,
        step=begin.step if begin is not None else 0,
        base=base,
        skipped=skipped,
        skip=begin.skip if begin is not None and work is not None else False,
        evaluate=begin is not None and begin.evaluate,
        stages=tuple(
            StageStatus(
                stage,
                versions.get(stage),
                holder.reduced(stage, view.lineage.id),
                training and work is not None and stage in work.stages,
            )
            for stage in core.mine
        ),
        ready=work.ready() if work is not None and training and work.complete else None,
        evaluated=tuple(sorted(core.chronicle.validation.items())[-4:]),
        commits=core.chronicle.newest_commits(4),
        copies=holder.copies.versions(),
        paths=work.paths() if work is not None and training else (),
        paths_view=begin.view if begin is not None and training else -1,
        snapshots=core.disk.told(),
    )


def move(core: Participant, addresses: tuple[str, ...]) -> None:
    """Present ourselves at other addresses from now on, in the directory and in certificates."""
    core.addresses = core.contacts[core.me] = usable_addresses(addresses)


def waiting_for(core: Participant) -> str:
    """What this peer waits for; the leader says it for the run. Empty while it works (invariant I8)."""
    if not core.holder.compute_ready:
        return "its compute process"
    if core.view is None:
        return "other founders or a certificate of the run"
    if core.leader is not None:
        return core.leader.waiting()
    if not core.member:
        return "a vacancy"
    if core.leaving and core.mine:
        return f"others to have learnt stage {', '.join(map(str, core.mine))}, or to say that they do without"
    if core.holder.begin is None:
        return f"the leader {core.view.leader}"
    return "" if core.follow.quorate else "a quorum of the view"
