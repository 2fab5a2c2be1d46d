"""How long a step takes for a layout: its schedule is run, task by task and tensor by tensor.

Peers have a pace of their own for each stage, and a line of their own. A peer does one task after the other, backward
before forward, and is given two at a time (rule 28). Tensors for one other peer leave one after the other in the same
order. Those for several share the line up evenly, since each has a link of its own (node/links/tensor_lane.py); so do
copies of stages. The line down of the receiver takes a tensor meanwhile. Whoever admits a microbatch chooses among the
holders of a stage the one that is expected to be done with it first (rule 20). So the numbers are those of formulas
where formulas hold, as
(stages + microbatches - 1) · (forward + backward) for equal stages without lines (Odyssey, eq. 9), and need none where
they don't: unequal paces, lines and groups, and a window.

Nothing here is random, and nothing is measured: what is not in a `Layout` takes no time.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import Final

from ftnode.protocol.lines.step_estimate import Line
from ftnode.protocol.manifest.boundary import BoundaryBytes
from ftnode.protocol.planning.keepers import keepers_of
from ftnode.protocol.step.routes import beside, places, route, soonest
from ftnode.protocol.step.task_order import COMPUTE_AHEAD
from ftnode.protocol.step.work_split import divide

NO_LINE: Final = Line(inf, inf, 0.0)
NO_TENSORS: Final = BoundaryBytes(0, 0)
COPY: Final = -1
"""Of a task that is the copy of a stage, in place of its microbatch."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One peer. `paces`: stage → its seconds for a microbatch there, forward and backward."""

    paces: Mapping[int, tuple[float, float]]
    line: Line = NO_LINE


@dataclass(frozen=True, slots=True)
class Layout:
    """`holders`: of each stage, the head's first; `machines`: by the same names; `leader`: one of them, who commits.
    Empty: the first holder of the head."""

    holders: tuple[tuple[str, ...], ...]
    machines: Mapping[str, Machine]
    leader: str = ""


@dataclass(frozen=True, slots=True)
class Batch:
    """What a step is made of. `window`: microbatches that one holder of the head has under way at most; `sums`: bytes
    of one stage's whole gradient as it travels among its holders, by stage; `copies`: those of a stage that one keeper
    of it gets for a step on the mean, by stage; `fused`: neighbouring stages of one peer are one task, and where two
    have the same holders, whoever has a microbatch at the first has it at the other."""

    microbatches: int
    window: int
    tensors: BoundaryBytes = NO_TENSORS
    sums: tuple[int, ...] = ()
    swap: bool = False
    fused: bool = False
    copies: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """`seconds`: of a step, from its first task to that of the next one. `busy`: by peer, the seconds that its device
    computed, and that its line up and its line down carried something."""

    seconds: float
    busy: Mapping[str, tuple[float, float, float]]

    @property
    def limiting(self) -> str:
        """The peer that had least time to spare."""
        return max(self.busy, key=lambda name: (max(self.busy[name]), name))


def step_timing(layout: Layout, batch: Batch) -> Timing:
    """Of one step. Raises ValueError when a stage has no holder, or a holder no pace for it."""
    for stage, group in enumerate(layout.holders):
        if not group:
            raise ValueError(f"nobody holds stage {stage}")
        for name in group:
            if stage not in layout.machines[name].paces:
                raise ValueError(f"{name} has no pace for stage {stage}")
    return _Run(layout, batch).timing()


class _Task:
    """One task of a microbatch's way: forward through all stages, and back. `stages`: whose gradient it accumulates;
    `size`: bytes of what comes to it; `entry`: itself behind what orders the tasks of one peer, lower ones first."""

    __slots__ = ("entry", "following", "forward", "microbatch", "peer", "seconds", "sender", "size", "stages")

    def __init__(self, peer: _Peer, forward: bool, seconds: float, stages: tuple[int, ...], size: int) -> None:
        self.peer, self.forward, self.seconds, self.stages, self.size = peer, forward, seconds, stages, size
        self.sender, self.following = peer, None
        self.microbatch = 0

    sender: _Peer
    following: _Task | None
    entry: _Entry


_Entry = tuple[bool, int, int, int, _Task]
"""Backward before forward, early microbatches before late ones, late visits before early ones. The place on the way
comes fourth, so that no two are equal."""


class _Link:
    """From one peer to another. `left`: bytes of what is being sent, when its line was last looked at; `began`: when
    that began."""

    __slots__ = ("began", "left", "sending", "waiting")

    def __init__(self) -> None:
        self.waiting: list[_Entry] = []
        self.sending: _Task | None = None
        self.left = self.began = 0.0


class _Peer:
    """What one peer does at the moment. `full`: those of its links that have something to send; `turn`: a number of
    the last change to them."""

    __slots__ = ("carried_at", "computed", "computing", "down_clear", "down_seconds", "full", "given", "line", "links",
                 "machine", "name", "ready", "turn", "up_seconds")  # fmt: skip

    def __init__(self, name: str, machine: Machine) -> None:
        self.name, self.machine, self.line = name, machine, machine.line
        self.ready: list[_Entry] = []
        self.given: list[_Task] = []
        self.links: dict[tuple[str, bool], _Link] = {}
        self.full: list[_Link] = []
        self.turn, self.carried_at = 0, 0.0
        self.computing = False
        self.down_clear = 0.0
        self.computed = self.up_seconds = self.down_seconds = 0.0


class _Run:
    """One step."""

    def __init__(self, layout: Layout, batch: Batch) -> None:
        self.layout, self.batch = layout, batch
        self.peers = {name: _Peer(name, layout.machines[name]) for group in layout.holders for name in group}
        self.now, self._serial = 0.0, 0
        self._events: list[tuple[float, int, Callable[[_Task], None], _Task]] = []
        stages = len(layout.holders) - 1
        self.routes = [route(stages, microbatch, batch.swap) for microbatch in (0, 1)]
        self.paths: dict[int, tuple[_Peer, ...]] = {}
        self.under_way: dict[str, Counter[str]] = {name: Counter() for name in layout.holders[0]}
        """Holder of the head → how many visits of its microbatches each peer has."""
        self.in_flight = Counter[str]()
        heads, groups = layout.holders[0], tuple(enumerate(layout.holders))
        self.pace = {(name, stage): self._expected(name, stage) for stage, group in groups for name in group}
        self.places = [places(group, {name: self.pace[name, stage] for name in group}) for stage, group in groups]
        self.waiting = {name: [*reversed(share)] for name, share in divide(heads, batch.microbatches, self.pace)}
        """Holder of the head → the microbatches that it admits, last first."""
        self.shares: dict[tuple[str, int], dict[str, float]] = {}
        """(holder of the head, stage) → who takes what it admits, of those that were asked for."""
        self.done_at = [0.0] * len(layout.holders)
        """When each stage has accumulated the last of its visits."""

    def timing(self) -> Timing:
        for name in self.waiting:
            self._admit(name)
        self._copy()
        while self._events:
            self.now, _, happens, task = heapq.heappop(self._events)
            happens(task)
        seconds = self._committed()
        busy = {name: (peer.computed, peer.up_seconds, peer.down_seconds) for name, peer in self.peers.items()}
        return Timing(seconds, busy)

    # -- who does what

    def _expected(self, name: str, stage: int) -> float:
        """What the peer itself would tell others of its pace: the longer one of device and line; like any other's where
        it has none. Its line has no part in what it passes on to itself."""
        machine, tensors = self.layout.machines[name], self.batch.tensors
        after = (stage + 1) % len(self.layout.holders)
        sent = self._passed_on(name, stage, after) * tensors.forward
        sent += self._passed_on(name, stage, stage - 1) * tensors.backward
        return max(sum(machine.paces[stage]), sent / machine.line.up) or 1.0

    def _passed_on(self, name: str, stage: int, near: int) -> float:
        """The share of tensors from one stage to the next that go to somebody else."""
        here, there, heads = self.layout.holders[stage], self.layout.holders[near], self.layout.holders[0]
        if name not in there:
            return 1.0
        # Equal groups beside as many holders of the head are pipelines side by side (rule 20).
        together = here == there and (self.batch.fused or len(heads) >= len(there))
        return 0.0 if together else 1 - 1 / len(there)

    def _admit(self, head: str) -> None:
        while self.waiting[head] and self.in_flight[head] < self.batch.window:
            microbatch = self.waiting[head].pop()
            path = self.paths[microbatch] = self._path(head, microbatch)
            self.under_way[head].update(peer.name for peer in path)
            self.in_flight[head] += 1
            self._come(self._way(microbatch, path))

    def _path(self, head: str, microbatch: int) -> tuple[_Peer, ...]:
        queues, path = self.under_way[head].copy(), []
        holders, name, before = self.layout.holders, head, 0
        for stage in self.routes[microbatch % 2]:
            if not stage:
                name = head
            elif len(holders[stage]) == 1:
                name = holders[stage][0]
            elif not (self.batch.fused and before and holders[stage] == holders[before]):
                name = soonest(holders[stage], stage, queues, self.pace, self._beside(head, stage))
            before = stage
            queues[name] += 1
            path.append(self.peers[name])
        return tuple(path)

    def _beside(self, head: str, stage: int) -> dict[str, float]:
        if (head, stage) not in self.shares:
            self.shares[head, stage] = beside(head, self.places[0], self.places[stage])
        return self.shares[head, stage]

    def _way(self, microbatch: int, path: tuple[_Peer, ...]) -> _Task:
        """Its first task. The head embeds in no time, and its loss is one task with the gradient of that."""
        visited, fused = self.routes[microbatch % 2], self.batch.fused
        forward_size, backward_size = self.batch.tensors.forward, self.batch.tensors.backward
        last = len(visited) - 1
        way: list[_Task] = []
        for place in range(2 * last + 1):
            visit = place if place <= last else 2 * last - place
            peer, stage, forward = path[visit], visited[visit], place < last
            times = peer.machine.paces[stage]
            if not stage:
                seconds = sum(times) if visit == last else 0.0
            else:
                seconds = times[0] if forward else times[1]
            size = forward_size if place <= last else backward_size
            stages = () if forward else (stage,)
            if fused and way and (way[-1].peer, way[-1].forward) == (peer, forward):
                way[-1].seconds += seconds
                way[-1].stages += stages
                continue
            task = _Task(peer, forward, seconds, stages, size)
            task.microbatch, task.entry = microbatch, (forward, microbatch, -visit, len(way), task)
            if way:
                way[-1].following, task.sender = task, way[-1].peer
            way.append(task)
        return way[0]

    # -- what happens

    def _after(self, seconds: float, happens: Callable[[_Task], None], task: _Task) -> None:
        self._serial += 1
        heapq.heappush(self._events, (self.now + seconds, self._serial, happens, task))

    def _come(self, task: _Task) -> None:
        heapq.heappush(task.peer.ready, task.entry)
        self._give(task.peer)

    def _give(self, peer: _Peer) -> None:
        """Two tasks at most; the first one is computed."""
        given = peer.given
        while peer.ready and len(given) < COMPUTE_AHEAD:
            given.append(heapq.heappop(peer.ready)[-1])
        if given and not peer.computing:
            peer.computing, task = True, given[0]
            peer.computed += task.seconds
            self._after(task.seconds, self._computed, task)

    def _computed(self, task: _Task) -> None:
        peer, following = task.peer, task.following
        del peer.given[0]
        peer.computing = False
        for stage in task.stages:
            self.done_at[stage] = self.now
        if following is None:
            self._over(task.microbatch)
        elif following.peer is peer:
            heapq.heappush(peer.ready, following.entry)
        else:
            self._send(following)
        self._give(peer)

    def _over(self, microbatch: int) -> None:
        """It has come back to where it was admitted."""
        path, head = self.paths[microbatch], self.paths[microbatch][0].name
        self.under_way[head].subtract(peer.name for peer in path)
        self.in_flight[head] -= 1
        self._admit(head)

    def _copy(self) -> None:
        """Copies of stages leave while the step is computed, from its beginning on (recovery/copies.py)."""
        sizes, holders = self.batch.copies, self.layout.holders
        if not any(sizes):
            return
        for number, (stage, name) in enumerate(keepers_of(holders, {}, head=True, blocks=any(sizes[1:]))):
            if sizes[stage]:
                copy = _Task(self.peers[name], True, 0.0, (), sizes[stage])
                copy.sender, copy.microbatch = self.peers[holders[stage][0]], COPY
                copy.entry = (True, COPY, 0, number, copy)
                self._send(copy)

    def _send(self, task: _Task) -> None:
        """Tensors for one peer leave one after the other, those for several at the same time, and so do copies."""
        peer, key = task.sender, (task.peer.name, task.microbatch == COPY)
        if peer.line.up == inf:
            self._left(task, self.now)
            return
        link = peer.links.get(key)
        if link is None:
            link = peer.links[key] = _Link()
        heapq.heappush(link.waiting, task.entry)
        if link.sending is None:
            self._carry(peer)
            self._next(peer, link)
            self._watch(peer)

    def _next(self, peer: _Peer, link: _Link) -> None:
        link.sending = heapq.heappop(link.waiting)[-1] if link.waiting else None
        if link.sending is None:
            peer.full.remove(link)
            return
        if link not in peer.full:
            peer.full.append(link)
        link.left, link.began = float(link.sending.size), self.now

    def _carry(self, peer: _Peer) -> None:
        """What has left since the last time: the same of all links that have something to send."""
        if peer.full:
            seconds = self.now - peer.carried_at
            peer.up_seconds += seconds
            for link in peer.full:
                link.left -= seconds * peer.line.up / len(peer.full)
        peer.carried_at = self.now

    def _watch(self, peer: _Peer) -> None:
        """Until the next tensor has left; what was expected before does not count any more."""
        peer.turn += 1
        if peer.full:
            first = min(peer.full, key=_left_of)
            assert first.sending is not None
            seconds = max(0.0, first.left) * len(peer.full) / peer.line.up
            self._after(seconds, partial(self._sent, peer.turn, first), first.sending)

    def _sent(self, turn: int, link: _Link, task: _Task) -> None:
        peer = task.sender
        if turn == peer.turn:
            self._carry(peer)
            began = link.began
            self._next(peer, link)
            self._watch(peer)
            self._left(task, began)

    def _left(self, task: _Task, began: float) -> None:
        """Its last byte has left. The first ones have been on the receiver's line down since they left."""
        target, delay = task.peer, _delay(task.sender, task.peer)
        seconds = task.size / target.line.down
        target.down_seconds += seconds
        target.down_clear = max(target.down_clear, began + delay) + seconds
        if task.microbatch != COPY:
            self._after(max(delay, target.down_clear - self.now), self._come, task)

    def _committed(self) -> float:
        """When those who admit microbatches know that all stages are ready: everybody tells the leader, who tells
        them."""
        holders = self.layout.holders
        leader = self.peers[self.layout.leader or holders[0][0]]
        summed = self._summed()
        told = max(
            summed[stage] + max(_delay(self.peers[name], leader) for name in group)
            for stage, group in enumerate(holders)
        )
        return told + max(_delay(leader, self.peers[name]) for name in holders[0])

    def _summed(self) -> list[float]:
        """When each stage's gradient is known to all its holders. Each owns a piece of it, gets that from the others,
        and sends them its sum (Rabenseifner 2004). Who holds several stages sums one after the other."""
        summed, free = self.done_at.copy(), dict.fromkeys(self.peers, 0.0)
        for stage in sorted(range(len(summed)), key=lambda stage: (summed[stage], -stage)):
            group = self.layout.holders[stage]
            if len(group) < 2 or not self.batch.sums:
                continue
            lines = [self.layout.machines[name].line for name in group]
            share = (len(group) - 1) / len(group) * self.batch.sums[stage]
            bytes_seconds = 2 * share / min(min(line.up, line.down) for line in lines)
            began = max(summed[stage], *(free[name] for name in group))
            free |= dict.fromkeys(group, began + bytes_seconds)
            summed[stage] = began + bytes_seconds + 2 * max(line.delay_seconds for line in lines)
        return summed


def _left_of(link: _Link) -> float:
    return link.left


def _delay(one: _Peer, other: _Peer) -> float:
    """Each has half of the way between them."""
    return (one.line.delay_seconds + other.line.delay_seconds) / 2 if one is not other else 0.0
