"""What the leader gathers for the next view, and the proposal of it: who comes in, who may vote, what is left out, and
why (rules 10, 11, 13 and 26)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.learners import Learners
from ftnode.protocol.leader.leavers import HANDED_OVER, Leavers
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.recruiting import Recruiting
from ftnode.protocol.leader.replica_moves import ReplicaMoves
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.views.ballot import Balloting
from ftnode.protocol.views.succession import next_view
from ftnode.protocol.words.messages import Ready
from ftnode.protocol.words.types import Peer, spoken_stage
from ftnode.protocol.words.view import View


class NextView:
    """That after `view`. What was gathered stays until a view is chosen, also when another one has to be proposed."""

    def __init__(
        self,
        view: View,
        memory: LeaderMemory,
        losses: Losses,
        moves: ReplicaMoves,
        learners: Learners,
        leavers: Leavers,
        recruiting: Recruiting,
        balloting: Balloting,
    ) -> None:
        self.view, self.memory, self.losses, self.moves = view, memory, losses, moves
        self.learners, self.leavers, self.recruiting, self.balloting = learners, leavers, recruiting, balloting
        self._were_ready: set[Peer] = set()
        """Members that took part in a whole step."""
        self._settling = False
        """It is to commit the step that all are Ready for."""
        self._joins: Sequence[tuple[int, Peer]] = ()
        """(stage, learner) that it takes in."""
        self._leaves_out: Sequence[int] = ()
        """Stages that routes leave out from it on."""

    def were_ready(self, peers: Collection[Peer]) -> None:
        """All members were at once, and so these may vote."""
        self._were_ready.update(peers)

    def settle(self, s: Situation, out: Outcome, ready: Mapping[Peer, Ready]) -> bool:
        """Members that were Ready become voters, and learners that are Ready become holders, in a view of its own while
        nothing is in flight (rules 13, 26).

        The step is committed by the Begin of that view (rule 18 ii). False when there is nobody for whom to do that.
        """
        if self._settling:
            return True
        joins = self._admitted(s, self.learners.ready())
        settled, silenced = self._votes(s, joins)
        going, fills = self.leavers.free(joins), self.recruiting.fills  # of stages that routes leave out
        if not (settled or silenced or joins or going or fills) or self.balloting.proposing or self.losses:
            return False
        self._settling, self._joins, self.memory.settled = True, joins, dict(ready)
        reasons = [f"{peer} has learnt {spoken_stage(stage)}" for stage, peer in joins] + self._reasons(fills)
        for stage, giver in self._handed_over(joins):
            self.losses.vacate(stage, giver, HANDED_OVER)
            reasons.append(f"{giver} hands {spoken_stage(stage)} over")
        if settled:
            reasons.append(f"{', '.join(map(str, settled))} took part in a whole step and may vote from now on")
        if silenced:
            names = ", ".join(map(str, silenced))
            reasons.append(f"{names} have no vote for now: they would be a quorum by themselves")
        self._take_in(s, fills)
        self._propose(s, out, fills, reasons)
        return True

    def _votes(self, s: Situation, joins: Collection[tuple[int, Peer]]) -> tuple[list[Peer], list[Peer]]:
        """Members that would get a vote in a view now, and those that would lose theirs. What follows from the same
        crowds as last time has followed already."""
        members, before = sorted(s.members), {*self.view.voters}
        new = s.new({*members, *(peer for _, peer in joins)})
        if not any(s.crowds):
            return sorted({*members} - before - new), []
        then = {*next_view(self.view, s.me, (), (), {}, members, "", joins, (), s.crowds, new).voters}
        weighed = s.members - new, tuple(s.crowds.kinds(members))
        if not then >= {*members} and weighed == self.memory.weighed:
            return [], []
        self.memory.weighed = weighed
        return sorted((then - before) & s.members), sorted(before - then)

    def _admitted(self, s: Situation, joins: tuple[tuple[int, Peer], ...]) -> tuple[tuple[int, Peer], ...]:
        """Those that may join now. Who will be alone with a stage has a vote at once (rule 26), so that it waits for a
        view in which its crowd may have one more."""
        new = s.new({*s.members, *(peer for _, peer in joins)})
        while joins and any(s.crowds):
            leader, left = self.leavers.successor(s.me, joins), self._handed_over(joins)
            view = next_view(self.view, leader, (), left, {}, sorted(s.members), "", joins, (), s.crowds, new)
            alone = [p for stage, p in joins if view.epochs[stage] == view.number and p not in view.voters]
            if not alone:
                return joins
            joins = tuple(learnt for learnt in joins if learnt[1] != alone[-1])
        return joins

    def _handed_over(self, joins: Collection[tuple[int, Peer]]) -> list[tuple[int, Peer]]:
        """(stage, holder) of those whose place is taken, and of those who leave."""
        leaves = [(stage, peer) for peer in self.leavers.free(joins) for stage in self.view.stages_of(peer)]
        return [*dict.fromkeys((*self.learners.given_up(joins), *leaves))]

    def propose(self, s: Situation, out: Outcome, fills: Mapping[int, Peer]) -> None:
        """Settle all losses, with those who take the stages of the lost."""
        self._take_in(s, fills)
        self._propose(s, out, fills, self._reasons(fills))

    def leave_out(
        self, s: Situation, out: Outcome, fills: Mapping[int, Peer], stages: Sequence[int], reason: str
    ) -> None:
        """Go on without these, which nobody holds."""
        self._leaves_out = stages
        out.note("omit", reason, stages=", ".join(map(str, stages)))
        self._propose(s, out, fills, [reason])

    def beat(self, s: Situation) -> Outcome:
        """Say again what is proposed; a ballot that takes too long is followed by another one."""
        out = Outcome()
        if not self.balloting.proposing:
            return out
        if s.now - self.balloting.since < s.settings.ballot_seconds:
            return out.extended(self.balloting.resend())
        self._settling = False
        fills = self.recruiting.fills
        self._propose(s, out, fills, self._reasons(fills) or ["another try"])
        return out

    def _take_in(self, s: Situation, fills: Mapping[int, Peer]) -> None:
        self.moves.settle(s, fills)
        for peer in fills.values():
            self.learners.forget(peer)

    def _reasons(self, fills: Mapping[int, Peer]) -> list[str]:
        reasons = [f"{peer} is gone ({why})" for peer, why in self.losses.gone.items()]
        reasons += [f"{peer} gave up stage {stage} ({why})" for (stage, peer), why in self.losses.vacated.items()]
        reasons += [f"{peer} takes {spoken_stage(stage)}" for stage, peer in sorted(fills.items())]
        return reasons

    def _propose(self, s: Situation, out: Outcome, fills: Mapping[int, Peer], reasons: Sequence[str]) -> None:
        losses, joins = self.losses, self._joins
        voting = {peer for peer in self._were_ready if peer not in losses.gone}
        leader, reason = self.leavers.successor(s.me, joins), "; ".join(reasons)[:2000]
        unproven = s.new({*voting, *(peer for _, peer in joins)})
        view = next_view(
            self.view, leader, losses.gone, losses.vacated, fills, voting, reason, joins, self._leaves_out, s.crowds,
            unproven,
        )  # fmt: skip
        out.extend(self.balloting.propose(view, s.now))
