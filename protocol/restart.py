"""A swarm that starts again from its disks (rules 34 to 36): which step, and the lineage that goes on from there.

Only the leader of a view in which nobody has any weights looks at disks, and only when steps are known to be on some.
It waits for those who were switched off together, who come within minutes of each other, as long as they could bring
the swarm further.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from ftnode.protocol.barrier import Standing
from ftnode.protocol.records import Presence
from ftnode.protocol.snapshots import Common, Kept, common, kept_of, numbers_after, sensible, within
from ftnode.protocol.types import HEAD, Peer, Snapshot, Version

if TYPE_CHECKING:
    from ftnode.protocol.leader import Leader

Known = Mapping[Peer, tuple[Snapshot, ...]]


def nobody_has_weights(leader: Leader) -> bool:
    """No member has weights of any stage of its own."""
    return all(stage.version is None for status in leader.statuses.values() for stage in status.stages)


def names_of(stages: Collection[int]) -> str:
    """For people: the stages in words."""
    return ", ".join("the head" if stage == HEAD else f"stage {stage}" for stage in sorted(stages)) or "nothing"


class Restart:
    """The leader's look at the disks, in one view."""

    def __init__(self, leader: Leader) -> None:
        self.leader, self.core, self.view = leader, leader.core, leader.view
        self.waiting = ""
        """What it waits for, in words; empty when it does not."""
        self._known: Known = {}
        self._hint: str | None = None
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
            self._hint, self._known = None, self._ask_all()
        return self._known

    def _ask_all(self) -> Known:
        settings, gone = self.core.settings, self.leader.losses.gone
        told = {peer: status.snapshots for peer, status in self.leader.statuses.items() if peer not in gone}
        told |= {presence.peer: presence.snapshots for presence in self.leader.recruiting.outside()}
        listed = {peer: tuple(s for s in snapshots if sensible(s, settings)) for peer, snapshots in told.items()}
        return {peer: snapshots for peer, snapshots in listed.items() if snapshots}

    def kept(self, version: Version) -> Kept:
        """Who has which stage of exactly this version on its disk."""
        return kept_of(version, self.known()) if version.step else {}

    def concerns(self, where: Standing) -> bool:
        """Nothing is committed in this lineage, nobody has weights, and steps are on disks."""
        return where.base.step == 0 and nobody_has_weights(self.leader) and bool(self.known())

    def choose(self, where: Standing) -> Standing | None:
        """Where the swarm goes on from, in this view; None while it waits, or when another lineage has been founded for
        it, since this one's numbers are not above those of the past."""
        core, settings, memory = self.core, self.core.settings, self.leader.memory
        known = self.known()
        highest = max([core.highest_step(), *(s.version.step for listed in known.values() for s in listed)])
        found = within(common(known, settings), highest, settings)
        best = found[0] if found else None
        if memory.restart_since is None:
            memory.restart_since = core.now
        waited = core.now - memory.restart_since
        whole = best is not None and not best.missing and best.version.step == highest
        if waited < (settings.lease_seconds if whole else settings.restart_wait_seconds):
            sight = f"step {highest} is whole on the disks here" if whole else self._in_sight(best, known, highest)
            self.waiting = f"others who {'start at this moment' if whole else 'were there'}: {sight}"
            return None
        if best is None:
            self.waiting = self.leader.halted = f"halted: {self._in_sight(best, known, highest)}"
            core.note("halt", self.waiting)
            return None
        self.waiting = self.leader.halted = ""
        number, forks = numbers_after(s for listed in known.values() for s in listed)
        if self.view.lineage.forks >= forks and min(self.view.epochs) >= number:
            core.note("restart", self._reason(best, highest), step=str(best.version.step))
            return replace(where, base=best.version, reason=f"starts again from snapshots of step {best.version.step}")
        core.follow.restart(number, forks, len(best.kept), self._reason(best, highest))
        return None

    def hint(self) -> str:
        """For a person, when the run halts although disks could bring it on: who is in the way."""
        known = self.known()
        if self._hint is None:
            self._hint = self._who_is_in_the_way(known)
        return self._hint

    def _who_is_in_the_way(self, known: Known) -> str:
        having = [p for p, status in self.leader.statuses.items() if any(s.version is not None for s in status.stages)]
        highest = max([self.core.highest_step(), *(s.version.step for listed in known.values() for s in listed)])
        found = within(common(known, self.core.settings), highest, self.core.settings) if having else []
        if not found:
            return ""
        names = ", ".join(map(str, sorted(having)))
        return f"; or from disks at step {found[0].version.step}, once {names}, who still have weights, start again"

    def _reason(self, best: Common, highest: int) -> str:
        lost = f", {highest - best.version.step} steps before the last one known" if highest > best.version.step else ""
        rebuilt = f"; nobody kept {names_of(best.missing)}" if best.missing else ""
        return f"nobody has weights: the swarm goes on from snapshots of step {best.version.step}{lost}{rebuilt}"

    def _in_sight(self, best: Common | None, known: Known, highest: int) -> str:
        """What there is, and what is missing."""
        settings = self.core.settings
        if best is not None:
            lacks = f" without {names_of(best.missing)}" if best.missing else ""
            return f"the disks here make step {best.version.step} possible{lacks}; step {highest} is known"
        possible = common(known, settings)
        if possible:
            newest = max(one.version.step for one in possible)
            return (
                f"the disks here make step {newest} possible and step {highest} is known; "
                f"the manifest lets {settings.rollback_max} steps be lost; it goes on when newer disks come"
            )
        newest_kept = max((s.version for listed in known.values() for s in listed), key=lambda v: (v.step, v.commit))
        kept = kept_of(newest_kept, known)
        missing = set(range(settings.stage_count)) - set(kept)
        return (
            f"of step {newest_kept.step} the disks here have {names_of(kept)} and not {names_of(missing)}; "
            f"it goes on when somebody comes who kept what is missing"
        )

    def beat(self) -> None:
        """Look again: time has passed, and disks may have come."""
        if self.waiting and self.leader.begin is None:
            self.leader.decide()
