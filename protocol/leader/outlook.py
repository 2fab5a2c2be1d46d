"""What the leader takes the swarm to be when it asks who should hold what: machines with room and a pace, and a line
where one is known.

Everything is by the peers' own word. A holder tells in its heartbeats how long its device and its line take for a
microbatch, somebody else in the directory how fast its device is. Block stages are alike, so that who is known at one
is known at all of them. Of whom nothing is known is as fast as the others are, and what nobody has measured yet counts
for no more than the fastest of them: else somebody could have a whole run for a word. How fast a line is is known only
where it is full; what is not known limits nothing, but in the search for a goal (goals.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from types import MappingProxyType

from ftnode.protocol.leader.leader_memory import LeaderMemory
from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.changes import Changes
from ftnode.protocol.planning.costs import Costs, Risk
from ftnode.protocol.planning.schedule import NO_LINE, Batch, Machine
from ftnode.protocol.planning.swarm import Holders, Swarm
from ftnode.protocol.recovery.candidate_order import fits
from ftnode.protocol.recovery.learning_cost import risked_steps
from ftnode.protocol.situation import Situation
from ftnode.protocol.words.records import Presence
from ftnode.protocol.words.settings import STATE_BYTES_PER_SECOND
from ftnode.protocol.words.types import Peer

NOTHING: Mapping[Peer, float] = MappingProxyType({})
PACE_MIN, PACE_MAX = 1e-9, 1e9
"""Seconds for a microbatch. Nobody works outside of these, and what lies between can be computed with, whoever says
it: sums are finite, and no quotient is by zero."""
FULL = 0.1
"""Of a step, for which a line must be busy that limits anything."""
FORWARD = 1 / 3
"""Of a microbatch's time at a stage; a backward pass has twice as many operations."""


def name_of(peer: Peer) -> str:
    """No two lives of a peer have the same."""
    return f"{peer.id}/{peer.nonce}"


class Outlook:
    """Of one moment. `holders`: who holds what, as it is expected to be; `others`: who holds nothing and could;
    `careful`: a line that is not known is not free, but as fast as it was, or as the fastest that is known."""

    def __init__(
        self,
        s: Situation,
        memory: LeaderMemory,
        holders: Sequence[Iterable[Peer]],
        others: Iterable[Presence] = (),
        careful: bool = False,
    ) -> None:
        self._s = s
        groups = [tuple(group) for group in holders]
        held: dict[Peer, list[int]] = {}
        for stage, group in enumerate(groups):
            for peer in group:
                held.setdefault(peer, []).append(stage)
        able = {presence.peer: presence for presence in others}
        able |= {peer: s.presences[peer] for peer in held if peer in s.presences}
        self.peers = {name_of(peer): peer for peer in (*held, *able)}
        paces = paces_of(s, held, able, memory.measured)
        lines, earlier = full_lines(s, memory.usual_step), memory.lines
        fastest = max(lines.values(), key=lambda line: line.up, default=NO_LINE)
        machines, room = dict[str, Machine](), dict[str, int]()
        for name, peer in self.peers.items():
            presence, mine = able.get(peer), held.get(peer, [])
            block, head = paces[peer]
            may = {stage for stage in range(len(groups)) if presence is not None and fits(presence, stage)}
            seconds = {stage: block if stage else head for stage in sorted(may.union(mine))}
            split = {stage: (FORWARD * one, (1 - FORWARD) * one) for stage, one in seconds.items()}
            unknown = earlier.get(peer, fastest) if careful else NO_LINE
            machines[name] = Machine(split, lines.get(peer, unknown))
            room[name] = len(mine) + (max(0, presence.capacity) if presence is not None else 0)
        settings = s.settings
        batch = Batch(
            settings.microbatches,
            settings.window,
            BoundaryBytes(settings.forward_bytes, settings.backward_bytes),
            (settings.gradient_bytes,) * len(groups),
            settings.swap,
        )
        swarm = Swarm(machines, room, (1,) * len(groups), batch, settings.replicas)
        moved = settings.state_bytes / STATE_BYTES_PER_SECOND
        risk = Risk(
            memory.loss_rate,
            settings.lease_seconds + moved,
            risked_steps(settings, s.history.rebuilt_at(), s.highest_step),
            s.highest_step,
        )
        sites = {name: able[peer].site if peer in able else s.site(peer) for name, peer in self.peers.items()}
        speeds = {name: able[peer].tokens_per_second for name, peer in self.peers.items() if peer in able}
        self.costs = Costs(swarm, risk, sites, {name: speed for name, speed in speeds.items() if speed > 0})
        self.changes = self.of(groups)

    def of(self, holders: Sequence[Iterable[Peer]]) -> Changes:
        """Where these hold what; they are known."""
        present: Holders = tuple(tuple(map(name_of, group)) for group in holders)
        return Changes(self.costs, present)


def measured(s: Situation) -> tuple[dict[Peer, float], dict[Peer, float]]:
    """Of members, seconds for a microbatch at a block stage, and at the head."""
    sized = s.settings.forward_bytes > 0  # else no line can be told from how long tensors take on it
    told = {
        (peer, one.stage): one.seconds if sized else one.pace
        for peer, report in s.reports.items() for one in report.stages
    }  # fmt: skip
    told |= {(s.me, stage): s.own.pace_of(stage) for stage in s.mine}
    blocks: dict[Peer, list[float]] = {}
    heads: dict[Peer, float] = {}
    for (peer, stage), seconds in told.items():
        if seconds > 0 and stage:
            blocks.setdefault(peer, []).append(seconds)
        elif seconds > 0:
            heads[peer] = _bounded(seconds)
    return {peer: _bounded(median(seconds)) for peer, seconds in blocks.items()}, heads


def _bounded(seconds: float) -> float:
    return min(PACE_MAX, max(PACE_MIN, seconds))


def paces_of(
    s: Situation,
    held: Mapping[Peer, Sequence[int]],
    able: Mapping[Peer, Presence],
    earlier: Mapping[Peer, float] = NOTHING,
) -> dict[Peer, tuple[float, float]]:
    """Of each, seconds for a microbatch at a block stage and at the head. `earlier`: at a block stage, of those who
    were members before; what was measured counts more than their word. Before anything is measured the word of those
    who say how fast their devices are still tells them apart."""
    known, heads = measured(s)
    usual = median(known.values() or heads.values() or [1.0])
    fastest = min(known.values() or heads.values() or [0.0])
    speeds = {peer: one.tokens_per_second for peer, one in able.items() if one.tokens_per_second > 0}
    tokens = max((commit.tokens for commit in s.history.newest_commits(2)), default=0) / s.settings.microbatches
    if not (tokens or known or heads):
        tokens = median(speeds.values() or [1.0])
    if tokens:
        said = {peer: _bounded(max(fastest, tokens / speed)) for peer, speed in speeds.items()}
        known = said | {**earlier} | known
    head_usual = median(seconds / known.get(peer, usual) for peer, seconds in heads.items()) if heads else 1.0
    found = {}
    for peer in (*held, *able):
        block = known.get(peer, usual)
        found[peer] = block, heads.get(peer, _bounded(head_usual * block))
    return found


def full_lines(s: Situation, step: float | None = None) -> dict[Peer, Line]:
    """Of members, where some tensors have waited for them: by how long they take for the tensors of a stage. How fast
    others are nobody knows. `step`: seconds that one takes, where they are known. Where all microbatches of a step
    would keep a line busy for hardly any of it, tensors waited for a node that was busy, and not for its line."""
    size, least = s.settings.forward_bytes + s.settings.backward_bytes, FULL * (step or 0.0) / s.settings.microbatches
    seconds = {peer: [one.line_seconds for one in report.stages] for peer, report in s.reports.items()}
    longest = {peer: max(theirs, default=0.0) for peer, theirs in seconds.items() if size}
    return {peer: Line.of_home(size / _bounded(most)) for peer, most in longest.items() if most > least}
