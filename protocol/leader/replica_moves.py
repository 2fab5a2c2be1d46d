"""Replicas that another stage needs more: as its newcomer when it is lost and nobody stands by, or as one more holder
where a step gets shorter by that.

The second has to pay for itself, since a move costs a fetch, and a stage that a peer leaves is slower afterwards
(Petals, Borzunov et al. 2023, section 3.2).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.leader.outlook import Outlook, name_of
from ftnode.protocol.planning.changes import Choice, in_short
from ftnode.protocol.recovery.candidate_order import fits
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.types import Peer, names_of
from ftnode.protocol.words.view import View


class ReplicaMoves:
    """The leader's moves, made anew with each of its views."""

    def __init__(self, view: View, memory: LeaderMemory, losses: Losses, now: float) -> None:
        self.view, self.memory, self.losses = view, memory, losses
        self.since = now
        """When somebody was moved last, or the view began."""

    def _movable(self, s: Situation, taken: Collection[Peer] = ()) -> dict[Peer, tuple[int, ...]]:
        """Who holds only what others hold as well, who are not new, and that. `taken`: may move away already."""
        shared = self._shared(s, taken)
        return {peer: stages for peer, stages in shared.items() if self.view.stages_of(peer) == stages}

    def _shared(self, s: Situation, taken: Collection[Peer] = ()) -> dict[Peer, tuple[int, ...]]:
        """What each holds that others hold as well, who are not new."""
        staying = [[peer for peer in self.losses.staying(stage) if peer not in taken] for stage in range(self._count)]
        shared, new = dict[Peer, list[int]](), s.new(s.members)
        for stage, group in enumerate(staying):
            for peer in group:
                if {*group} - new - {peer} and peer in s.presences and peer not in self.memory.leavers:
                    shared.setdefault(peer, []).append(stage)
        return {peer: tuple(stages) for peer, stages in shared.items()}

    @property
    def _count(self) -> int:
        return len(self.view.holders)

    def _outlook(self, s: Situation, taken: Collection[Peer] = ()) -> Outlook:
        staying = ([p for p in self.losses.staying(stage) if p not in taken] for stage in range(self._count))
        return Outlook(s, self.memory, [*staying])

    def spare(self, s: Situation, stage: int, tried: Collection[Peer], taken: Collection[Peer] = ()) -> Peer | None:
        """Whom a lost stage can have, who gives up a replica for it: the one without which a step takes least. `taken`:
        asked for other stages."""
        able = {peer: stages for peer, stages in self._shared(s, taken).items() if peer not in tried}
        found = self._filler(s, stage, able, taken)
        return None if found is None else found[0]

    def _filler(
        self, s: Situation, stage: int, shared: Mapping[Peer, tuple[int, ...]], taken: Collection[Peer] = ()
    ) -> tuple[Peer, int] | None:
        """Who takes the stage, and what it gives up for that."""
        able = {name_of(peer): stages for peer, stages in shared.items() if fits(s.presences[peer], stage)}
        outlook = self._outlook(s, taken) if able else None
        found = None if outlook is None else outlook.changes.best_filler(able, stage)
        return None if outlook is None or found is None else (outlook.peers[found[0]], found[1])

    def settle(self, s: Situation, fills: Mapping[int, Peer]) -> None:
        """Who takes a lost stage gives up one that others hold, where it has no room for one more."""
        for stage, peer in fills.items():
            presence = s.presences.get(peer)
            if presence is None or presence.capacity:
                continue
            shared = self._shared(s).get(peer)
            found = self._filler(s, stage, {peer: shared}) if shared else None
            if found is not None:
                self.give_up(peer, found[1:], f"moves to stage {stage}")

    def give_up(self, peer: Peer, stages: tuple[int, ...], reason: str) -> None:
        """All of these."""
        for stage in stages:
            self.losses.vacate(stage, peer, reason)

    def beat(self, s: Situation) -> Outcome:
        """When nothing else happens and nobody stands by: is somebody worth more elsewhere?"""
        out = Outcome()
        # The leader stays a member without a stage, and nobody would ask it to learn one. Who is new works where it is.
        stays = {s.me, *s.only_beside_others(s.members)}
        movable = {name_of(peer): stages for peer, stages in self._movable(s).items() if peer not in stays}
        outlook = self._outlook(s) if movable or s.settings.checks else None
        if outlook is None:
            return out
        found = outlook.changes.best_move(movable, expected_steps(s, self.memory)) if movable else None
        if found is not None:
            peer = outlook.peers[found.place.name]
            held = movable[found.place.name]
            self.memory.plan = f"{peer} is to leave {names_of(held)} for {in_short(found.place)}: {found.reason}"
            out.note("move", self.memory.plan)
            self.give_up(peer, held, f"it is worth more elsewhere: {found.reason}")
        elif s.settings.checks:
            self._release(s, out, outlook)
        return out

    def _release(self, s: Situation, out: Outcome, outlook: Outlook) -> None:
        """Who was new learnt what somebody holds who has other stages as well (rule 45), and may have it alone now."""
        shared = {name_of(peer): stages for peer, stages in self._shared(s).items()}
        found = outlook.changes.best_release(shared)
        if found is not None:
            self.leave_to_others(out, outlook, found)

    def leave_to_others(self, out: Outcome, outlook: Outlook, found: Choice) -> None:
        """The giver of this place gives up the stages, which others hold."""
        if found.place.giver is None:
            return
        peer, stages = outlook.peers[found.place.giver], found.place.stages
        self.memory.plan = f"{peer} is to leave {names_of(stages)} to others: {found.reason}"
        out.note("move", self.memory.plan)
        self.give_up(peer, stages, f"others hold it as well: {found.reason}")


def expected_steps(s: Situation, memory: LeaderMemory) -> float:
    """Until the next loss changes everything, or the run ends: what a change must have paid for itself in."""
    seconds = 1 / (memory.loss_rate * max(1, len(s.members)))
    usual, left = memory.usual_step or s.settings.lease_seconds, max(0, s.settings.steps - s.highest_step)
    return min(seconds / usual, float(left))
