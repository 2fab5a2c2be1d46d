"""Those who leave and hand over: others learn what only they hold, then a view between two steps goes on without them.

A standby learns it, else a member with room for one more stage, else a replica that its stage can spare. When there is
nobody, the peer goes without, and what it held is rebuilt by whoever comes next. Where the run keeps snapshots, all
stand at one commit when that happens, and those that go save it: the run can go on from their disks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.recovery.candidate_order import suitable
from ftnode.protocol.situation import LetUsGo, Outcome, Situation
from ftnode.protocol.wire.admission import GROUP_MAX
from ftnode.protocol.words.effects import Search
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

PATIENCE_LEASES = 2
"""For so long nobody has learnt any of what it holds, nor could be asked to: there is nobody."""


class Leavers:
    """The leader's list of them in one view; those who leave say so at every heartbeat."""

    def __init__(
        self,
        view: View,
        memory: LeaderMemory,
        progress: ViewProgress,
        losses: Losses,
        learners: Learners,
        moves: ReplicaMoves,
    ) -> None:
        self.view, self.progress, self.losses = view, progress, losses
        self.learners, self.moves = learners, moves
        self._since = memory.leavers
        self._spared = memory.spared
        self.held_since: float | None = None
        """Since when no step is begun or committed in this view: those go with whom a stage goes."""
        members = view.members()
        for peer in [peer for peer in self._since if peer not in members]:
            del self._since[peer]
        for peer in [peer for peer in self._spared if peer in members and view.stages_of(peer)]:
            del self._spared[peer]

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._since

    def announce(self, s: Situation, out: Outcome, peer: Peer) -> None:
        if peer not in self._since:
            self._since[peer] = s.now
            self.learners.forget(peer)
            out.note("leaver", f"{peer} leaves as soon as others have what it holds", peer=peer.id)
            out.append(Search("somebody leaves"))

    def alone(self, leaver: Peer, joins: Collection[tuple[int, Peer]] = ()) -> list[int]:
        """The stages that nobody would hold without those who leave; `joins`: (stage, learner) of the next view."""
        joined = {stage for stage, _ in joins}
        held = [stage for stage in self.view.stages_of(leaver) if stage not in joined]
        return [stage for stage in held if self._since.keys() >= set(self.losses.staying(stage))]

    def wanting(self) -> list[tuple[int, Peer]]:
        """(stage, who leaves it) that somebody must learn."""
        return [(stage, leaver) for leaver in sorted(self._since) for stage in self.alone(leaver)]

    def free(self, joins: Collection[tuple[int, Peer]]) -> list[Peer]:
        """Those who may go at the end of the step in progress."""
        return [leaver for leaver in sorted(self._since) if not self.alone(leaver, joins)]

    def successor(self, me: Peer, joins: Collection[tuple[int, Peer]]) -> Peer:
        """Who leads the next view: a leader that leaves and keeps nothing gives it to a voter that stays, or to one who
        joins."""
        losses, ours = self.losses, self.view.stages_of(me)
        if me not in self._since or any((stage, me) not in losses.vacated for stage in ours):
            return me
        holding = {peer for stage in range(len(self.view.holders)) for peer in losses.staying(stage)}
        stay = [peer for peer in self.view.voters if peer in holding and peer not in self._since]
        return next(iter((*stay, *(peer for _, peer in joins))), me)

    def beat(self, s: Situation) -> Outcome:
        """Find somebody for each stage, or let its holder go. Nobody is let go with a stage while somebody learns one
        that is left: without a holder of every stage nobody learns anything."""
        out, wanted = Outcome(), self.wanting()
        for peer in [peer for peer, stage in self._spared.items() if stage not in dict(wanted)]:
            del self._spared[peer]
        begin, everybody = self.progress.begin, self._since.keys() >= s.members and not self.learners.hopeful(s)
        if everybody and s.pauses:  # we stay, and the others hand over to us
            return Outcome([LetUsGo(everybody)])
        training = begin is not None and begin.training and not self.losses and not s.proposing
        if training:
            self._seek(s, out, wanted)
        learnt = {stage for stage, _ in self.learners.learners}
        missing = [(stage, leaver) for stage, leaver in wanted if stage not in learnt]
        if len(missing) < len(wanted):
            self._since.update(dict.fromkeys(self._since, s.now))
        without = {leaver for _, leaver in missing}
        going = {}
        for leaver in sorted(self._since):
            alone = self.alone(leaver)
            waits = s.now - self._since[leaver] > PATIENCE_LEASES * s.settings.lease_seconds
            if everybody or (not alone and begin is None) or (leaver in without and waits):
                going[leaver] = alone
        if any(going.values()) and not self._stand_at_one_commit(s):
            return out
        for leaver, alone in going.items():
            self._let_go(s, out, leaver, alone)
        for stage, leaver in missing if training and not self.losses else ():
            self._make_room(s, stage, leaver)
        return out

    def _seek(self, s: Situation, out: Outcome, wanted: Sequence[tuple[int, Peer]]) -> None:
        """Ask those who stay, or stand by, to learn what nobody learns yet, side by side: who holds and learns least
        first, and adjacent stages apart."""
        asked: dict[Peer, dict[int, Peer | None]] = {}
        learners, learnt = self.learners.learners, {stage for stage, _ in self.learners.learners}
        stay = [presence for presence in s.presences.values() if presence.peer not in self._since]

        def may(presence: Presence, stage: int) -> bool:
            room = self.learners.room(s, presence) - len(asked.get(presence.peer, ()))
            return room > 0 and suitable(presence, stage) and presence.peer not in self.view.holders[stage]

        def preference(presence: Presence) -> tuple[object, ...]:
            peer = presence.peer
            held = {*self.view.stages_of(peer), *asked.get(peer, ()), *(each for each, p in learners if p == peer)}
            adjacent = sum(abs(stage - other) == 1 for other in held)
            return len(held), peer in s.members, adjacent, peer.id

        missing = [(stage, leaver) for stage, leaver in wanted if stage not in learnt]
        for stage, leaver in missing[: max(0, GROUP_MAX - len(s.members) - len(learners))]:
            able = [presence for presence in stay if may(presence, stage)]
            if able:
                asked.setdefault(min(able, key=preference).peer, {})[stage] = leaver
        for peer, givers in asked.items():
            names = ", ".join(sorted({str(leaver) for leaver in givers.values()}))
            self.learners.ask(s, out, s.presences[peer], givers, f"it has room for what goes with {names}")

    def _make_room(self, s: Situation, stage: int, leaver: Peer) -> None:
        """Take a replica out of its group, so that it can learn the stage; it gets time to be found."""
        spare = self.moves.spare(s, stage, set(), self._spared) if stage not in self._spared.values() else None
        if spare is not None:
            self._spared[spare], self._since[leaver] = stage, s.now
            self.moves.give_up(spare, self.view.stages_of(spare), f"stage {stage} needs it, which {leaver} leaves")

    def _stand_at_one_commit(self, s: Situation) -> bool:
        """What goes may be saved: all members have the weights of the newest commit, and no step is in progress. One
        that does not say so within a lease is not waited for."""
        begin, settings = self.progress.begin, s.settings
        if not settings.snapshot_every or begin is None or not begin.training or begin.base.step == 0:
            return True
        if self.held_since is None:
            self.held_since = s.now
            return False
        if s.now - self.held_since > settings.lease_seconds:
            return True
        heard = [s.reports[peer] for peer in s.members - {s.me} if peer in s.reports]
        heard = [report for report in heard if report.view == self.view.number]
        told = [stage.applied for report in heard for stage in report.stages]
        told += [s.own.versions[stage].step if stage in s.own.versions else -1 for stage in s.mine]
        return len(heard) == len(s.members) - 1 and all(step == begin.base.step for step in told)

    def _let_go(self, s: Situation, out: Outcome, leaver: Peer, alone: list[int]) -> None:
        listed = ", ".join(map(str, alone))
        if leaver == s.me:
            out.append(LetUsGo(everybody=False))
        else:
            why = f"nobody takes over stage {listed}" if alone else "others have what it holds"
            self.losses.lose(s, out, leaver, f"leaves; {why}")
