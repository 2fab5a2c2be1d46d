"""Those who leave and hand over: others learn what only they hold, then a view between two steps goes on without them.

A standby learns it, else a member with room for one more stage, else a replica that its stage can spare. When there is
nobody, the peer goes without, and what it held is rebuilt by whoever comes next. Where the run keeps snapshots, all
stand at one commit when that happens, and those that go save it: the run can go on from their disks.

One that ends at a certain time has one line for all that it hands over. Its stages go one after the other, in order of
worth, as long as the next one still passes. It works on with the rest until its time is up.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.recovery.candidate_order import suitable
from ftnode.protocol.recovery.short_notice import (
    HandOver,
    Notice,
    line_beside_steps,
    state_seconds,
    what_to_hand_over,
)
from ftnode.protocol.situation import LetUsGo, Outcome, Situation
from ftnode.protocol.step.routes import neighbours
from ftnode.protocol.wire.admission import GROUP_MAX
from ftnode.protocol.words.effects import Search
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.site import apart
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

HANDED_OVER = "handed over"
"""Why somebody does not keep a stage."""
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
        self._notices = memory.notices
        self._spared = memory.spared
        self._lent = memory.lent
        self._said: dict[Peer, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        """What was last said of what those who end at a certain time hand over, and do not."""
        self.held_since: float | None = None
        """Since when no step is begun or committed in this view: those go with whom a stage goes."""
        members = view.members()
        for peer in [peer for peer in self._since if peer not in members]:
            del self._since[peer]
        for peer in [peer for peer in self._notices if peer not in self._since]:
            del self._notices[peer]
        for peer in [peer for peer in self._spared if peer in members and view.stages_of(peer)]:
            del self._spared[peer]

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._since

    def announce(
        self, s: Situation, out: Outcome, peer: Peer, seconds: float = -1.0, bytes_per_second: float = 0.0
    ) -> None:
        """It says so at each heartbeat. `seconds`: it ends then, and its line takes so much; negative: it has time."""
        if seconds >= 0:
            self._notices[peer] = Notice(s.now + seconds, bytes_per_second)
        else:
            self._notices.pop(peer, None)
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

    def wanting(self, s: Situation) -> list[tuple[int, Peer]]:
        """(stage, who leaves it) that somebody must learn, of each leaver the most valuable first."""
        return [(stage, leaver) for leaver in sorted(self._since) for stage in self._handed_over(s, leaver)]

    def _handed_over(self, s: Situation, leaver: Peer) -> list[int]:
        """All that it holds alone; of one that ends at a certain time, what is on its way and what still passes."""
        alone = self.alone(leaver)
        if leaver not in self._notices:
            return alone
        learnt = {stage for stage, _ in self.learners.learners}
        begun = [stage for stage in alone if stage in learnt]
        return [*begun, *self._in_time(s, leaver, [stage for stage in alone if stage not in learnt]).order]

    def _in_time(self, s: Situation, leaver: Peer, stages: Sequence[int]) -> HandOver:
        """Who learns a stage that it has fetched whole keeps it, also when the leaver ends before the next view. So
        nothing but an offer has to fit beside the transfers."""
        notice, begin = self._notices[leaver], self.progress.begin
        said = {peer: report.copies for peer, report in s.reports.items() if peer in s.members and peer != leaver}
        if leaver != s.me:
            said[s.me] = s.own.copies_told()
        copied = {
            copy.stage: copy.step
            for peer, copies in said.items() if peer not in self._since
            for copy in copies if self._lent.counts_of_step(peer, copy.stage, copy.step)
        }  # fmt: skip
        step = begin.base.step if begin is not None else 0
        left = notice.until - s.now - s.settings.heartbeat_seconds
        return what_to_hand_over(stages, left, self._line(s, leaver), copied, step, s.settings, _step_seconds(s))

    def _line(self, s: Situation, leaver: Peer) -> float:
        """Bytes a second that it has for what it hands over; 0.0: not known."""
        rate, stages = self._notices[leaver].bytes_per_second, len(self.view.stages_of(leaver))
        return line_beside_steps(rate, stages, _step_seconds(s), s.settings)

    def _fetched_from(self, s: Situation, leaver: Peer) -> bool:
        """Somebody fetches from it now."""
        pupils = self.learners.learners.values()
        return any(learner.giver == leaver and learner.applied < 0 for learner in pupils)

    def free(self, joins: Collection[tuple[int, Peer]]) -> list[Peer]:
        """Those who may go at the end of the step in progress."""
        return [leaver for leaver in sorted(self._since) if not self.alone(leaver, joins)]

    def successor(self, me: Peer, joins: Collection[tuple[int, Peer]]) -> Peer:
        """Who leads the next view: a leader that keeps nothing, since it leaves or somebody has taken its place, gives
        it to a voter that stays, or to one who joins."""
        losses, ours = self.losses, self.view.stages_of(me)
        if not ours or any(losses.vacated.get((stage, me)) != HANDED_OVER for stage in ours):
            return me
        holding = {peer for stage in range(len(self.view.holders)) for peer in losses.staying(stage)}
        stay = [peer for peer in self.view.voters if peer in holding and peer not in self._since]
        return next(iter((*stay, *(peer for _, peer in joins))), me)

    def beat(self, s: Situation) -> Outcome:
        """Find somebody for each stage, or let its holder go. Nobody is let go with a stage while somebody learns one
        that is left: without a holder of every stage nobody learns anything."""
        out, wanted = Outcome(), self.wanting(s)
        for peer in [peer for peer, stage in self._spared.items() if stage not in dict(wanted)]:
            del self._spared[peer]
        begin, everybody = self.progress.begin, self._since.keys() >= s.members and not self.learners.hopeful(s)
        if everybody and s.pauses:  # we stay, and the others hand over to us
            return Outcome([LetUsGo(everybody)])
        training = begin is not None and begin.training and not self.losses and not s.proposing
        if training:
            self._say_what_passes(s, out)
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
        first, and adjacent stages apart, also by their sites. Of one that ends at a certain time nothing is asked while
        somebody fetches from it, and side by side only what passes within a heartbeat, which an offer takes as well."""
        asked: dict[Peer, dict[int, Peer | None]] = {}
        learners, learnt = self.learners.learners, {stage for stage, _ in self.learners.learners}
        stay = [presence for presence in s.presences.values() if presence.peer not in self._since]

        seconds: dict[Peer, float] = {}
        """That the lines of those who end at a certain time take for what is asked."""

        def may(presence: Presence, stage: int, leaver: Peer) -> bool:
            if leaver in self._notices and presence.peer not in s.members and presence.peer in self.learners.pupils():
                return False  # it joins with all that it learns, and so with nothing before it has all
            room = self.learners.room(s, presence) - len(asked.get(presence.peer, ()))
            return room > 0 and suitable(presence, stage) and presence.peer not in self.view.holders[stage]

        def preference(presence: Presence, stage: int) -> tuple[object, ...]:
            peer = presence.peer
            beside = {*neighbours(self.view, stage, s.settings.swap), *self.losses.staying(stage)} - self._since.keys()
            near = not apart(presence.site, [s.site(other) for other in beside if other != peer])
            held = {*self.view.stages_of(peer), *asked.get(peer, ()), *(each for each, p in learners if p == peer)}
            adjacent = sum(abs(stage - other) == 1 for other in held)
            return len(held), peer in s.members, adjacent, near, peer.id

        missing = [(stage, leaver) for stage, leaver in wanted if stage not in learnt]
        for stage, leaver in missing[: max(0, GROUP_MAX - len(s.members) - len(learners))]:
            able = [presence for presence in stay if may(presence, stage, leaver)]
            if able and (leaver not in self._notices or self._takes_turn(s, stage, leaver, seconds)):
                chosen = min(able, key=lambda presence: preference(presence, stage))
                asked.setdefault(chosen.peer, {})[stage] = leaver
        for peer, givers in asked.items():
            names = ", ".join(sorted({str(leaver) for leaver in givers.values()}))
            self.learners.ask(s, out, s.presences[peer], givers, f"it has room for what goes with {names}")

    def _say_what_passes(self, s: Situation, out: Outcome) -> None:
        """When it has changed what those who end at a certain time can still hand over, and nobody fetches from them:
        what is on its way takes time, too."""
        learnt = {stage for stage, _ in self.learners.learners}
        for leaver in sorted(self._notices.keys() & self._since.keys()):
            found = self._in_time(s, leaver, [stage for stage in self.alone(leaver) if stage not in learnt])
            news = (found.order or found.left_out) and self._said.get(leaver) != found[:2]
            if news and not self._fetched_from(s, leaver):
                self._said[leaver] = found[:2]
                out.note("leaver", f"{leaver}: {found.reason}", peer=leaver.id)

    def _takes_turn(self, s: Situation, stage: int, leaver: Peer, seconds: dict[Peer, float]) -> bool:
        """Is the line of the leaver free for this stage? `seconds` is added to."""
        line = self._line(s, leaver)
        needed = seconds.get(leaver, 0.0) + state_seconds(stage, line, s.settings, _step_seconds(s))
        beside = line > 0 and needed <= s.settings.heartbeat_seconds
        if self._fetched_from(s, leaver) or (leaver in seconds and not beside):
            return False
        seconds[leaver] = needed
        return True

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


def _step_seconds(s: Situation) -> float:
    """Of the newest step; 0.0: none is known."""
    newest = s.history.newest_commits(1)
    return newest[-1].seconds if newest else 0.0
