"""A swarm that starts again from its disks (rules 34 to 36): which step, and the lineage that goes on from there.

Disks are looked at where memory does not suffice: nothing is committed in this lineage and steps are known to be
stored, or the run halts for want of weights. The leader waits for those who were switched off together, who come within
minutes of each other, and for whoever still has the weights; then it founds a lineage that goes on from the best
version that the disks make possible. The version is a part of the lineage, so that whoever leads it next knows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.lenders import outside
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.recovery.disk_versions import (
    PEERS_MAX,
    CommonVersion,
    DiskHolders,
    common,
    credible_step,
    kept_of,
    number_after,
    within,
    witnessed,
)
from ftnode.protocol.recovery.rolls import believed, trusted, undone
from ftnode.protocol.recovery.standing import Standing
from ftnode.protocol.situation import GoOnFromDisks, Outcome, Situation
from ftnode.protocol.words.messages import HALTED, Roll
from ftnode.protocol.words.records import LIFETIME_SECONDS_MAX, TOLD_MAX, Presence, sensible
from ftnode.protocol.words.types import Peer, Snapshot, Version, names_of
from ftnode.protocol.words.view import View

Known = Mapping[Peer, tuple[Snapshot, ...]]
Possible = tuple[int, list[CommonVersion], list[CommonVersion]]
"""The highest step that is known, the versions that are possible within rollback_max of it, best first, and all."""


@dataclass(frozen=True, slots=True)
class DiskReports:
    """What members, and peers outside that can be reached, say that they have on their disks."""

    when: tuple[float, ...]
    presences: Mapping[Peer, Presence]
    """When, and with whom, it was put together."""
    known: Known
    heard: bool
    """Somebody told of snapshots, reachable or not."""
    rolls: tuple[Roll, ...] = ()
    """Those that we go by."""
    doubtful: tuple[Peer, ...] = ()
    """Who tells of snapshots that are not to be believed, by the rolls that we have."""


class Restart:
    """The leader's look at the disks, in one view. What it says at an event is what it saw when it last listened, once
    a heartbeat, or what it would see now; a question changes nothing."""

    def __init__(self, view: View, memory: LeaderMemory, progress: ViewProgress, losses: Losses) -> None:
        self.view, self.memory, self.progress, self.losses = view, memory, progress, losses
        self.waiting = ""
        """What it waits for, in words; empty when it does not."""
        self._told_again: dict[Peer, tuple[Snapshot, ...]] = {}
        self._tellings = 0
        self._last: DiskReports | None = None
        self._found: tuple[DiskReports, int, Possible] | None = None
        """What follows from what was seen, and from the highest committed step."""

    # -- questions

    def known(self, s: Situation) -> Known:
        """What members, and peers outside that can be reached, say that they have on their disks."""
        return self._seen(s).known if s.settings.snapshot_every else {}

    def _seen(self, s: Situation) -> DiskReports:
        """Put together anew once a heartbeat, and when others are there: it is asked for at every event of a run that
        halts."""
        beat = s.now // s.settings.heartbeat_seconds
        told = len(self.progress.statuses), len(s.presences), self.memory.rolls_heard, len(s.own.rolls_kept())
        when = beat, len(self.losses.gone), *told, self._tellings, s.order.number
        last = self._last
        if last is not None and last.when == when and last.presences is s.presences:
            return last
        return self._ask_all(s, when)

    def _ask_all(self, s: Situation, when: tuple[float, ...]) -> DiskReports:
        gone, memory = self.losses.gone, self.memory
        told = {peer: status.snapshots for peer, status in self.progress.statuses.items()} | self._told_again
        told = {peer: snapshots for peer, snapshots in told.items() if peer not in gone}
        told[s.me] = s.own.snapshots_told()
        told |= {presence.peer: presence.snapshots for presence in outside(s, memory)}
        doubted = memory.doubted()
        listed = {
            peer: tuple(
                kept for kept in snapshots[:TOLD_MAX]
                if sensible(kept, s.settings) and not memory.is_broken(peer, kept.stage, kept.version)
            )
            for peer, snapshots in islice(told.items(), PEERS_MAX) if peer.id not in doubted
        }  # fmt: skip
        heard = any(presence.snapshots for presence in s.presences.values()) or any(listed.values())
        told_of = {peer: snapshots for peer, snapshots in listed.items() if snapshots}
        rolls = trusted(s.own.rolls_kept(), memory.rolls_told())
        known, doubtful = believed(told_of, rolls)
        return DiskReports(when, s.presences, known, heard, tuple(rolls), tuple(sorted(doubtful)))

    def _not_undone(self, s: Situation) -> Known:
        """Without what the author's order undoes (rule 47). Where nothing else is possible, and this lineage has not
        followed the order, all."""
        seen = self._seen(s)
        if not s.order.number:
            return seen.known
        found = {
            peer: tuple(kept for kept in snapshots if not undone(s.order, kept.version, seen.rolls))
            for peer, snapshots in seen.known.items()
        }
        return found if not s.to_roll_back or common(found, s.settings) else seen.known

    def before_order(self, s: Situation) -> CommonVersion | None:
        """The newest version that the author's order lets stand and of which all stages are on disks."""
        known = {
            peer: tuple(kept for kept in snapshots if not s.order.spoils(kept.version.step))
            for peer, snapshots in self.known(s).items()
        }
        whole = (one for one in common(known, s.settings) if not one.missing)
        return max(whole, key=lambda one: one.version.step, default=None)

    def told_again(self, peer: Peer, snapshots: tuple[Snapshot, ...]) -> None:
        """A member tells what is on its disk while the view stays."""
        self._told_again[peer] = snapshots
        self._tellings += 1

    def _possible(self, s: Situation) -> Possible:
        base, settings = self.progress.base, s.settings
        begun = base is None or base != self.view.lineage.start
        committed = s.highest_step if begun else self.memory.known_step
        if not settings.snapshot_every:
            return committed, [], []
        seen = self._seen(s)
        if self._found is None or self._found[0] is not seen or self._found[1] != committed:
            known = self._not_undone(s)
            every = common(known, settings)
            if not s.own.rolls_kept():
                every = witnessed(every, known)
            highest = max(committed, credible_step(known, every))
            self._found = seen, committed, (highest, within(every, highest, settings), every)
        return self._found[2]

    def kept(self, s: Situation, version: Version) -> DiskHolders:
        """Who has which stage of exactly this version on its disk."""
        return kept_of(version, self.known(s)) if version.step else {}

    def prospect(self, s: Situation) -> int:
        """The step that the swarm would go on from now; 0 if there is none."""
        found = self._possible(s)[1]
        return found[0].version.step if found else 0

    def concerns(self, s: Situation, where: Standing) -> bool:
        """Nothing is committed in this lineage, and a step is known to be stored. Steps of which one peer alone tells,
        or peers that do not answer, are waited for in case that they are: as long as records of the dead stand, and as
        disks are waited for."""
        settings, memory = s.settings, self.memory
        if where.base.step or not settings.snapshot_every:
            return False
        if self.known(s) and self._possible(s)[0]:
            return True
        if memory.disks_heard is None or s.now - memory.disks_heard >= settings.restart_wait_seconds:
            return False
        return s.now - memory.disks_told_since < LIFETIME_SECONDS_MAX + settings.restart_wait_seconds

    def hint(self, s: Situation) -> str:
        """For a person, when the run halts for want of weights: what disks could do about it."""
        if not self.known(s):
            return ""
        highest, found, _ = self._possible(s)
        if not found:
            return f"; {self._in_sight(s, None, highest)}"
        wait = f"{s.settings.restart_wait_seconds:.0f} s after it halted"
        return f"; or from disks at step {found[0].version.step}, {wait}"

    def _reason(self, best: CommonVersion, highest: int) -> str:
        lost = f", {highest - best.version.step} steps before the newest known" if highest > best.version.step else ""
        rebuilt = f"; nobody kept {names_of(best.missing)}" if best.missing else ""
        disks = f"resumes from the snapshots of step {best.version.step}"
        return f"no running volunteer has the latest weights: {disks}{lost}{rebuilt}"

    def _in_sight(self, s: Situation, best: CommonVersion | None, highest: int) -> str:
        """What there is, and what is missing."""
        settings, known = s.settings, self.known(s)
        if best is not None:
            lacks = f", where {names_of(best.missing)} would be rebuilt" if best.missing else ""
            return f"the disks here make step {best.version.step} possible{lacks}; step {highest} is known"
        if possible := self._possible(s)[2]:
            newest = max(one.version.step for one in possible)
            return (
                f"the disks here make step {newest} possible and step {highest} is known; "
                f"the manifest lets {settings.rollback_max} steps be lost; it goes on when newer disks come"
            )
        every = [kept.version for listed in known.values() for kept in listed]
        if not every:
            return "steps are stored on disks of peers that do not answer"
        newest_kept = max(every, key=lambda version: (version.step, version.commit))
        kept = kept_of(newest_kept, known)
        missing = set(range(settings.stage_count)) - set(kept)
        owners = sorted({peer for _, peers in kept.values() for peer in peers})
        whose = f" (that of {owners[0]})" if len(owners) == 1 else ""
        anew = "" if highest else "; if nobody else tells of that step, the run begins anew"
        return (
            f"of step {newest_kept.step} the disks here{whose} have {names_of(kept)} and not {names_of(missing)}; "
            f"it goes on when somebody comes who kept what is missing{anew}"
        )

    # -- what changes

    def listen(self, s: Situation) -> None:
        """Take down what is said of disks now."""
        if not s.settings.snapshot_every:
            return
        seen = self._seen(s)
        if seen is not self._last and seen.heard:
            self.memory.heard_of_disks(s.now, s.settings.restart_wait_seconds)
        self._last = seen

    def look(self, s: Situation) -> Outcome:
        """Wait, or halt, or found the lineage that goes on from disks; we and our view are the past then. The first
        disks that suffice wait for the others: who was switched off together comes within minutes of each other."""
        out, settings, memory, progress = Outcome(), s.settings, self.memory, self.progress
        highest, found, _ = self._possible(s)
        best = found[0] if found else None
        if doubtful := self._seen(s).doubtful:
            names = ", ".join(map(str, doubtful))
            out.note("disk", f"does not count on snapshots of {names} that no quorum known here has signed or tells of")
        if memory.stuck_since is None:
            memory.stuck_since = s.now
        if best is not None:
            memory.possible(s.now, settings.restart_wait_seconds)
        fresh = progress.base is None or progress.base.step == 0
        whole = fresh and best is not None and not best.missing and best.version.step == highest
        waited = s.now - (memory.stuck_since if best is None else memory.possible_since)
        patience = settings.lease_seconds if whole else settings.restart_wait_seconds
        if waited < patience or not s.quorate:
            sight = f"step {highest} is whole on the disks here" if whole else self._in_sight(s, best, highest)
            most = f", {patience:.0f} s at most" if best is not None and s.quorate else ""
            self.waiting = f"others who {'start at this moment' if whole else 'were there'}{most}: {sight}"
        elif best is None:
            self._forgive(s)
            self.waiting = f"{HALTED}{self._in_sight(s, best, highest)}"
            if fresh:
                progress.halted = self.waiting
                out.note("halt", self.waiting)
        else:
            told = [kept for status in progress.statuses.values() for kept in status.snapshots]
            told += s.own.snapshots_told()
            counted = {peer for _, peers in best.kept.values() for peer in peers}
            told += [kept for peer in counted for kept in self.known(s)[peer] if kept.version == best.version]
            number = number_after((kept for kept in told if sensible(kept, settings)), self.view.number)
            followed = not undone(s.order, best.version, self._seen(s).rolls)
            order = s.order.number if followed else self.view.lineage.order
            out.append(GoOnFromDisks(number, best.version, len(best.kept), self._reason(best, highest), order))
        return out

    def _forgive(self, s: Situation) -> None:
        if self.memory.forgive(s.now, s.settings.restart_wait_seconds):
            self._last = None

    def beat(self, s: Situation, asked: bool) -> tuple[bool, Outcome]:
        """Look again: time has passed, and disks may have come. True: the leader should decide anew. `asked`: somebody
        who may have the very weights was asked for them."""
        progress, memory, out = self.progress, self.memory, Outcome()
        if progress.finished or s.proposing:
            return False, out
        if progress.base is None or progress.base.step == 0:
            return bool(self.waiting and progress.begin is None), out
        if not progress.halted:
            self.waiting = ""
            if not memory.broken:
                memory.unstick()
            elif memory.stuck_since is not None:  # what it does without disks may be only said
                self.listen(s)
                if self._possible(s)[1]:
                    memory.possible(s.now, s.settings.restart_wait_seconds)
            return False, out
        memory.stuck_since = s.now if memory.stuck_since is None else memory.stuck_since
        if asked:
            return False, out
        self.listen(s)
        if self.known(s):
            out.extend(self.look(s))
        else:
            self._forgive(s)
        return False, out
