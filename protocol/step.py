"""One peer's work on one attempt at a step: admit, forward, backward, keep, resend, reduce (rules 19-24, 27, 28).

An attempt is a finite, acyclic graph of tasks over (microbatch, visit). A boundary tensor is accepted once, kept by its
sender until the attempt ends, and sent again until it is acknowledged. Nothing here knows how views come about.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace

from ftnode.protocol.effects import Backward, Compute, Effect, Forward, Reduce, Release, Send, Task
from ftnode.protocol.events import Done
from ftnode.protocol.messages import Begin, Boundary, Poisoned, Ready, StageResult, Stored
from ftnode.protocol.paths import choose_path, expected_visits, last_visit, route
from ftnode.protocol.schedule import COMPUTE_AHEAD, TaskQueue
from ftnode.protocol.settings import Settings
from ftnode.protocol.types import HEAD, Direction, Handle, Peer
from ftnode.protocol.view import View

TensorKey = tuple[int, int, Direction]
"""(microbatch, visit it is for, direction)."""


@dataclass(slots=True)
class Kept:
    """A boundary tensor that we made; kept until the attempt ends, resent until acknowledged."""

    boundary: Boundary
    to: Peer
    handle: Handle
    sent: float
    made: float
    stored: bool = False


class StepWork:
    """The work of one attempt on one peer. Discarded whole when another attempt begins."""

    def __init__(self, me: Peer, view: View, begin: Begin, settings: Settings) -> None:
        self.me, self.view, self.begin, self.settings = me, view, begin, settings
        self.stages = view.stages_of(me)
        self.last = last_visit(settings.stages)
        self.results: dict[int, StageResult] = {}
        self.loss_sum, self.tokens = 0.0, 0
        self.kept: dict[TensorKey, Kept] = {}
        self.accumulated: set[tuple[int, int]] = set()
        self.poison: Poisoned | None = None
        self._paths: dict[int, tuple[Peer, ...]] = dict(begin.paths)
        self._inputs: dict[tuple[int, int], Handle | None] = {}
        self._gradients: dict[tuple[int, int], Handle | None] = {}
        self._borrowed: set[Handle] = set()
        self._forwarded: set[tuple[int, int]] = set()
        self._saved: set[tuple[int, int]] = set()
        self._queue = TaskQueue()
        self._waiting: dict[int, list[Task]] = {}
        self._running: list[Task] = []
        self._installed: set[int] = set()
        self._reducing: set[int] = set()
        self._inflight: set[int] = set()
        self._scores: dict[int, float] = {}
        self._to_admit = self._share()

    # -- what is to be done

    def _share(self) -> list[int]:
        """The microbatches that this head holder admits, last first; validation ones follow the step's own."""
        if HEAD not in self.stages or self.begin.skip:
            return []
        mine = [m for peer, share in self.begin.shares if peer == self.me for m in share]
        first = self.settings.microbatches
        scored = range(first, first + self.settings.evaluation_microbatches) if self.begin.evaluate else ()
        return [*mine, *scored][::-1]

    def is_validation(self, microbatch: int) -> bool:
        return microbatch >= self.settings.microbatches

    def route(self, microbatch: int) -> tuple[int, ...]:
        """Validation always takes the normal route."""
        return route(self.settings.stages, microbatch, self.settings.swap and not self.is_validation(microbatch))

    def expected(self, stage: int) -> frozenset[tuple[int, int]]:
        """What this peer must accumulate for the stage."""
        if not self.begin.training or self.begin.skip:
            return frozenset()
        return expected_visits(self.settings.stages, self.settings.microbatches, stage, self.settings.swap)

    def installed(self, stages: Collection[int]) -> None:
        """These stages have the weights of the step's base; their tasks may run."""
        for stage in set(stages) - self._installed:
            self._installed.add(stage)
            for task in self._waiting.pop(stage, []):
                self._queue.add(task)

    @property
    def complete(self) -> bool:
        """Every stage of ours is installed and reduced, and every validation microbatch of ours is scored."""
        if self._to_admit or self._inflight or len(self._installed) < len(self.stages):
            return False
        return self.begin.skip or not self.begin.training or len(self.results) == len(self.stages)

    def kept_handles(self) -> tuple[Handle, ...]:
        """The tensors that a complete attempt still has: those that we made; what we received was released."""
        return tuple(kept.handle for kept in self.kept.values())

    def has_reduced(self, stage: int) -> bool:
        """Is the stage Ready for this attempt: its gradient reduced, or nothing to reduce in a skip."""
        if self.begin.skip:
            return stage in self._installed
        return stage in self.results

    @property
    def busy(self) -> bool:
        """Compute has tasks of ours."""
        return bool(self._running)

    def ready(self) -> Ready:
        """What the leader is told when the work is complete (rule 24)."""
        begin = self.begin
        mean = sum(self._scores.values()) / len(self._scores) if self._scores else None
        results = tuple(self.results[stage] for stage in sorted(self.results))
        return Ready(
            begin.lineage, self.view.number, begin.step, begin.attempt, results, self.loss_sum, self.tokens, mean
        )

    def queue_length(self, stage: int) -> int:
        """Tasks known for a stage and not finished, for watchers and for routing by expected finish time."""
        waiting = len(self._waiting.get(stage, ()))
        return waiting + (len(self._queue) + len(self._running) if len(self.stages) == 1 else 0)

    def accumulated_count(self, stage: int) -> int:
        return sum(self.route(m)[visit] == stage for m, visit in self.accumulated)

    # -- scheduling

    @property
    def can_advance(self) -> bool:
        """There is something to admit, or a task that compute has room for. Asked at every event, so it is cheap."""
        if self.poison is not None:
            return False
        return bool(self._to_admit) or (len(self._running) < COMPUTE_AHEAD and len(self._queue) > 0)

    def advance(self, now: float) -> list[Effect]:
        """Admit what the window allows and give tasks to compute."""
        effects: list[Effect] = []
        if self.poison is not None:
            return effects
        while self._to_admit and len(self._inflight) < self.begin.window and HEAD in self._installed:
            self._admit(self._to_admit.pop())
        while len(self._running) < COMPUTE_AHEAD and len(self._queue):
            task = self._decide_memory(self._queue.take())
            self._running.append(task)
            effects.append(Compute(task))
        return effects

    def _admit(self, microbatch: int) -> None:
        self._inflight.add(microbatch)
        self._paths[microbatch] = choose_path(self.view, self.route(microbatch), {}, self.me)
        self._inputs[(microbatch, 0)] = None
        self._add_forward(microbatch, 0)

    def _add_forward(self, microbatch: int, visit: int) -> None:
        begin, validation = self.begin, self.is_validation(microbatch)
        stage = self.route(microbatch)[visit]
        handle = self._inputs[(microbatch, visit)]
        if visit == self.last and not validation:
            self._add(Backward(stage, begin.step, begin.attempt, microbatch, visit, None, handle, False))
        else:
            self._add(Forward(stage, begin.step, begin.attempt, microbatch, visit, handle, True, validation))

    def _add(self, task: Task) -> None:
        if task.stage in self._installed:
            self._queue.add(task)
        else:
            self._waiting.setdefault(task.stage, []).append(task)

    def _decide_memory(self, task: Task) -> Task:
        """Device memory is local (rule 28): beyond d live activations run forward without saving."""
        if not isinstance(task, Forward):
            return task
        save = not task.validation and len(self._saved) < self.settings.live_activations
        if save:
            self._saved.add((task.microbatch, task.visit))
        return Forward(
            task.stage, task.step, task.attempt, task.microbatch, task.visit, task.input, save, task.validation
        )

    # -- compute results

    def on_done(self, done: Done, now: float, leader: Peer) -> list[Effect]:
        """A task of this attempt is finished."""
        task = done.task
        if task not in self._running:
            return [] if done.output is None else [Release((done.output,))]
        self._running.remove(task)
        if done.fault:
            self.give_up(done.fault, task.stage, -1 if isinstance(task, Reduce) else task.microbatch)
            assert self.poison is not None
            effects: list[Effect] = [] if done.output is None else [Release((done.output,))]
            return [*effects, Send(leader, self.poison, None)]
        if isinstance(task, Forward):
            effects = self._on_forward(task, done, now)
        elif isinstance(task, Backward):
            effects = self._on_backward(task, done, now)
        else:
            self.results[task.stage] = StageResult(task.stage, done.value, done.gradient)
            effects = []
        return effects

    def give_up(self, reason: str, stage: int = HEAD, microbatch: int = -1) -> None:
        """This attempt cannot be finished here; the leader is told (rule 25)."""
        begin = self.begin
        self.poison = Poisoned(begin.lineage, self.view.number, begin.step, begin.attempt, stage, microbatch, reason)

    def _on_forward(self, task: Forward, done: Done, now: float) -> list[Effect]:
        key = (task.microbatch, task.visit)
        self._forwarded.add(key)
        effects: list[Effect] = []
        if task.validation:
            effects += self._release(self._inputs.get(key))
            if task.visit == self.last:
                self._scores[task.microbatch] = done.value
                self._inflight.discard(task.microbatch)
                return effects
        assert done.output is not None
        if key in self._gradients and not task.validation:
            self._add_backward(*key)
        return effects + self._keep(task.microbatch, task.visit + 1, Direction.FORWARD, done.output, now)

    def _add_backward(self, microbatch: int, visit: int) -> None:
        begin, key = self.begin, (microbatch, visit)
        stage = self.route(microbatch)[visit]
        recompute = key not in self._saved
        self._add(
            Backward(
                stage, begin.step, begin.attempt, microbatch, visit, self._gradients[key], self._inputs[key], recompute
            )
        )

    def _on_backward(self, task: Backward, done: Done, now: float) -> list[Effect]:
        key = (task.microbatch, task.visit)
        self._saved.discard(key)
        self.accumulated.add(key)
        effects = self._release(self._inputs.get(key)) + self._release(self._gradients.get(key))
        if task.visit == self.last:
            self.loss_sum += done.value
            self.tokens += done.tokens
        if task.visit == 0:
            self._inflight.discard(task.microbatch)
        else:
            assert done.output is not None
            effects += self._keep(task.microbatch, task.visit - 1, Direction.BACKWARD, done.output, now)
        self._reduce_if_complete(task.stage)
        return effects

    def _reduce_if_complete(self, stage: int) -> None:
        """Rule 23 for a group of one: its set is the step's set. The partition among replicas will go here."""
        if stage not in self._reducing and self.expected(stage) <= self.accumulated:
            self._reducing.add(stage)
            self._add(Reduce(stage, self.begin.step, self.begin.attempt))

    def _release(self, handle: Handle | None) -> list[Effect]:
        """Give a received tensor back; one that a stage of ours sent to another of ours is still kept."""
        return [] if handle is None or handle in self._borrowed else [Release((handle,))]

    # -- boundary tensors

    def _keep(self, microbatch: int, visit: int, direction: Direction, handle: Handle, now: float) -> list[Effect]:
        """Keep a tensor that we made and send it to the next peer of the path, which may be ourselves."""
        path, begin = self._paths[microbatch], self.begin
        boundary = Boundary(
            begin.lineage, self.view.number, begin.step, begin.attempt, microbatch, visit, direction, path
        )
        kept = Kept(boundary, path[visit], handle, now, now)
        self.kept[(microbatch, visit, direction)] = kept
        if kept.to == self.me:
            kept.stored = True
            self._borrowed.add(handle)
            self._store(microbatch, visit, direction, handle)
            return []
        return [Send(kept.to, boundary, handle)]

    def on_boundary(self, sender: Peer, boundary: Boundary, handle: Handle) -> list[Effect]:
        """Rule 21: accept a tensor of this attempt from its neighbour on the path, once; acknowledge it every time."""
        if not self._fits(sender, boundary):
            return [Release((handle,))]
        effects: list[Effect] = []
        m, visit, direction = boundary.microbatch, boundary.visit, boundary.direction
        if self._has(m, visit, direction):
            effects.append(Release((handle,)))
        else:
            self._paths.setdefault(m, boundary.path)
            self._store(m, visit, direction, handle)
        begin = self.begin
        effects.append(Send(sender, Stored(begin.lineage, begin.step, begin.attempt, m, visit, direction), None))
        return effects

    def _fits(self, sender: Peer, boundary: Boundary) -> bool:
        begin, path, visit = self.begin, boundary.path, boundary.visit
        mine = boundary.view == self.view.number and boundary.attempt == begin.attempt and boundary.step == begin.step
        if not mine or len(path) != self.last + 1 or not 0 <= visit <= self.last or path[visit] != self.me:
            return False
        evaluation = self.settings.evaluation_microbatches if begin.evaluate else 0
        first = 0 if begin.training and not begin.skip else self.settings.microbatches
        if not first <= boundary.microbatch < self.settings.microbatches + evaluation:
            return False
        if self._paths.get(boundary.microbatch, path) != path:
            return False
        stages = self.route(boundary.microbatch)
        if any(peer not in self.view.holders[stage] for peer, stage in zip(path, stages)):
            return False
        before = visit - 1 if boundary.direction is Direction.FORWARD else visit + 1
        return 0 <= before <= self.last and path[before] == sender

    def _has(self, microbatch: int, visit: int, direction: Direction) -> bool:
        table = self._inputs if direction is Direction.FORWARD else self._gradients
        return (microbatch, visit) in table

    def _store(self, microbatch: int, visit: int, direction: Direction, handle: Handle) -> None:
        key = (microbatch, visit)
        if direction is Direction.FORWARD:
            self._inputs[key] = handle
            self._add_forward(microbatch, visit)
        else:
            self._gradients[key] = handle
            if key in self._forwarded:
                self._add_backward(microbatch, visit)

    def on_stored(self, sender: Peer, stored: Stored) -> list[Effect]:
        """An acknowledgement. A validation activation is needed no longer; the step's own are kept for repairs."""
        key = (stored.microbatch, stored.visit, stored.direction)
        kept = self.kept.get(key)
        if stored.attempt != self.begin.attempt or kept is None or kept.to != sender or kept.stored:
            return []
        kept.stored = True
        if self.is_validation(stored.microbatch):
            del self.kept[key]
            return [Release((kept.handle,))]
        return []

    def resend(self, now: float, due: Callable[[Kept], bool]) -> list[Effect]:
        """Send the unacknowledged tensors that `due` picks again, as of the current view."""
        effects: list[Effect] = []
        for kept in self.kept.values():
            if not kept.stored and due(kept):
                kept.sent = now
                effects.append(Send(kept.to, kept.boundary, kept.handle))
        return effects

    def stalled(self, before: float) -> list[Kept]:
        """Tensors made before then that were not acknowledged, one per receiver."""
        late = {kept.to: kept for kept in self.kept.values() if not kept.stored and kept.made < before}
        return [late[peer] for peer in sorted(late)]

    def continue_in(self, view: View, begin: Begin, now: float) -> list[Effect]:
        """The same attempt goes on in a new view (rule 18 iii): unacknowledged tensors are sent again under it."""
        self.view, self.begin = view, begin
        if self.poison is not None:
            self.poison = replace(self.poison, view=view.number)
        for kept in self.kept.values():
            kept.boundary = replace(kept.boundary, view=view.number)
        return self.resend(now, lambda kept: True)
