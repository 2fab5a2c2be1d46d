"""A swarm that starts again from its disks (rules 34 to 36): which step, and the lineage that goes on from there.

Disks are looked at where memory does not suffice: nothing is committed in this lineage and steps are known to be
stored, or the run halts for want of weights. The leader waits for those who were switched off together, who come within
minutes of each other, and for whoever still has the weights; then it founds a lineage that goes on from the best
version that the disks make possible. The version is a part of the lineage, so that whoever leads it next knows it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import islice
from typing import TYPE_CHECKING

from ftnode.protocol.barrier import Standing
from ftnode.protocol.records import Presence
from ftnode.protocol.snapshots import (
    PEERS_MAX,
    TOLD_MAX,
    Common,
    Kept,
    common,
    credible_step,
    kept_of,
    number_after,
    sensible,
    within,
)
from ftnode.protocol.types import Peer, Snapshot, Version, spoken_stage

if TYPE_CHECKING:
    from ftnode.protocol.leader import Leader

Known = Mapping[Peer, tuple[Snapshot, ...]]


def names_of(stages: Collection[int]) -> str:
    """For people: the stages in words."""
    return ", ".join(map(spoken_stage, sorted(stages))) or "nothing"


class Restart:
    """The leader's look at the disks, in one view."""

    def __init__(self, leader: Leader) -> None:
        self.leader, self.core, self.view = leader, leader.core, leader.view
        self.waiting = ""
        """What it waits for, in words; empty when it does not."""
        self._known: Known = {}
        self._found: tuple[int, list[Common], list[Common]] | None = None
        """What follows from `known`: the highest step, the versions that are possible near enough to it, and all."""
        self._looked: tuple[float, ...] = ()
        self._read: Mapping[Peer, Presence] = {}
        """When, and with whom, `known` was put together."""

    def known(self) -> Known:
        """What members, and peers outside that can be reached, say that they have on their disks. Put together anew
        once a heartbeat, and when others are there: it is asked for at every event of a run that halts."""
        core, leader = self.core, self.leader
        if not core.settings.snapshot_every:
            return {}
        beat = core.now // core.settings.heartbeat_seconds
        now = beat, len(leader.statuses), len(leader.losses.gone), len(core.presences)
        if now != self._looked or core.presences is not self._read:
            self._looked, self._read = now, core.presences
            self._found, self._known = None, self._ask_all()
        return self._known

    def _ask_all(self) -> Known:
        core, settings, leader = self.core, self.core.settings, self.leader
        gone, memory = leader.losses.gone, leader.memory
        told = {peer: status.snapshots for peer, status in leader.statuses.items() if peer not in gone}
        told[core.me] = core.disk.told()
        told |= {presence.peer: presence.snapshots for presence in leader.recruiting.outside()}
        doubted = memory.doubted()
        listed = {
            peer: tuple(
                s for s in snapshots[:TOLD_MAX]
                if sensible(s, settings) and not memory.is_broken(peer, s.stage, s.version)
            )
            for peer, snapshots in islice(told.items(), PEERS_MAX) if peer.id not in doubted
        }  # fmt: skip
        if any(presence.snapshots for presence in core.presences.values()) or any(listed.values()):
            memory.disks_heard = core.now
        return {peer: snapshots for peer, snapshots in listed.items() if snapshots}

    def _possible(self) -> tuple[int, list[Common], list[Common]]:
        """The highest step that is known, the versions within rollback_max of it, best first, and all versions."""
        known, settings = self.known(), self.core.settings
        if self._found is None:
            begun = self.leader.base is None or self.leader.base != self.view.lineage.start
            committed = self.core.highest_step() if begun else self.leader.memory.known_step
            every = common(known, settings)
            highest = max(committed, credible_step(known, every))
            self._found = highest, within(every, highest, settings), every
        return self._found

    def kept(self, version: Version) -> Kept:
        """Who has which stage of exactly this version on its disk."""
        return kept_of(version, self.known()) if version.step else {}

    def prospect(self) -> int:
        """The step that the swarm would go on from now; 0 if there is none."""
        found = self._possible()[1]
        return found[0].version.step if found else 0

    def concerns(self, where: Standing) -> bool:
        """Nothing is committed in this lineage, and steps are stored, or were until a moment ago."""
        if where.base.step or not self.core.settings.snapshot_every:
            return False
        known, heard = self.known(), self.leader.memory.disks_heard
        return bool(known) or (heard is not None and self.core.now - heard < self.core.settings.restart_wait_seconds)

    def look(self) -> None:
        """Wait, or halt, or found the lineage that goes on from disks; we and our view are the past then. The first
        disks that suffice wait for the others: who was switched off together comes within minutes of each other."""
        core, settings, memory, leader = self.core, self.core.settings, self.leader.memory, self.leader
        highest, found, _ = self._possible()
        best = found[0] if found else None
        if memory.stuck_since is None:
            memory.stuck_since = core.now
        if best is not None:
            memory.possible(core.now, settings.restart_wait_seconds)
        fresh = leader.base is None or leader.base.step == 0
        whole = fresh and best is not None and not best.missing and best.version.step == highest
        waited = core.now - (memory.stuck_since if best is None else memory.possible_since)
        if waited < (settings.lease_seconds if whole else settings.restart_wait_seconds) or not core.follow.quorate:
            sight = f"step {highest} is whole on the disks here" if whole else self._in_sight(best, highest)
            self.waiting = f"others who {'start at this moment' if whole else 'were there'}: {sight}"
        elif best is None:
            if memory.forgive(core.now, settings.restart_wait_seconds):
                self._looked = ()
            self.waiting = f"halted: {self._in_sight(best, highest)}"
            if fresh:
                leader.halted = self.waiting
                core.note("halt", self.waiting)
        else:
            told = [*(s for status in leader.statuses.values() for s in status.snapshots), *core.disk.told()]
            counted = {peer for _, peers in best.kept.values() for peer in peers}
            told += [s for peer in counted for s in self.known()[peer] if s.version == best.version]
            number = number_after((s for s in told if sensible(s, settings)), self.view.number)
            core.follow.restart(number, best.version, len(best.kept), self._reason(best, highest))

    def hint(self) -> str:
        """For a person, when the run halts for want of weights: what disks could do about it."""
        if not self.known():
            return ""
        highest, found, _ = self._possible()
        if not found:
            return f"; {self._in_sight(None, highest)}"
        wait = f"{self.core.settings.restart_wait_seconds:.0f} s after it halted"
        return f"; or from disks at step {found[0].version.step}, {wait}"

    def _reason(self, best: Common, highest: int) -> str:
        lost = f", {highest - best.version.step} steps before the last one known" if highest > best.version.step else ""
        rebuilt = f"; nobody kept {names_of(best.missing)}" if best.missing else ""
        return f"memory does not suffice: the swarm goes on from snapshots of step {best.version.step}{lost}{rebuilt}"

    def _in_sight(self, best: Common | None, highest: int) -> str:
        """What there is, and what is missing."""
        settings, known = self.core.settings, self.known()
        if best is not None:
            lacks = f" without {names_of(best.missing)}" if best.missing else ""
            return f"the disks here make step {best.version.step} possible{lacks}; step {highest} is known"
        if possible := self._possible()[2]:
            newest = max(one.version.step for one in possible)
            return (
                f"the disks here make step {newest} possible and step {highest} is known; "
                f"the manifest lets {settings.rollback_max} steps be lost; it goes on when newer disks come"
            )
        every = [s.version for listed in known.values() for s in listed]
        if not every:
            return "steps are stored on disks of peers that do not answer"
        newest_kept = max(every, key=lambda version: (version.step, version.commit))
        kept = kept_of(newest_kept, known)
        missing = set(range(settings.stage_count)) - set(kept)
        owners = sorted({peer for _, peers in kept.values() for peer in peers})
        whose = f" (that of {owners[0]})" if len(owners) == 1 else ""
        return (
            f"of step {newest_kept.step} the disks here{whose} have {names_of(kept)} and not {names_of(missing)}; "
            f"it goes on when somebody comes who kept what is missing"
        )

    def beat(self) -> None:
        """Look again: time has passed, and disks may have come."""
        leader, memory, now = self.leader, self.leader.memory, self.core.now
        if leader.finished or self.core.balloting.proposing:
            return
        if leader.base is None or leader.base.step == 0:
            if self.waiting and leader.begin is None:
                leader.decide()
        elif not leader.halted:
            self.waiting = ""
            if not memory.broken:
                memory.unstick()
            elif memory.stuck_since is not None and self._possible()[1]:  # what it does without disks may be only said
                memory.possible(now, self.core.settings.restart_wait_seconds)
        else:
            memory.stuck_since = now if memory.stuck_since is None else memory.stuck_since
            if leader.recruiting.pending or leader.recruiting.fills:  # who may have the very weights
                return
            if self.known():
                self.look()
            elif memory.forgive(now, self.core.settings.restart_wait_seconds):
                self._looked = ()
