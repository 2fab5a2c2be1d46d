"""What another holder of our stages gave to a step, done again (rule 42).

Whoever checks a peer chooses it by its own lot and tells nobody. The peer has said by then which visits it did. Who
made the tensors that went into these visits has them until the step is over, and shows them. The visits are done again
on the same weights, one after the other, apart from our own gradient. Then what they give is compared with what the
peer gave to the sum.

    lot → shares of the group → tensors of others → Recount of each → the sum is made → Weigh of each stage
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from random import Random
from typing import NamedTuple

from ftnode.protocol.step.probation import CHECKED
from ftnode.protocol.step.routes import last_visit, route_of
from ftnode.protocol.step.tensor_holds import CHECK, RESEND, Holds, TensorKey
from ftnode.protocol.words.effects import Effect, Recount, Send, Task, Weigh
from ftnode.protocol.words.messages import Begin, Show
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Direction, Handle, Peer
from ftnode.protocol.words.view import View

AT_ONCE = 2
"""Blocks of which tensors are here or on their way, each with two tensors at most."""


class Block(NamedTuple):
    """Visits in a row of one microbatch that one peer did: from `first` to `last`."""

    microbatch: int
    first: int
    last: int


def draw(
    chance: Random, view: View, me: Peer, settings: Settings, new: Collection[Peer] = ()
) -> Peer | None:  # fmt: skip
    """Whom we check in a step. Of n holders each does so with the chance `checks`, and does about an n-th of the
    stage's visits again: so that share of all visits is done twice.

    Nobody but a peer can show what passed between neighbouring stages of its own. So we check those of whose stages we
    hold all. Who is `new` is checked more often, and before others.
    """
    lot = chance.random() if settings.checks else 1.0
    if lot >= max(settings.checks, CHECKED if new else 0.0):
        return None
    mine = {*view.stages_of(me)}
    able = [peer for peer in view.members() if peer != me and mine.issuperset(view.stages_of(peer))]
    newcomers = [peer for peer in able if peer in new] if lot < CHECKED else []
    return chance.choice(newcomers or able) if newcomers or (able and lot < settings.checks) else None


class Check:
    """Of one peer in one attempt, in one view. `holds`: of the attempt."""

    def __init__(self, me: Peer, of: Peer, view: View, begin: Begin, settings: Settings, holds: Holds) -> None:
        self.me, self.of, self.view, self.begin, self.settings = me, of, view, begin, settings
        self.stages = view.stages_of(of)
        """All are ours as well."""
        self._holds = holds
        self._visits: dict[int, frozenset[tuple[int, int]]] = {}
        """By stage, the (microbatch, visit) pairs that it gave to the sum."""
        self._blocks: deque[Block] = deque()
        """Those whose turn has not come."""
        self._open: dict[Block, dict[TensorKey, Handle | None]] = {}
        """Those that are done again next, with the tensors that are here."""
        self._unweighed: set[int] = set(self.stages)
        self._moved = 0.0
        """When it got on last."""

    @property
    def over(self) -> bool:
        return not self._unweighed

    def told(self, stage: int, visits: Iterable[tuple[int, int]], now: float) -> None:
        """The sum of a stage is made with these visits of the peer."""
        self._visits[stage], self._moved = frozenset(visits), now
        if not self._visits[stage]:
            self._unweighed.discard(stage)
        if self._visits.keys() >= {*self.stages}:
            self._blocks.extend(_blocks(self._visits.values()))

    def late(self, now: float) -> bool:
        """It does not get on."""
        return len(self._visits) == len(self.stages) and now - self._moved > self.settings.check_seconds

    def wants(self, key: TensorKey) -> bool:
        return any(key in tensors and tensors[key] is None for tensors in self._open.values())

    def show(self, key: TensorKey, handle: Handle) -> list[Task]:
        """A tensor that we want is here."""
        block = next(block for block, tensors in self._open.items() if key in tensors)
        self._holds.hold(CHECK, key, handle)
        self._open[block][key] = handle
        return self._recounts(block)

    def ask(self) -> tuple[list[Effect], list[Task]] | None:
        """For the tensors of the next visits; what can be done without. None: somebody is not there who has them."""
        effects, tasks = list[Effect](), list[Task]()
        while self._blocks and len(self._open) < AT_ONCE:
            block = self._blocks.popleft()
            tensors = self._open[block] = {key: self._holds.handle(RESEND, key) for key in self._keys(block)}
            for key in (key for key, handle in tensors.items() if handle is None):
                makers = [peer for peer in self._makers(key) if peer not in (self.me, self.of)]
                if not makers:
                    return None
                effects += [Send(peer, self._asking(key), None) for peer in makers]
            tasks += self._recounts(block)
        return effects, tasks

    def done(self, task: Recount, now: float) -> tuple[Handle, ...]:
        """A block is done again; the handles to release."""
        block = Block(task.microbatch, task.visit, task.visits[-1])
        self._moved = now
        return self._holds.let_go(CHECK, self._open.pop(block, {}))

    def to_weigh(self, reduced: Iterable[int]) -> list[Task]:
        """Of the stages whose sums are made, once all is done again."""
        if self._blocks or self._open or len(self._visits) < len(self.stages):
            return []
        begin = self.begin
        return [Weigh(stage, begin.step, begin.attempt, self.of) for stage in sorted(self._unweighed & {*reduced})]

    def agrees(self, stage: int, distance: float, now: float) -> bool:
        """The sum of a stage is weighed: the peer gave what its visits give."""
        self._unweighed.discard(stage)
        self._moved = now
        return distance <= self.settings.check_tolerance

    def give_up(self) -> tuple[Handle, ...]:
        """The handles to release."""
        keys = [key for tensors in self._open.values() for key in tensors]
        self._open.clear()
        self._blocks.clear()
        self._unweighed.clear()
        return self._holds.let_go(CHECK, keys)

    def _keys(self, block: Block) -> list[TensorKey]:
        """The tensors that it is made of."""
        found: list[TensorKey] = []
        if block.first > 0:
            found.append((block.microbatch, block.first, Direction.FORWARD))
        if block.last < last_visit(self.settings.stages, self.view):
            found.append((block.microbatch, block.last, Direction.BACKWARD))
        return found

    def _makers(self, key: TensorKey) -> tuple[Peer, ...]:
        """One of these made it."""
        microbatch, visit, direction = key
        before = visit - 1 if direction is Direction.FORWARD else visit + 1
        return self.view.holders[self._route(microbatch)[before]]

    def _asking(self, key: TensorKey) -> Show:
        begin = self.begin
        return Show(begin.lineage, self.view.number, begin.step, begin.attempt, (key,))

    def _recounts(self, block: Block) -> list[Task]:
        """The task, if all tensors are here."""
        tensors, begin = self._open[block], self.begin
        if None in tensors.values():
            return []
        stages = self._route(block.microbatch)[block.first : block.last + 1]
        ends = [tensors.get((block.microbatch, visit, way)) for visit, way in (
            (block.first, Direction.FORWARD), (block.last, Direction.BACKWARD),
        )]  # fmt: skip
        return [Recount(
            stages[0], begin.step, begin.attempt, block.microbatch, block.first, self.of, ends[0], ends[1], stages[1:]
        )]  # fmt: skip

    def _route(self, microbatch: int) -> tuple[int, ...]:
        return route_of(self.settings, microbatch, self.view)


def _blocks(told: Iterable[frozenset[tuple[int, int]]]) -> list[Block]:
    """All visits, those in a row together."""
    found: list[Block] = []
    for microbatch, visit in sorted(frozenset().union(*told)):
        last = found[-1] if found else None
        if last is not None and (last.microbatch, last.last + 1) == (microbatch, visit):
            found[-1] = last._replace(last=visit)
        else:
            found.append(Block(microbatch, visit, visit))
    return found
