"""Those who leave and hand over: others learn what only they hold, then a view between two steps goes on without them.

A standby learns it, else a member with room for one more stage, else a replica that its stage can spare. When there is
nobody, the peer goes without, and what it held is rebuilt by whoever comes next.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ftnode.protocol.effects import Search
from ftnode.protocol.records import Presence
from ftnode.protocol.types import Peer
from ftnode.protocol.vacancy import suitable

if TYPE_CHECKING:
    from ftnode.protocol.leader import Leader

PATIENCE_LEASES = 2
"""For so long nobody has learnt any of what it holds, nor could be asked to: there is nobody."""


class Leavers:
    """The leader's list of them in one view; those who leave say so at every heartbeat."""

    def __init__(self, leader: Leader) -> None:
        self.leader, self.core, self.view = leader, leader.core, leader.view
        self._since = leader.memory.leavers
        self._spared = leader.memory.spared
        for peer in [peer for peer in self._since if peer not in self.core.members]:
            del self._since[peer]
        for peer in [peer for peer in self._spared if peer in self.core.members and self.view.stages_of(peer)]:
            del self._spared[peer]

    def __contains__(self, peer: Peer) -> bool:
        return peer in self._since

    def announce(self, peer: Peer) -> None:
        if peer not in self._since:
            self._since[peer] = self.core.now
            self.core.note("leaver", f"{peer} leaves as soon as others have what it holds", peer=peer.id)
            self.core.emit(Search("somebody leaves"))

    def alone(self, leaver: Peer, joins: Collection[tuple[int, Peer]] = ()) -> list[int]:
        """The stages that nobody would hold without those who leave; `joins`: (stage, learner) of the next view."""
        joined = {stage for stage, _ in joins}
        held = [stage for stage in self.view.stages_of(leaver) if stage not in joined]
        return [stage for stage in held if self._since.keys() >= set(self.leader.losses.staying(stage))]

    def wanting(self) -> list[tuple[int, Peer]]:
        """(stage, who leaves it) that somebody must learn."""
        return [(stage, leaver) for leaver in sorted(self._since) for stage in self.alone(leaver)]

    def free(self, joins: Collection[tuple[int, Peer]]) -> list[Peer]:
        """Those who may go at the end of the step in progress."""
        return [leaver for leaver in sorted(self._since) if not self.alone(leaver, joins)]

    def successor(self, joins: Collection[tuple[int, Peer]]) -> Peer:
        """Who leads the next view: a leader that leaves and keeps nothing gives it to a voter that stays, or to one who
        joins."""
        me, losses = self.core.me, self.leader.losses
        if me not in self._since or any((stage, me) not in losses.vacated for stage in self.core.mine):
            return me
        holding = {peer for stage in range(len(self.view.holders)) for peer in losses.staying(stage)}
        stay = [peer for peer in self.view.voters if peer in holding and peer not in self._since]
        return next(iter((*stay, *(peer for _, peer in joins))), me)

    def hopeful(self) -> bool:
        """Somebody who is no member learns something, or could."""
        learning = self.leader.learning
        return bool(learning.learners) or any(learning.stands_by(p) for p in self.core.presences.values())

    def beat(self) -> None:
        """Find somebody for each stage, or let its holder go."""
        leader, core = self.leader, self.core
        wanted = {stage for stage, _ in self.wanting()}
        for peer in [peer for peer, stage in self._spared.items() if stage not in wanted]:
            del self._spared[peer]
        begin, everybody = leader.begin, self._since.keys() >= core.members and not self.hopeful()
        if everybody and core.departing.pauses and len(core.members) > 1:
            core.departing.stay("everybody leaves, and whoever leads goes last")
            return
        training = begin is not None and begin.training and not leader.losses and not core.balloting.proposing
        for leaver in sorted(self._since):
            alone, learnt = self.alone(leaver), {learner.stage for learner in leader.learning.learners.values()}
            missing = [stage for stage in alone if stage not in learnt]
            if len(missing) < len(alone):
                self._since[leaver] = core.now
            waits = core.now - self._since[leaver] > PATIENCE_LEASES * core.settings.lease_seconds
            if everybody or (not alone and begin is None):
                self._let_go(leaver, alone)
            elif training and missing and self._find(missing[0], leaver):
                continue
            elif missing and waits:
                self._let_go(leaver, alone)
            elif training and missing and self._make_room(missing[0], leaver):
                return

    def _find(self, stage: int, leaver: Peer) -> bool:
        """Whether there is somebody: a standby, whom `Learning` asks, or a member with room, asked here."""
        core, learning = self.core, self.leader.learning
        able = [p for p in core.presences.values() if p.peer not in self._since and suitable(p, stage)]
        able = [p for p in able if learning.able(p) and p.peer not in self.view.holders[stage]]
        if any(p.peer not in core.members for p in able):
            return True

        def preference(presence: Presence) -> tuple[object, ...]:
            held, name = self.view.stages_of(presence.peer), presence.peer.id
            adjacent = sum(abs(stage - other) == 1 for other in held)
            return len(held), adjacent, name

        if able:
            learning.ask(min(able, key=preference), stage, leaver, f"{leaver} leaves, and it has room")
        return bool(able)

    def _make_room(self, stage: int, leaver: Peer) -> bool:
        """Take a replica out of its group, so that it can learn the stage; one, which gets time to be found."""
        spare = self.leader.moves.spare(stage, set()) if stage not in self._spared.values() else None
        if spare is None:
            return False
        self._spared[spare], self._since[leaver] = stage, self.core.now
        self.leader.losses.vacate(
            self.view.stages_of(spare)[0], spare, f"stage {stage} needs it, which {leaver} leaves"
        )
        return True

    def _let_go(self, leaver: Peer, alone: list[int]) -> None:
        listed = ", ".join(map(str, alone))
        why = f"nobody takes over stage {listed}" if alone else "others have what it holds"
        if self.core.members == {self.core.me}:
            self.core.departing.stop()
        elif leaver == self.core.me:
            self.core.holder.resigning.at_once()
        else:
            self.leader.losses.lose(leaver, f"leaves; {why}")
