"""Newcomers where nothing is missing: which stage a standby learns, and when it joins (rule 26).

A learner stands outside the view. Each Begin names it; it fetches the state of its base while the others go on, gets
every later reduced gradient with the stage's group, and is Ready when it has caught up. Then it becomes a holder in a
view between two steps: one more of its stage, or in the place of a peer that holds several. Nothing stops for it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ftnode.protocol.adaptive import Deadline
from ftnode.protocol.admission import GROUP_MAX
from ftnode.protocol.memory import Learner
from ftnode.protocol.messages import Answer, Begin, Heartbeat
from ftnode.protocol.moving import slowest_of, throughputs
from ftnode.protocol.paths import neighbours
from ftnode.protocol.records import Presence
from ftnode.protocol.types import HEAD, Peer
from ftnode.protocol.vacancy import suitable

if TYPE_CHECKING:
    from ftnode.protocol.leader import Leader


class Learning:
    """The leader's learners. They outlive its views; another leader takes up those that the last Begin named."""

    def __init__(self, leader: Leader) -> None:
        self.leader, self.core, self.view = leader, leader.core, leader.view
        self.learners = leader.memory.learners
        self._noticed: float | None = None
        settings, memory = self.core.settings, leader.memory
        if memory.join is None:
            memory.join = Deadline(settings.join_seconds, settings.join_seconds_max)
        self._join = memory.join
        self._waits_since: float | None = None
        if memory.led != (self.view.lineage.id, self.view.number - 1):
            self._take_up(self.core.holder.begin)
        for peer in [peer for peer, item in self.learners.items() if peer in self.view.holders[item.stage]]:
            del self.learners[peer]

    def _take_up(self, begun: Begin | None) -> None:
        """Somebody else led the view before."""
        self.learners.clear()
        until = self.core.now + self.core.settings.install_seconds
        if begun is not None:
            self.learners.update({peer: Learner(stage, None, until, True) for stage, peer in begun.learners})

    def named(self) -> tuple[tuple[int, Peer], ...]:
        """For the next Begin."""
        return tuple(sorted((learner.stage, peer) for peer, learner in self.learners.items() if learner.accepted))

    def ready(self) -> tuple[tuple[int, Peer], ...]:
        """Those that have all that a holder has, at the end of the step in progress, and have not given up since."""
        done = ((stage, peer) for stage, peer in self.named() if self._has_reduced(stage, peer))
        return tuple((stage, peer) for stage, peer in done if self.learners[peer].applied >= 0)

    def _has_reduced(self, stage: int, peer: Peer) -> bool:
        ready = self.leader.ready.get(peer)
        return ready is not None and any(result.stage == stage for result in ready.results)

    def awaited(self, base: int) -> bool:
        """Somebody has the weights of the step's base, so that its Ready may come any moment."""
        named = [peer for stage, peer in self.named() if not self._has_reduced(stage, peer)]
        return any(self.learners[peer].applied >= base for peer in named)

    def wait(self, base: int) -> bool:
        """All members are Ready: does the step wait for a learner? It has `join_seconds`, or what others needed."""
        core = self.core
        if not self.awaited(base):
            if self._waits_since is not None:
                self._join.observe(core.now - self._waits_since)
                self.waits_no_longer()
            return False
        if self._waits_since is None:
            self._waits_since = core.now
            core.timers.set("join", core.now + self._join.seconds)
        return True

    def late(self) -> None:
        """The time is up; the next one is waited for longer."""
        self._join.passed()
        self.waits_no_longer()

    def waits_no_longer(self) -> None:
        self._waits_since = None
        self.core.timers.clear("join")

    def on_heartbeat(self, sender: Peer, heartbeat: Heartbeat) -> None:
        learner = self.learners.get(sender)
        if learner is not None:
            learner.applied = max((r.applied for r in heartbeat.stages if r.stage == learner.stage), default=-1)

    def given_up(self, joins: Iterable[tuple[int, Peer]]) -> list[tuple[int, Peer]]:
        """(stage, holder) that those who join take the place of."""
        givers = ((stage, self.learners[peer].giver) for stage, peer in joins)
        return [(stage, giver) for stage, giver in givers if giver is not None and giver in self.view.holders[stage]]

    # -- who learns what

    def beat(self) -> None:
        """Forget those that are gone or too slow; ask standbys, those together that came within one heartbeat."""
        core, leader = self.core, self.leader
        self._forget_lost()
        begin = leader.begin
        busy = bool(leader.losses) or bool(self.view.vacancies()) or core.balloting.proposing
        if begin is None or not begin.training or busy:
            return
        standbys = [presence for presence in core.presences.values() if self.stands_by(presence)]
        if not standbys:
            self._noticed = None
            leader.moves.beat()
        elif self._noticed is None:
            self._noticed = core.now
        elif core.now - self._noticed >= core.settings.heartbeat_seconds:
            for presence in sorted(standbys, key=lambda presence: presence.peer):
                found = self._choose(presence)
                if found is not None:
                    self.ask(presence, *found)

    def able(self, presence: Presence) -> bool:
        """May this peer learn anything?"""
        core, peer = self.core, presence.peer
        known = peer not in core.liveness.refused and peer not in self.learners
        again = self.leader.memory.asks_again_at(peer, core.settings.lease_seconds)
        return known and presence.capacity > 0 and core.now >= again

    def stands_by(self, presence: Presence) -> bool:
        """Holds nothing, and may learn something. A leader may be a member without a stage."""
        holds = any(m.id == presence.peer.id and self.view.stages_of(m) for m in self.core.members)
        return self.able(presence) and not holds

    def _forget_lost(self) -> None:
        core = self.core
        for peer, learner in list(self.learners.items()):
            silent = peer in core.liveness.refused or core.liveness.silent(peer, core.now)
            gone = silent and peer != core.me  # who leads learns, too, and does not hear itself
            if gone or core.now > learner.until:
                del self.learners[peer]
                self.leader.memory.failed(peer, learner.stage, core.now)
                why = "it is gone" if gone else "it takes too long"
                core.note("learner", f"{peer} does not learn stage {learner.stage}: {why}", peer=peer.id)

    def ask(self, presence: Presence, stage: int, giver: Peer | None, why: str) -> None:
        """Offer it a stage to learn; `giver`: whose place it takes."""
        core, settings, view = self.core, self.core.settings, self.view
        self.learners[presence.peer] = Learner(stage, giver, core.now + settings.offer_seconds)
        core.liveness.heard.setdefault(presence.peer, core.now)
        core.note("learner", f"stage {stage} is offered to {presence.peer}: {why}", peer=presence.peer.id)
        near = {*neighbours(view, stage, settings.swap), *view.holders[stage]} - {presence.peer}
        assert self.leader.begin is not None
        self.leader.recruiting.send_offer(presence.peer, (stage,), self.leader.begin.base, near, True)

    def _choose(self, presence: Presence) -> tuple[int, Peer | None, str] | None:
        """What nobody else has of one that leaves; a stage of a peer that holds several; else the one that limits the
        throughput."""
        if len(self.core.members) + len(self.learners) >= GROUP_MAX:
            return None
        view, learnt = self.view, Counter(learner.stage for learner in self.learners.values())
        given = Counter(learner.giver for learner in self.learners.values() if learner.giver is not None)
        able = [stage for stage in range(len(view.holders)) if suitable(presence, stage)]
        for stage, leaver in self.leader.leavers.wanting():
            if stage in able and not learnt[stage]:
                return stage, leaver, f"{leaver} leaves"
        loads = Counter({peer: len(view.stages_of(peer)) - given[peer] for peer in self.core.members})
        for giver, load in sorted(loads.items(), key=lambda item: (-item[1], item[0])):
            mine = [stage for stage in view.stages_of(giver) if stage in able and not learnt[stage]]
            if load > 1 and mine:
                stage = self._most_crowded(view.stages_of(giver), mine)
                return stage, giver, f"{giver} holds {len(view.stages_of(giver))} stages"
        groups = {stage: len(view.holders[stage]) + learnt[stage] for stage in able}
        small = [stage for stage in able if groups[stage] < self.core.settings.replicas]
        if not small:
            return None
        rates = throughputs(dict(enumerate(view.holders)), self.core.watch.paces())
        expected = {stage: rates[stage] * groups[stage] / len(view.holders[stage]) for stage in small}
        return slowest_of(expected), None, "it limits the throughput"

    def _most_crowded(self, held: Sequence[int], mine: Sequence[int]) -> int:
        """The stage with most neighbours at the same peer, since losing adjacent stages together is the hard loss; the
        head last, which is next to both ends."""
        return max(mine, key=lambda stage: (stage != HEAD, sum(abs(stage - other) == 1 for other in held), stage))

    def on_answer(self, sender: Peer, answer: Answer) -> bool:
        """False when the answer is not a learner's."""
        learner = self.learners.get(sender)
        if learner is None or learner.accepted or answer.stages != (learner.stage,):
            return False
        if answer.accepted:
            learner.accepted, learner.until = True, self.core.now + self.core.settings.install_seconds
        else:
            del self.learners[sender]
            self.leader.memory.failed(sender, learner.stage, self.core.now)
        verb = "learns" if answer.accepted else "does not learn"
        self.core.note("learner", f"{sender} {verb} stage {learner.stage}: {answer.reason}", peer=sender.id)
        return True
