"""Peers outside the view that may lend copies or snapshots, and what everybody lends together."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.situation import Situation
from ftnode.protocol.wire.admission import REASON_MAX
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer, Version, spoken_stage
from ftnode.protocol.words.view import View

Told = tuple[tuple[int, Version], ...]
"""(stage, version) of each copy that a peer keeps."""


def outside(s: Situation, memory: LeaderMemory) -> list[Presence]:
    """Peers outside the view that may lend something: their addresses do not refuse, nor have they failed to."""
    unheard = memory.unheard
    return [
        presence
        for peer, presence in s.presences.items()
        if (presence.copies or presence.snapshots) and peer not in s.members
        if peer not in s.liveness.refused
        and (peer not in unheard or s.liveness.heard_since(peer, unheard[peer]))
    ]  # fmt: skip


REFUTED_BY = 2
"""Where nothing else is left, a donor counts whom fewer say not to be believed: one of them may lie."""


def refuted(memory: LeaderMemory, view: View, least: int = 1) -> frozenset[int]:
    """Stages none of whose holders is believed to lend what it works with."""
    said = memory.not_believed(least)
    groups = enumerate(view.holders)
    return frozenset(stage for stage, group in groups if group and all((stage, peer) in said for peer in group))


def lent(s: Situation, memory: LeaderMemory, lineage: str, told: Mapping[Peer, Told]) -> dict[Peer, Told]:
    """The copies that members tell of, and what peers outside the view keep: a keeper that lost its compute, and
    with it its stage, has its copies. Not those of which nobody told who held the stage (rule 49), nor those that were
    asked for in vain: to be heard is not to lend."""
    others = {p.peer: p.copies for p in outside(s, memory) if p.copies and p.lineage == lineage}
    doubted = memory.doubted()
    return {
        peer: tuple(
            (stage, version)
            for stage, version in copies
            if memory.lent.counts(peer, stage, version) and not memory.is_broken(peer, stage, version)
        )
        for peer, copies in (others | dict(told)).items()
        if peer.id not in doubted
    }


def uncounted(memory: LeaderMemory, told: Mapping[Peer, Told], stages: Collection[int]) -> str:
    """Who tells of copies of these stages that do not count, since nobody else does; for people."""
    found = [
        f"{spoken_stage(stage)} by {peer}"
        for peer, copies in sorted(told.items())
        for stage, version in copies
        if stage in stages and not memory.lent.counts(peer, stage, version)
    ]
    return ", ".join(found)[:REASON_MAX]
