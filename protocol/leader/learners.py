"""Newcomers where nothing is missing: which stage a standby learns, and when it joins (rule 26).

A learner stands outside the view. Each Begin names it; it fetches the state of its base while the others go on, gets
every later reduced gradient with the stage's group, and is Ready when it has caught up. Then it becomes a holder in a
view between two steps: one more of its stage, or in the place of a peer that holds several. Nothing stops for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from ftnode.protocol.leader.duty import usual_for_newcomers
from ftnode.protocol.leader.goals import gives_up, going_to, next_on_the_way, set_goal, spoken
from ftnode.protocol.leader.leader_memory import LeaderMemory, Learner
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.outlook import Outlook, name_of
from ftnode.protocol.leader.progress import ViewProgress
from ftnode.protocol.leader.recruiting import offer_to
from ftnode.protocol.leader.replica_moves import ReplicaMoves, expected_steps
from ftnode.protocol.liveness.deadlines import Deadline
from ftnode.protocol.planning.changes import Choice, in_short
from ftnode.protocol.planning.goal import Limits
from ftnode.protocol.situation import ClearTimer, Outcome, Situation
from ftnode.protocol.step.routes import neighbours
from ftnode.protocol.wire.admission import GROUP_MAX, HOLDINGS_MAX
from ftnode.protocol.words.messages import Answer, Begin, Heartbeat
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.types import Peer, names_of
from ftnode.protocol.words.view import View

WORK_MAX = 20_000
"""About microseconds that a leader spends at one heartbeat on where newcomers go, and what the last one takes."""
IN_VAIN_MAX = 2
"""At least so many finished steps wait for the Ready of a learner."""


class Learners:
    """The leader's learners. They outlive its views, but whoever has not answered yet would answer to one that is over;
    another leader takes up those that the last Begin named."""

    def __init__(
        self,
        s: Situation,
        view: View,
        memory: LeaderMemory,
        progress: ViewProgress,
        losses: Losses,
        moves: ReplicaMoves,
    ) -> None:
        self.view, self.memory, self.progress, self.losses, self.moves = view, memory, progress, losses, moves
        self.learners = memory.learners
        self._noticed: dict[Peer, float] = {}
        """Who stands by, and since when."""
        self._unfit: dict[Peer, tuple[float, float]] = {}
        """Who was worth nothing anywhere, when to look again, and how long to wait after that."""
        settings = s.settings
        if memory.join is None:
            memory.join = Deadline(settings.join_seconds, settings.join_seconds_max)
        self._join = memory.join
        self._waits_since: float | None = None
        if memory.led != (self.view.lineage.id, self.view.number - 1):
            self._take_up(s.own.begin, s.now + settings.install_seconds)
        over = [
            (stage, peer)
            for (stage, peer), learner in self.learners.items()
            if peer in self.view.holders[stage] or stage in self.view.omitted or not learner.accepted
        ]
        for stage, peer in over:
            del self.learners[stage, peer]

    def _take_up(self, begun: Begin | None, until: float) -> None:
        """Somebody else led the view before."""
        self.learners.clear()
        if begun is not None:
            self.learners.update({learnt: Learner(None, until, True) for learnt in begun.learners})

    def named(self) -> tuple[tuple[int, Peer], ...]:
        """For the next Begin."""
        return tuple(sorted(learnt for learnt, learner in self.learners.items() if learner.accepted))

    def ready(self) -> tuple[tuple[int, Peer], ...]:
        """Those that have all that a holder has, at the end of the step in progress, and have not given up since."""
        done = ((stage, peer) for stage, peer in self.named() if self._has_reduced(stage, peer))
        return tuple(learnt for learnt in done if self.learners[learnt].applied >= 0)

    def _has_reduced(self, stage: int, peer: Peer) -> bool:
        ready = self.progress.ready.get(peer)
        return ready is not None and any(result.stage == stage for result in ready.results)

    def awaited(self, s: Situation, base: int) -> bool:
        """Somebody has the weights of the step's base, so that its Ready may come any moment. Whoever is no member says
        Ready when it has all that it learns."""
        return bool(self._awaited(s, base))

    def _awaited(self, s: Situation, base: int) -> list[tuple[int, Peer]]:
        """In a step that is skipped there is no sum to get."""
        if self.progress.begin is not None and self.progress.begin.skip:
            return []
        fetching = {peer for _, peer in self.named()} - s.members
        fetching &= {peer for (_, peer), learner in self.learners.items() if learner.applied < base}
        named = [learnt for learnt in self.named() if learnt[1] not in fetching and not self._has_reduced(*learnt)]
        return [learnt for learnt in named if self.learners[learnt].applied >= base]

    def wait(self, s: Situation, out: Outcome, base: int) -> bool:
        """All members are Ready: does the step wait for a learner? It has `join_seconds`, or what others needed."""
        if not self.awaited(s, base):
            if self._waits_since is not None:
                self._join.observe(s.now - self._waits_since)
                self.waits_no_longer(out)
            return False
        if self._waits_since is None:
            self._waits_since = s.now
            out.set_timer("join", s.now + self._join.seconds)
        return True

    def late(self, s: Situation, out: Outcome, base: int) -> None:
        """The time is up; the next one is waited for longer. Who was waited for twice, and for as long as a step ever
        waits, is asked again later."""
        self._join.passed()
        waited = s.now - self._waits_since if self._waits_since is not None else 0.0
        self.waits_no_longer(out)
        lost = 0.0
        for stage, peer in self._awaited(s, base):
            learner = self.learners[stage, peer]
            learner.in_vain += 1
            learner.waited_seconds += waited
            if learner.in_vain >= IN_VAIN_MAX and learner.waited_seconds >= s.settings.join_seconds_max:
                del self.learners[stage, peer]
                self.memory.failed(peer, stage, s.now)
                lost = max(lost, learner.waited_seconds)
                out.note("learner", f"{peer} does not learn stage {stage}: it is never ready", peer=peer.id)
        if lost:
            self.memory.failed_newcomers(s.now, lost)

    def waits_no_longer(self, out: Outcome) -> None:
        self._waits_since = None
        out.append(ClearTimer("join"))

    def on_heartbeat(self, sender: Peer, heartbeat: Heartbeat) -> None:
        for (stage, peer), learner in self.learners.items():
            if peer == sender:
                learner.applied = max((r.applied for r in heartbeat.stages if r.stage == stage), default=-1)

    def given_up(self, joins: Iterable[tuple[int, Peer]]) -> list[tuple[int, Peer]]:
        """(stage, holder) that those who join take the place of."""
        givers = ((stage, self.learners[stage, peer].giver) for stage, peer in joins)
        return [(stage, giver) for stage, giver in givers if giver is not None and giver in self.view.holders[stage]]

    # -- who learns what

    def beat(self, s: Situation) -> Outcome:
        """Forget those that are gone or too slow; ask standbys: a heartbeat after the last one has come, so that those
        who come together are asked together, and not later than a lease after the first."""
        out = self._forget_lost(s)
        begin = self.progress.begin
        busy = bool(self.losses) or not all(self.view.holders) or s.proposing
        if begin is None or not begin.training or busy or self._full(s):
            return out
        standbys = [presence for presence in s.presences.values() if self.stands_by(s, presence)]
        self._noticed = {presence.peer: self._noticed.get(presence.peer, s.now) for presence in standbys}
        self._unfit = {peer: again for peer, again in self._unfit.items() if peer in self._noticed}
        since = self._noticed.values()
        if s.now < self.memory.asks_after:
            standbys = []
        new = s.only_beside_others(presence.peer for presence in standbys)
        idle = [presence for presence in standbys if presence.peer not in new]
        asked = [presence for presence in standbys if s.now >= self._unfit.get(presence.peer, (s.now,))[0]]
        goal = going_to(self.memory, self._expected(), idle)
        if goal is not None:
            asked = [presence for presence in asked if name_of(presence.peer) not in goal.names]
        if not asked:
            self._rearrange(s, out, idle)
        elif s.now - max(since) >= s.settings.heartbeat_seconds or s.now - min(since) >= s.settings.lease_seconds:
            self.memory.goal = None
            self._ask_standbys(s, out, asked)
        return out

    def _ask_standbys(self, s: Situation, out: Outcome, asked: Iterable[Presence]) -> None:
        """Those who are worth something somewhere: see changes.py. As many at once as the leader has time for."""
        asked = sorted(asked, key=lambda presence: presence.peer)
        if len(s.members) + len(self.learners) >= GROUP_MAX:
            return
        outlook = Outlook(s, self.memory, self._expected(), self._could(s, asked))
        steps = expected_steps(s, self.memory)
        new = s.only_beside_others(presence.peer for presence in asked)
        for presence in asked:
            learnt = {stage for stage, _ in self.learners}
            found = outlook.of(self._expected()).best_place(
                name_of(presence.peer), learnt, steps, presence.peer in new
            )  # fmt: skip
            if found is None:
                self._look_again(s, presence.peer)
            elif not {*found.place.stages}.isdisjoint(self._crowded(s, presence.peer)):
                continue  # others of its crowd were asked just now
            else:
                self._unfit.clear()
                self._ask_for(s, out, presence, found)
            if outlook.costs.work > WORK_MAX or len(s.members) + len(self.learners) >= GROUP_MAX or self._full(s):
                return

    def _look_again(self, s: Situation, peer: Peer) -> None:
        """After a lease, then after twice as long each time, at most as long as between moves. What was measured may be
        of a moment in which all were slow."""
        wait = self._unfit.get(peer, (0.0, s.settings.lease_seconds))[1]
        self._unfit[peer] = s.now + wait, min(2 * wait, s.settings.move_seconds)

    def _could(self, s: Situation, idle: Iterable[Presence]) -> list[Presence]:
        """With what they may not learn now."""
        hurried = self.memory.notices.keys()  # their lines are for what only they hold, in its order
        theirs = [stage for stage, group in enumerate(self.view.holders) if hurried >= {*group}]
        return [
            replace(presence, refuses=(*presence.refuses, *theirs, *self._crowded(s, presence.peer)))
            for presence in idle
        ]

    def _full(self, s: Situation) -> bool:
        """A view could have more places than may be (rule 2), when all members vote, lost stages have a holder, and one
        more peer learns every stage. Whoever takes the place of a leaver makes no more of them."""
        voters = len(s.members) + len(self.learners)
        places = sum(max(1, len(group)) for group in self.view.holders) + len(self.learners) + voters
        return places + 2 * len(self.view.holders) > HOLDINGS_MAX

    def _crowded(self, s: Situation, peer: Peer) -> list[int]:
        """Stages in which its crowd would have the majority of a group that has others (rule 44)."""
        if not any(s.crowds):
            return []
        return [stage for stage, group in enumerate(self._expected()) if s.crowds.majority(peer, group)]

    def pupils(self) -> set[Peer]:
        """All that learn something."""
        return self.memory.pupils()

    def room(self, s: Situation, presence: Presence) -> int:
        """How many stages this peer may be asked to learn now. Whoever has not answered yet is asked nothing else."""
        peer = presence.peer
        learns = [learner for (_, pupil), learner in self.learners.items() if pupil == peer]
        if not self._may_be_asked(s, peer) or not all(learner.accepted for learner in learns):
            return 0
        return max(0, presence.capacity - len(learns))

    def _may_be_asked(self, s: Situation, peer: Peer) -> bool:
        """It is heard, and did not fail of late."""
        again, network = self.memory.asks_again_at(peer, s.settings.lease_seconds), s.crowds.networks.get(peer, "")
        again = max(again, self.memory.crowd_asked_at(network, s.settings.lease_seconds))
        return s.hears(peer) and s.now >= again

    def stands_by(self, s: Situation, presence: Presence) -> bool:
        """Holds and learns nothing, and may learn something. A leader may be a member without a stage."""
        holds = any(m.id == presence.peer.id and self.view.stages_of(m) for m in s.members)
        free = not holds and presence.peer not in self.memory.pupils() and self.room(s, presence) > 0
        return free and not self._too_slow(s, presence)

    def _too_slow(self, s: Situation, presence: Presence) -> bool:
        """By its own word, a microbatch takes longer there than a newcomer may owe the next move."""
        newest = s.history.newest_commits(1)
        if presence.tokens_per_second <= 0 or not newest:
            return False
        seconds = newest[-1].tokens / s.settings.microbatches / presence.tokens_per_second
        return seconds > usual_for_newcomers(s, self.memory)

    def hopeful(self, s: Situation) -> bool:
        """Somebody who is no member learns something, or could."""
        return bool(self.learners) or any(self.stands_by(s, presence) for presence in s.presences.values())

    def _forget_lost(self, s: Situation) -> Outcome:
        out = Outcome()
        for (stage, peer), learner in list(self.learners.items()):
            # Whom another leader asked, we may not have heard yet.
            gone = peer != s.me and s.liveness.silent(peer, s.now)
            if gone or s.now > learner.until:
                del self.learners[stage, peer]
                self.memory.failed(peer, stage, s.now)
                self.memory.crowd_failed(s.crowds.networks.get(peer, ""), s.now, s.settings.lease_seconds)
                why = "it is gone" if gone else "it takes too long"
                out.note("learner", f"{peer} does not learn stage {stage}: {why}", peer=peer.id)
        return out

    def ask(self, s: Situation, out: Outcome, presence: Presence, givers: Mapping[int, Peer | None], why: str) -> None:
        """Offer it stages to learn, in one offer; `givers`: stage → whose place it takes."""
        view, begin, near, stages = self.view, self.progress.begin, set[Peer](), tuple(sorted(givers))
        assert begin is not None
        for stage, giver in givers.items():
            until = s.now + s.settings.offer_seconds
            self.learners[stage, presence.peer] = Learner(giver, until)
            near |= {*neighbours(view, stage, s.settings.swap), *view.holders[stage]}
        out.note("learner", f"asks {presence.peer} to learn {names_of(stages)}: {why}", peer=presence.peer.id)
        offer_to(out, view, presence, stages, begin.base, near - {presence.peer}, True)

    def forget(self, peer: Peer) -> None:
        """It leaves itself."""
        for learnt in [learnt for learnt in self.learners if learnt[1] == peer]:
            del self.learners[learnt]

    def _expected(self) -> list[list[Peer]]:
        """Who holds what when all that is being learnt has been."""
        groups = [self.losses.staying(stage) for stage in range(len(self.view.holders))]
        for (stage, peer), learner in self.learners.items():
            groups[stage] = [other for other in groups[stage] if other != learner.giver] + [peer]
        return groups

    def _ask_for(self, s: Situation, out: Outcome, presence: Presence, choice: Choice) -> None:
        """`choice`: what _place found for it."""
        giver = next((one for one in s.members if name_of(one) == choice.place.giver), None)
        why = "as one more holder"
        if giver is not None:
            whole = {*choice.place.stages} >= {*self.view.stages_of(giver)}
            why = f"{giver} is free then" if whole else f"{giver} holds {len(self.view.stages_of(giver))} stages"
        self.memory.plan = f"{presence.peer} for {in_short(choice.place)}: {choice.reason}"
        self.ask(s, out, presence, dict.fromkeys(choice.place.stages, giver), f"{why}; {choice.reason}")

    def _rearrange(self, s: Situation, out: Outcome, idle: Iterable[Presence]) -> None:
        """Nobody who stands by has a place: somebody moves, or a member with room takes a part of what another one
        holds, where that makes a step clearly shorter; or, in a run with checks, holds beside another one what that one
        holds alone; or all go to another layout, one change after the other. Not soon after the last change.

        `idle`: who stands by, and may work without others beside it.
        """
        moves = self.moves
        if s.now - moves.since < s.settings.move_seconds or self.learners or self.memory.leavers:
            return
        moves.since = s.now
        if self.memory.goal is None and self._single_change(s, out):
            return
        new = s.only_beside_others(s.members)
        outlook = Outlook(s, self.memory, self._expected(), self._could(s, idle), careful=True)
        limits = Limits(
            {name_of(peer) for peer in s.members if peer in new or not self._may_be_asked(s, peer)},
            name_of(s.me),
            {name_of(peer): self._crowded(s, peer) for peer in outlook.peers.values()},
        )
        if self.memory.goal is None:
            set_goal(s, out, self.memory, outlook, limits)
        found, goal = next_on_the_way(self.memory, outlook, limits), self.memory.goal
        if found is None or goal is None:
            return
        if gives_up(outlook, found):
            self.moves.leave_to_others(out, outlook, found)
        else:
            self._ask_for(s, out, s.presences[outlook.peers[found.place.name]], found)
        self.memory.plan += f"; on the way to {spoken(outlook, goal)}"

    def _single_change(self, s: Situation, out: Outcome) -> bool:
        """Whether there was one that is worth it."""
        moved = self.moves.beat(s)
        out.extend(moved)
        roomy = [presence for presence in s.presences.values() if presence.peer in s.members and self.room(s, presence)]
        if moved or not roomy or len(s.members) == 1:
            return bool(moved)
        outlook = Outlook(s, self.memory, self._expected())
        names = [name_of(presence.peer) for presence in roomy]
        found = outlook.changes.best_wider(names)
        if found is None and s.settings.checks:
            found = outlook.changes.best_second(names)
        if found is not None:
            self._ask_for(s, out, s.presences[outlook.peers[found.place.name]], found)
        return found is not None

    def on_answer(self, s: Situation, sender: Peer, answer: Answer) -> Outcome:
        """It may have room for some of what it was offered, and decline later what it could not learn."""
        out = Outcome()
        theirs = {stage: item for (stage, peer), item in self.learners.items() if peer == sender}
        open_ones = {stage for stage, item in theirs.items() if not item.accepted} if answer.accepted else answer.stages
        asked = {stage: item for stage, item in theirs.items() if stage in open_ones}
        if not answer.stages or not asked.keys() >= {*answer.stages}:
            return out
        count = sum(peer == sender for _, peer in self.learners)
        for stage, learner in asked.items():
            if answer.accepted and stage in answer.stages:
                learner.accepted, learner.until = True, s.now + count * s.settings.install_seconds
                continue
            del self.learners[stage, sender]
            if not answer.accepted:
                self.memory.failed(sender, stage, s.now)
        verb = "learns" if answer.accepted else "does not learn"
        out.note("learner", f"{sender} {verb} {names_of(answer.stages)}: {answer.reason}", peer=sender.id)
        return out
