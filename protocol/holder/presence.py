"""How a participant presents itself: its record in the directory, its Status, and what it waits for, in words."""

from __future__ import annotations

from ftnode.protocol.holder.holder import Holder
from ftnode.protocol.situation import Situation
from ftnode.protocol.wire.admission import EXACT_PER_STAGE
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import names_of


def presence_of(s: Situation, holder: Holder, addresses: tuple[str, ...]) -> Presence:
    """What this peer can do for the run now. The view number is left out, so that it changes seldom."""
    lineage, number = (s.view.lineage.id, 0) if s.view is not None else ("", -1)
    return Presence(
        peer=s.me,
        addresses=addresses,
        lineage=lineage,
        view=number,
        capacity=s.room,
        head=holder.may_head,
        refuses=tuple(sorted(holder.refuses)),
        exact=holder.exact(lineage, but=s.mine)[: EXACT_PER_STAGE * s.settings.stage_count],
        copies=() if s.member else holder.copies.versions(),
        tokens_per_second=holder.tokens_per_second,
        snapshots=() if s.member else holder.snapshots_told(),
        site=s.here,
    )


def state_of(holder: Holder, stage: int) -> str:
    """What a stage of ours is about, in one word, for people."""
    if stage in holder.installs:
        return "rebuilding"
    if holder.begin is None or holder.work is None:
        return "waiting"
    if not holder.begin.training:
        return "finished"
    return "ready" if holder.work.complete else "training"


def waiting_for(s: Situation) -> str:
    """What this peer waits for; the leader says it for the run. Empty while it works (invariant I8)."""
    if not s.own.compute_ready:
        return "its compute process"
    if s.view is None:
        return "an answer of the run's members, or to start it if there are none"
    if s.led is not None:
        return s.led.waiting(s)
    if not s.member:
        return f"nothing more: all {s.settings.steps:,} steps are done" if s.over else "a stage that needs a holder"
    if s.leaving and s.mine:
        return f"others to take over {names_of(s.mine)}"
    if s.own.begin is None:
        return f"word from {s.view.leader}, who leads the run"
    return "" if s.quorate else "a majority of the members to be heard"
