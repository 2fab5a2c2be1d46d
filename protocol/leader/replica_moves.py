"""Replicas that another stage needs more: as its newcomer when it is lost and nobody stands by, or as one more holder
where it limits the throughput.

The second is measured and has a threshold, since a move costs a fetch, and a stage that a peer leaves is slower
afterwards (Petals, Borzunov et al. 2023, section 3.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.leader.losses import Losses
from ftnode.protocol.recovery.candidate_order import fits
from ftnode.protocol.situation import Outcome, Situation
from ftnode.protocol.words.types import Peer
from ftnode.protocol.words.view import View

GAIN_MIN = 1.3
"""A move must make the slowest stage faster by this factor."""


def throughputs(groups: Mapping[int, tuple[Peer, ...]], paces: Mapping[tuple[Peer, int], float]) -> dict[int, float]:
    """Stage → microbatches per second of its holders; who has said nothing yet is as fast as the others of the stage,
    on average, and where nobody has, as those of all stages."""
    said = {
        stage: [1 / paces[peer, stage] for peer in group if (peer, stage) in paces] for stage, group in groups.items()
    }
    all_said = [rate for rates in said.values() for rate in rates]
    found = {}
    for stage, group in groups.items():
        known = said[stage] or all_said or [1.0]
        found[stage] = sum(said[stage]) + sum(known) / len(known) * (len(group) - len(said[stage]))
    return found


def slowest_of(rates: Mapping[int, float]) -> int:
    """The stage that limits the throughput."""
    return min(rates, key=lambda stage: (rates[stage], stage))


def best_move(
    groups: Mapping[int, tuple[Peer, ...]], paces: Mapping[tuple[Peer, int], float], movable: Mapping[Peer, int]
) -> tuple[Peer, int, int] | None:
    """(peer, its stage, the stage that needs it more), or None when none gains enough. `movable`: peer → its stage."""
    rates = throughputs(groups, paces)
    slowest = slowest_of(rates)
    best: tuple[float, Peer, int] | None = None
    for peer, stage in sorted(movable.items()):
        if stage == slowest or len(groups[stage]) < 2:
            continue
        share = 1 / paces[peer, stage] if (peer, stage) in paces else rates[stage] / len(groups[stage])
        after = rates | {stage: rates[stage] - share}
        after[slowest] += rates[slowest] / max(1, len(groups[slowest]))
        gain = min(after.values()) / rates[slowest]
        if gain >= GAIN_MIN and (best is None or gain > best[0]):
            best = gain, peer, stage
    return None if best is None else (best[1], best[2], slowest)


class ReplicaMoves:
    """The leader's moves, made anew with each of its views."""

    def __init__(self, view: View, memory: LeaderMemory, losses: Losses, now: float) -> None:
        self.view, self.memory, self.losses = view, memory, losses
        self._since = now

    def _movable(self, s: Situation, stage: int, taken: Collection[Peer] = ()) -> dict[Peer, int]:
        """Peers with one stage that others hold as well, and that could hold `stage`, and what they hold. `taken`: may
        move away already."""
        found = {}
        for held in range(len(self.view.holders)):
            left = [peer for peer in self.losses.staying(held) if peer not in taken]
            for peer in left if len(left) > 1 else ():
                presence = s.presences.get(peer)
                able = presence is not None and fits(presence, stage) and peer not in self.memory.leavers
                if able and self.view.stages_of(peer) == (held,):
                    found[peer] = held
        return found

    def spare(self, s: Situation, stage: int, tried: Collection[Peer], taken: Collection[Peer] = ()) -> Peer | None:
        """A replica that a lost stage can have: of the largest group, the last. `taken`: asked for other stages."""
        able = self._movable(s, stage, taken)
        sizes = Counter(able.values())
        free = [peer for peer in able if peer not in tried]
        return max(free, key=lambda peer: (sizes[able[peer]], self.view.holders[able[peer]].index(peer)), default=None)

    def settle(self, s: Situation, fills: Mapping[int, Peer]) -> None:
        """Who takes a lost stage gives up the one that others hold."""
        for stage, peer in fills.items():
            held = self._movable(s, stage).get(peer)
            if held is not None:
                self.losses.vacate(held, peer, f"moves to stage {stage}")

    def beat(self, s: Situation) -> Outcome:
        """When nothing else happens and nobody stands by: has a stage replicas that another needs more?"""
        out, groups = Outcome(), dict(enumerate(self.view.holders))
        if s.now - self._since < s.settings.move_seconds or self.memory.learners:
            return out
        self._since = s.now
        paces = s.paces()
        slowest = slowest_of(throughputs(groups, paces))
        if len(groups[slowest]) >= s.settings.replicas:
            return out
        # The leader stays a member without a stage, and nobody would ask it to learn one.
        movable = {peer: held for peer, held in self._movable(s, slowest).items() if peer != s.me}
        found = best_move(groups, paces, movable)
        if found is not None:
            peer, held, needed = found
            out.note("move", f"{peer} is to leave stage {held}, which has others, for stage {needed}, the slowest")
            self.losses.vacate(held, peer, f"stage {needed} needs it more")
        return out
