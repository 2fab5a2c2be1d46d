"""One peer's work on one attempt at a step: admit, forward, backward, keep, resend, reduce (rules 19-24, 27, 28).

An attempt is a finite, acyclic graph of tasks over (microbatch, visit). A boundary tensor is accepted once, kept by its
sender until the attempt ends, and sent again until it is acknowledged. Nothing here knows how views come about.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace

from ftnode.protocol.liveness.deadlines import Deadlines
from ftnode.protocol.step.admissions import Admissions, path_word
from ftnode.protocol.step.boundary_norms import Source
from ftnode.protocol.step.check import Check, Lot, lot_of
from ftnode.protocol.step.errands import Errands
from ftnode.protocol.step.group import Groups
from ftnode.protocol.step.line_pace import LinePace
from ftnode.protocol.step.outbox import Outbox, OwedTensor, fits, key_of
from ftnode.protocol.step.routes import choose_path, furthest, last_visit, maker_of, route_of
from ftnode.protocol.step.sealed_tensors import Finding
from ftnode.protocol.step.showing import Showing
from ftnode.protocol.step.task_order import COMPUTE_AHEAD, LiveActivations, Pace, TaskQueue
from ftnode.protocol.step.tensor_holds import READ, RESEND, Holds, TensorKey
from ftnode.protocol.wire.admission import REASON_MAX, WAITS_ON_GROUPS_MAX
from ftnode.protocol.words.effects import (
    NOT_SHOWN,
    Backward,
    Compute,
    Effect,
    Forward,
    Note,
    Recount,
    Reduce,
    Release,
    Send,
    Task,
    TrialTask,
    Weigh,
)
from ftnode.protocol.words.events import Done
from ftnode.protocol.words.messages import (
    UNSHOWN,
    Begin,
    Boundary,
    Convicted,
    Judge,
    Poisoned,
    Ready,
    SealedTensor,
    Share,
    StageResult,
    Stored,
    Verdict,
    Wait,
    WasGiven,
)
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import HEAD, RELAYS_TOLD_MAX, Direction, Handle, Peer
from ftnode.protocol.words.view import View

FORWARD, BACKWARD = Direction.FORWARD, Direction.BACKWARD

JUDGED_MAX = 4
"""Cases that wait, the newest."""
Path = tuple[Peer, ...]
"""Who serves each visit."""


class StepWork:
    """The work of one attempt on one peer. Discarded whole when another attempt begins."""

    def __init__(
        self, me: Peer, view: View, begin: Begin, settings: Settings, pace: Pace, line: LinePace,
        others: Mapping[tuple[Peer, int], float], deadlines: Deadlines, live: LiveActivations | None = None,
        lot: Lot | None = None, untried: Collection[int] = (),
    ) -> None:  # fmt: skip
        """`pace`, `line`: our own; `others`: (peer, stage) → seconds that a microbatch takes there; `deadlines`: see
        Outbox. `live`: what there is memory for here; None: as many as the manifest says. `lot`: whom we check.
        `untried`: stages that we learn, and do not say to be Ready with yet (rule 48)."""
        self.me, self.view, self.begin, self.settings = me, view, begin, settings
        self.stages = view.stages_of(me) + tuple(stage for stage, peer in begin.learners if peer == me)
        self._required = frozenset(view.stages_of(me) if me in view.members() else self.stages)
        self.last = last_visit(settings.stages, view)
        self.holds = Holds()
        """What others keep beside the attempt shares this ledger (copy_trials.py)."""
        self.outbox = Outbox(me, deadlines, self.holds)
        self.groups = Groups(me, view, begin, settings)
        self.untried = {*untried}
        self._check = Check(me, lot, view, begin, settings, self.holds) if lot is not None else None
        self._to_judge: list[Judge] = []
        """What our leader wants to know besides what is looked at now."""
        self._pace, self._line, self._others = pace, line, others
        self.results: dict[int, StageResult] = {}
        self.loss_sum, self.tokens = 0.0, 0
        self._relayed = Counter[str]()
        """PeerId → bytes of tensors and sums of the step that came to us through it."""
        self.accumulated: set[tuple[int, int]] = set()
        self.poison: Poisoned | None = None
        self._paths: dict[int, Path] = dict(begin.paths)
        self._admissions = Admissions(me, view, begin, settings)
        self.showing = Showing(
            view, begin, self.groups, settings, self.outbox, self.holds, self._paths, self._admissions
        )
        self._errands = Errands(me, view, begin, settings, self.groups, self.holds, self._admissions)
        self._arrived: set[TensorKey] = set()
        """Inputs and gradients that have been here, each taken once; the input of visit 0 is the batch itself."""
        self._unfinished: set[tuple[int, int]] = set()
        """The step's own visits of which we have the input and not the gradient's share."""
        self._forwarded: set[tuple[int, int]] = set()
        self._saved = live or LiveActivations(settings.live_activations)
        self._queue = TaskQueue()
        self._waiting: dict[int, list[Task]] = {}
        self._running: list[Task] = []
        self._installed: dict[int, int] = {}
        """Stages that have the weights of the step's base, and the device of each."""
        self._joined: set[tuple[int, int]] = set()
        """(microbatch, visit) of tasks of several visits: what passes between these is nobody's to send again."""
        self._reducing: set[int] = set()
        self._inflight: dict[int, Path] = {}
        """Microbatches that we admitted and that are under way."""
        self._scores: dict[int, float] = {}
        self._passed_on: dict[tuple[int, int], float] = {}
        """Validation activations that we made, by the visit that they are for, and when: no gradient comes back."""
        self._to_admit = self._share()

    # -- what is to be done

    def _share(self) -> list[int]:
        """The microbatches that this head holder admits, last first; those of a validation, which the first holder of
        the head does alone, follow the step's own."""
        if HEAD not in self.view.stages_of(self.me) or self.begin.skip:
            return []
        mine = [m for peer, share in self.begin.shares if peer == self.me for m in share]
        first = self.settings.microbatches
        scores = self.begin.evaluate and self.view.holders[HEAD][0] == self.me
        scored = range(first, first + self.settings.evaluation_microbatches) if scores else ()
        return [m for m in (*mine, *scored) if m not in self._paths][::-1]

    def is_validation(self, microbatch: int) -> bool:
        return microbatch >= self.settings.microbatches

    def route(self, microbatch: int) -> tuple[int, ...]:
        """The stages that it visits."""
        return route_of(self.settings, microbatch, self.view)

    def installed(self, stages: Mapping[int, int]) -> None:
        """These stages have the weights of the step's base, each on the device named; their tasks may run."""
        for stage in stages.keys() - self._installed.keys():
            self._installed[stage] = stages[stage]
            for task in self._waiting.pop(stage, []):
                self._queue.add(task)

    @property
    def complete(self) -> bool:
        """Every stage of ours is installed and reduced, and every validation microbatch of ours is scored. Nobody
        waits for what a holder of another stage learns."""
        if self._to_admit or self._inflight or not self._installed.keys() >= self._required:
            return False
        if self.untried & self._required and self.begin.training and not self.begin.skip:
            return False
        if self.poison is not None and self.poison.distance:
            return False  # others' work is done, and we say that a part of it is a lie
        return self.begin.skip or not self.begin.training or self.results.keys() >= self._required

    @property
    def checking(self) -> bool:
        """What is done here of the step is not told before a check is over. It does not wait for a trial."""
        return not self.may_check and self.trial is None

    @property
    def may_check(self) -> bool:
        """No check is under way."""
        return self._check is None or self._check.over

    @property
    def trial(self) -> Check | None:
        """What was lent to us, tried on the lender's visits."""
        return self._check if self._check is not None and self._check.trial else None

    @property
    def _told(self) -> set[int]:
        """Stages of whose sums the leader may hear."""
        return (self.results.keys() & self._installed.keys()) - self.untried

    def let_go(self) -> list[Effect]:
        """Release every tensor: nobody needs them from us any more."""
        return _release(self.holds.let_go_of_all())

    def lose(self, stage: int) -> None:
        """Weights and gradient of the stage are gone here; others may yet commit what the rest of it made."""
        self._installed.pop(stage, None)
        self.results.pop(stage, None)

    def has_reduced(self, stage: int) -> bool:
        """Is the stage Ready for this attempt: its gradient reduced, or nothing to reduce in a skip."""
        if self.begin.skip:
            return stage in self._installed
        return stage in self.results

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def most_at_once(self) -> int:
        """Stages of the longest task that compute has; at least 1."""
        return max((len(task.stages) for task in self._running), default=1)

    @property
    def ready_stages(self) -> int:
        """Of how many stages `ready` has a result."""
        return len(self._told)

    def ready(self) -> Ready:
        """What the leader is told when the work is complete (rule 24), of stages whose weights are here."""
        begin = self.begin
        mean = sum(self._scores.values()) / len(self._scores) if self._scores else None
        results = tuple(self.results[stage] for stage in sorted(self._told))
        relayed = sorted(self._relayed.items(), key=lambda row: (-row[1], row[0]))[:RELAYS_TOLD_MAX]
        return Ready(
            begin.lineage, self.view.number, begin.step, begin.attempt, results, self.loss_sum, self.tokens, mean,
            tuple(relayed), self._claims(),
        )  # fmt: skip

    def _claims(self) -> tuple[tuple[Peer, Share], ...]:
        """Who did what of the stages that it is about, where somebody may ask for the tensors."""
        begin, view = self.begin, self.view
        asked = self.settings.checks and begin.training and not begin.skip and begin.attempt.view == view.number
        told = self._told & {*view.stages_of(self.me)} if asked else set[int]()
        return tuple(claim for stage in sorted(told) for claim in self.groups.claims(stage))

    def paths(self) -> tuple[tuple[int, Path], ...]:
        """Of the step's own microbatches that we have met, where another could take a visit over."""
        if not self.begin.learners and all(len(group) == 1 for group in self.view.holders):
            return ()
        return tuple(sorted((m, path) for m, path in self._paths.items() if not self.is_validation(m)))

    def queue_length(self, stage: int) -> int:
        """Tasks known for a stage and not finished, for watchers and for routing by expected finish time."""
        waiting = len(self._waiting.get(stage, ()))
        return waiting + (len(self._queue) + len(self._running) if len(self.stages) == 1 else 0)

    def accumulated_of(self, stage: int) -> list[tuple[int, int]]:
        if self.stages == (stage,):
            return [*self.accumulated]
        return [(m, visit) for m, visit in self.accumulated if self.route(m)[visit] == stage]

    # -- scheduling

    @property
    def _stopped(self) -> bool:
        """Nothing of the attempt counts any more. Where we only say that a part of it is a lie, and have all weights,
        it may go on in another view, and we may be asked about others."""
        if self.poison is None:
            return False
        return not self.poison.distance or not self._installed.keys() >= self._required

    @property
    def can_advance(self) -> bool:
        """There is something to admit, or a task that compute has room for. Asked at every event, so it is cheap."""
        if self._stopped:
            return False
        return bool(self._to_admit) or (len(self._running) < COMPUTE_AHEAD and len(self._queue) > 0)

    def advance(self, now: float, admits: bool) -> list[Effect]:
        """Give tasks to compute, and admit what the window allows, if `admits`: a path that is chosen after the leader
        was told of our paths would not be repaired."""
        if self._stopped:
            return []
        effects: list[Effect] = []
        while admits and self._to_admit and len(self._inflight) < self.begin.window and HEAD in self._installed:
            self._admit(self._to_admit.pop())
        if not self._running:
            self._pace.started(now)
        while len(self._running) < COMPUTE_AHEAD and len(self._queue):
            task = self._with_neighbours(self._saved.decide(self._queue.take()))
            self._running.append(task)
            effects.append(Compute(task))
        return effects

    def _with_neighbours(self, task: Task) -> Task:
        """The task, and in it the visits that follow at once: those of our neighbouring block stages on one device.

        The head stays by itself, since it takes another time than a block stage, and its pace is told. A visit whose
        input or gradient has been here is not done again: whoever is new on a path does only what is missing.
        """
        if not isinstance(task, Forward | Backward) or task.stage == HEAD:
            return task
        step = 1 if isinstance(task, Forward) else -1
        onward: list[int] = []
        path, visited, visit = self._paths.get(task.microbatch, ()), self.route(task.microbatch), task.visit + step
        while path and path[visit] == self.me and visited[visit] != HEAD and self._follows(task, visited[visit], visit):
            onward.append(visited[visit])
            visit += step
        if not onward:
            return task
        if not self.is_validation(task.microbatch):
            self._joined.update((task.microbatch, at) for at in range(task.visit, visit, step))
        return replace(task, onward=tuple(onward))

    def _follows(self, task: Forward | Backward, stage: int, visit: int) -> bool:
        """What is not saved is computed again from a tensor that is here, so that only a validation goes on without."""
        key, device = (task.microbatch, visit), self._installed.get(task.stage)
        if self._installed.get(stage, -1) != device:
            return False
        if isinstance(task, Forward):
            missing = not self._has((*key, FORWARD))
            return missing and (task.validation or (task.save and self._saved.take(key, stage)))
        return key in self._forwarded and key in self._saved and not self._has((*key, BACKWARD))

    def _admit(self, microbatch: int) -> None:
        path = choose_path(self.view, self.route(microbatch), self._inflight.values(), self._others, self.me)
        self._admissions.admit(microbatch, path)
        self._start(microbatch, path)

    def _start(self, microbatch: int, path: Path) -> None:
        self._inflight[microbatch] = self._paths[microbatch] = path
        self._has_come((microbatch, 0, FORWARD))
        self._add_forward(microbatch, 0)

    def _add_forward(self, microbatch: int, visit: int) -> None:
        begin, validation = self.begin, self.is_validation(microbatch)
        stage = self.route(microbatch)[visit]
        handle = self.holds.handle(READ, (microbatch, visit, FORWARD))
        if visit == self.last and not validation:
            self._add(Backward(stage, begin.step, begin.attempt, microbatch, visit, None, handle, False))
        else:
            self._add(Forward(stage, begin.step, begin.attempt, microbatch, visit, handle, True, validation))

    def _add(self, task: Task) -> None:
        if task.stage in self._installed:
            self._queue.add(task)
        else:
            self._waiting.setdefault(task.stage, []).append(task)

    # -- compute results

    def on_done(self, done: Done, now: float, leader: Peer) -> list[Effect]:
        """A task of this attempt is finished."""
        task = done.task
        assert not isinstance(task, TrialTask)
        if isinstance(task, Reduce) and task.group:
            if not self.groups.finished(task):
                return []
        elif task not in self._running:
            return [] if done.output is None else [Release((done.output,))]
        else:
            self._running.remove(task)
            self._pace.done(task, now)
        if isinstance(task, Recount | Weigh):
            return self._on_checked(task, done, now)
        if done.fault:
            inside = done.faulty not in (-1, task.stage)
            giver = done.giver or (None if inside else self._giver(task))
            stage = done.faulty if inside else task.stage
            self.give_up(done.fault, stage, -1 if isinstance(task, Reduce) else task.microbatch, giver)
            assert self.poison is not None
            effects: list[Effect] = [] if done.output is None else [Release((done.output,))]
            return [*effects, Send(leader, self.poison, None)]
        if isinstance(task, Forward):
            return self._on_forward(task, done, now)
        if isinstance(task, Backward):
            return self._on_backward(task, done, now)
        self.results[task.stage] = StageResult(task.stage, done.value, done.gradient, task.group)
        self._relayed.update(dict(done.relayed))
        return self._go_on_checking()

    def give_up(
        self, reason: str, stage: int = HEAD, microbatch: int = -1, giver: Peer | None = None, distance: float = 0.0
    ) -> None:
        """This attempt cannot be finished here; the leader is told (rule 25)."""
        self.poison = self._poisoned(reason, stage, microbatch, giver, distance)

    def accuse(self, stage: int, holder: Peer, reason: str, distance: float) -> Poisoned:
        """What the leader is told of who lent us other weights of the stage than it works with."""
        return self._poisoned(reason, stage, -1, holder, distance)

    def _poisoned(self, reason: str, stage: int, microbatch: int, giver: Peer | None, distance: float) -> Poisoned:
        begin = self.begin
        return Poisoned(
            begin.lineage, self.view.number, begin.step, begin.attempt, stage, microbatch, reason, giver, distance
        )

    def source_of(self, task: Task) -> Source | None:
        """Where the tensor comes from that the task turns into another one: of a backward pass the gradient, but at the
        last visit. None: from nobody, or from ourselves."""
        if not isinstance(task, Forward | Backward):
            return None
        back = isinstance(task, Backward) and task.visit != self.last
        direction = BACKWARD if back else FORWARD
        path, visit = self._paths.get(task.microbatch, ()), maker_of(task.visit, direction)
        if not 0 <= visit < len(path) or path[visit] == self.me:
            return None
        return Source(path[visit], self.route(task.microbatch)[visit], visit, direction)

    def _giver(self, task: Task) -> Peer | None:
        source = self.source_of(task)
        return source.maker if source is not None else None

    def _on_forward(self, task: Forward, done: Done, now: float) -> list[Effect]:
        microbatch, visits = task.microbatch, task.visits
        effects: list[Effect] = []
        if task.validation:
            effects += self._has_read((microbatch, task.visit, FORWARD))
            if microbatch not in self._paths:  # the validation was dropped meanwhile
                return effects + _release(() if done.output is None else (done.output,))
            if task.visit == self.last:
                self._forwarded.add((microbatch, task.visit))
                self._scores[microbatch] = done.value
                self._inflight.pop(microbatch, None)
                return effects
        self._passed_within(task, FORWARD)
        for visit in visits:
            self._forwarded.add((microbatch, visit))
            if (microbatch, visit, BACKWARD) in self._arrived and not task.validation:
                self._add_backward(microbatch, visit)
        assert done.output is not None
        return effects + self._keep(microbatch, visits[-1] + 1, FORWARD, done.output, now)

    def _passed_within(self, task: Forward | Backward, direction: Direction) -> None:
        """Tensors that one visit of the task made for the next one: made, and here."""
        for maker, visit in zip(task.stages, task.visits[1:]):
            self._has_come((task.microbatch, visit, direction))
            self._line.made(maker, direction, False)

    def _add_backward(self, microbatch: int, visit: int) -> None:
        begin, key = self.begin, (microbatch, visit)
        stage = self.route(microbatch)[visit]
        gradient = self.holds.handle(READ, (microbatch, visit, BACKWARD))
        made_from = self.holds.handle(READ, (microbatch, visit, FORWARD))
        recompute = key not in self._saved
        self._add(Backward(stage, begin.step, begin.attempt, microbatch, visit, gradient, made_from, recompute))

    def _on_backward(self, task: Backward, done: Done, now: float) -> list[Effect]:
        microbatch, visits = task.microbatch, task.visits
        self._passed_within(task, BACKWARD)
        effects: list[Effect] = []
        for visit in visits:
            self._saved.used((microbatch, visit))
            self.accumulated.add((microbatch, visit))
            self._unfinished.discard((microbatch, visit))
            effects += self._has_read((microbatch, visit, FORWARD)) + self._has_read((microbatch, visit, BACKWARD))
        if task.visit == self.last:
            self.loss_sum += done.value
            self.tokens += done.tokens
        if task.visit == 0:
            self._inflight.pop(microbatch, None)
        else:
            assert done.output is not None
            effects += self._keep(microbatch, visits[-1] - 1, BACKWARD, done.output, now)
        for stage in task.stages:
            effects += self._reduce_if_complete(stage, now)
        return effects

    def _reduce_if_complete(self, stage: int, now: float) -> list[Effect]:
        """Rule 23. A group of one has the step's set; another adds up what its members have."""
        if not self.groups.alone(stage):
            if self._has_more(stage):
                return []
            return [*self.groups.tell(stage, self.accumulated_of(stage)), *self._reduce_group(stage, now)]
        if stage not in self._reducing and self.groups.expected(stage) <= self.accumulated:
            self._reducing.add(stage)
            self._add(Reduce(stage, self.begin.step, self.begin.attempt))
        return []

    def _has_more(self, stage: int) -> bool:
        """We know of visits of the stage that are not done."""
        return any(self.route(m)[visit] == stage for m, visit in self._unfinished)

    def _has_told(self, stage: int) -> bool:
        """Our group knows of all that we have of a stage, and nothing more of it is under way. Else somebody says that
        it has done what we do."""
        told = self.groups.visits_of(stage, self.me)
        return told == {*self.accumulated_of(stage)} and not self._has_more(stage)

    def _reduce_group(self, stage: int, now: float) -> list[Effect]:
        """It waits for others, so it takes no place of a task that compute can do."""
        if not self._has_told(stage):
            return []
        check = self._check if self._check is not None and stage in self._check.stages else None
        task = self.groups.due(stage, now, check.weighs if check is not None else None)
        if task is None:
            return []
        if check is not None:
            check.told(stage, self.groups.visits_of(stage, check.of), now)
        return [Compute(task), *self._go_on_checking()]

    # -- what another did, done again

    def try_out(self, lot: Lot, now: float) -> list[Effect]:
        """Rule 48: what was lent to us is here, in the middle of the step, in which no check is under way."""
        self._check = Check(self.me, lot, self.view, self.begin, self.settings, self.holds)
        for stage in self._check.stages:
            if lot.rebuilt >= 0:  # its group tells us nothing, but we have met all microbatches
                self._check.told(stage, self._visits_by(stage, lot.of), now)
            elif stage in self.groups.reducing:
                self._check.told(stage, self.groups.visits_of(stage, lot.of), now)
        return self._go_on_checking()

    def judge(self, judge: Judge, now: float) -> list[Effect]:
        """Rule 50: our leader wants to know of what another one did. A check of our own is nothing against that."""
        begin = self.begin
        if (judge.step, judge.attempt) != (begin.step, begin.attempt) or self.me in (judge.accuser, judge.accused):
            return []
        if judge.beside >= 0:
            return self._errands.take(judge, now)
        if self._check is not None and self._check.judge is not None and not self._check.over:
            if judge != self._check.judge and judge not in self._to_judge:
                self._to_judge = [*self._to_judge, judge][-JUDGED_MAX:]
            return []
        dropped = [] if self.may_check else self._stop_checking("our leader wants to know of another one")
        return [*dropped, *self.try_out(lot_of(judge), now)]

    def _verdict(self, judge: Judge, guilty: bool | None, reason: str) -> Effect:
        verdict = Verdict(judge, guilty, reason[:REASON_MAX])
        return Send(self.view.leader, verdict, None)

    def who_did(self, stage: int) -> list[Peer]:
        """Others that do the step's visits of a stage, by the paths that we have met."""
        routes = [(self.route(m), path) for m, path in self._paths.items() if not self.is_validation(m)]
        every = {peer for route, path in routes for at, peer in zip(route, path) if at == stage}
        return sorted(every - {self.me})

    def _visits_by(self, stage: int, peer: Peer) -> list[tuple[int, int]]:
        """Those that the peer does, by the same paths."""
        return [
            (m, visit)
            for m, path in sorted(self._paths.items())
            for visit, at in enumerate(self.route(m))
            if at == stage and path[visit] == peer and not self.is_validation(m)
        ]

    def _go_on_checking(self) -> list[Effect]:
        """Ask for the tensors of the next visits of whom we check; compare, when all is here."""
        check = self._check
        if check is None or check.over or check.finding is not None:
            return []
        asked = check.ask()
        if asked is None:
            return self._stop_checking(f"nobody else can show what {check.of} was given")
        effects, tasks = asked
        return effects + self._do_again([*tasks, *check.to_weigh(self.results)])

    def _do_again(self, tasks: Iterable[Task]) -> list[Effect]:
        for task in tasks:
            if isinstance(task, Recount) and task.rebuilt >= 0:
                self._queue.add(task)
                continue
            if len({self._installed.get(stage) for stage in task.stages}) > 1:
                return self._stop_checking("the stages lie on several devices here")
            self._add(task)
        return []

    def _on_checked(self, task: Recount | Weigh, done: Done, now: float) -> list[Effect]:
        check = self._check
        if check is None or check.over or not check.asked_for(task):
            return []
        if check.finding is not None:  # one is enough
            return _release(check.done(task, now)) if isinstance(task, Recount) else []
        if done.fault:
            if check.trial:
                check.refuted, check.distance = done.fault, 1.0
            unproven = check.judge is not None and done.fault.startswith(NOT_SHOWN)
            return self._stop_checking(done.fault, guilty=False if unproven else None)
        if done.hidden and check.judge is not None and check.judge.hides:
            return self._stop_checking(done.hidden, guilty=True)
        effects = list[Effect]()
        if isinstance(task, Recount):
            effects = _release(check.done(task, now))
            what = f"passed on of microbatch {task.microbatch}"
            right = done.value <= self.settings.limit(self.settings.tensor_tolerance, len(task.stages))
        else:
            what, right = "gave to its sum, or made of it,", check.agrees(task.stage, done.value, now)
        if right:
            effects += [] if isinstance(task, Weigh) else self._go_on_checking()
            effects += self._hides(check.of, task.stage, done.hidden) if done.hidden and check.judge is None else []
            if check.judge is not None and check.over and not check.given_up:
                effects += self._ask_first(check, Finding(task, done.value, "it is what its visits give", True), now)
            return effects
        reason = f"what {check.of} {what} is {done.value:.2g} of its size away from what its visits give"
        return effects + self._ask_first(check, Finding(task, done.value, reason), now)

    def _ask_first(self, check: Check, finding: Finding, now: float) -> list[Effect]:
        question = check.question(finding, now)
        return self._found(check, finding) if question is None else [question]

    def _found(self, check: Check, finding: Finding) -> list[Effect]:
        """Who was asked has not shown that it knows anything else than we were shown."""
        if check.trial:
            check.refuted, check.distance = finding.reason, finding.distance
            return self._stop_checking(finding.reason)
        if check.judge is not None:
            return self._stop_checking(finding.reason, guilty=not finding.agrees)
        self.give_up(finding.reason, finding.task.stage, finding.microbatch, check.of, finding.distance)
        assert self.poison is not None
        self.showing.shown = check.shown
        return [*self._stop_checking(finding.reason), Send(self.view.leader, self.poison, None)]

    def _hides(self, peer: Peer, stage: int, why: str) -> list[Effect]:
        """It shows us nothing of what it made its piece of. Others are asked about it, and our attempt goes on: a line
        may be broken."""
        reason = f"it does not show what it made its piece of the sum of: {why}"[:REASON_MAX]
        note = Note("check", f"{peer}, which is checked in step {self.begin.step}: {reason}", (("peer", peer.id),))
        return [note, Send(self.view.leader, self._poisoned(reason, stage, UNSHOWN, peer, 1.0), None)]

    def _not_shown(self, check: Check, now: float) -> list[Effect]:
        """Somebody beside does not show us what it gave to whom we check, or got from there. Others look at that."""
        effects = list[Effect]()
        for stage, microbatch, at in check.not_shown(now) if check.judge is None and not check.trial else ():
            reason = f"it does not show the tensors of its visit {at} of microbatch {microbatch}, beside {check.of}"
            said = self._poisoned(reason, stage, microbatch, check.of, 1.0)
            effects.append(Send(self.view.leader, replace(said, beside=at), None))
        if effects:
            about = f"not all is shown for the check of {check.of} in step {self.begin.step}: others look at that"
            effects.append(Note("check", about, (("peer", check.of.id),)))
        return effects

    def on_given(self, sender: Peer, given: WasGiven) -> list[Effect]:
        """Who was asked answers what it knows; or one of a group shows by whose word it has what we have."""
        if any(word.of_path for word in given.other):
            fresh = (given.step, given.attempt) == (self.begin.step, self.begin.attempt)
            return self._look_at_paths(given.other) if fresh else []
        check = self._check
        proof = check.answered(sender, given) if check is not None else None
        if check is None or check.finding is None or proof is None:
            return []
        return self._deceived(check, proof) if proof else self._found(check, check.finding)

    def disbelieve(self, liar: Peer) -> None:
        """It shows other tensors than it gave: what we said of another one may be due to that."""
        if self.poison is not None and self.poison.distance and liar in self.showing.shown.makers:
            self.poison = None

    def _deceived(self, check: Check, proof: tuple[SealedTensor, ...]) -> list[Effect]:
        """Somebody showed us another tensor than it gave."""
        one, check.deceived = proof[0], True
        ended = self._stop_checking(f"{one.maker} shows another tensor than it gave: {_signed_two(one)}")
        return [*ended, *self.convict_of_tensor(proof)]

    def convict_of_tensor(self, proof: tuple[SealedTensor, ...]) -> list[Effect]:
        """All may see that one peer signed both, of one place of this attempt."""
        return self._convict(proof, _signed_two(proof[0]))

    def _convict(self, proof: tuple[SealedTensor, ...], reason: str) -> list[Effect]:
        """All may see that one peer signed both."""
        one = proof[0]
        stage = HEAD if one.of_path else self.route(one.microbatch)[maker_of(one.visit, one.direction)]
        told = Convicted(self.me, self._poisoned(reason, stage, one.microbatch, one.maker, 1.0), (), proof)
        return [Send(peer, told, None) for peer in self.view.members() if peer != one.maker]

    def _stop_checking(self, why: str, guilty: bool | None = None) -> list[Effect]:
        """`guilty`: what our leader hears of it, where it asked."""
        assert self._check is not None
        self._queue.drop(lambda task: isinstance(task, Recount | Weigh))
        about = f"the check of {self._check.of} in step {self.begin.step} ends: {why}"
        told = [] if self._check.judge is None else [self._verdict(self._check.judge, guilty, why)]
        return [*_release(self._check.give_up()), Note("check", about, (("peer", self._check.of.id),)), *told]

    def wants_to_see(self, sender: Peer, boundary: Boundary) -> bool:
        """It is for us, or one that we asked for."""
        wanted = self._check is not None and self._check.wants(sender, boundary)
        return wanted or self._errands.wants(sender, boundary) or self.me in boundary.path[boundary.visit :][:1]

    def _on_shown(self, sender: Peer, boundary: Boundary, handle: Handle) -> list[Effect]:
        """A tensor that is not for us: one that we asked for."""
        effects = list[Effect]()
        if wanted := self._errands.wants(sender, boundary):
            effects += self._errands.came(sender, boundary, handle)
        if self._check is not None and self._check.wants(sender, boundary):
            return effects + self._do_again(self._check.show(boundary, handle))
        return effects if wanted else [Release((handle,))]

    def on_share(self, sender: Peer, share: Share, now: float) -> list[Effect]:
        """Another of our group says what it has accumulated."""
        if share.stage not in self.stages or not self.groups.on_share(sender, share):
            return []
        told = [*self._tell_by_which_paths(sender, share), *self.groups.tell_held(share.stage)]
        return [*told, *self._reduce_group(share.stage, now)]

    def _tell_by_which_paths(self, sender: Peer, share: Share) -> list[Effect]:
        """It says that it has done visits that we were given. One of us was given them on another path."""
        doubles = (m for m, visit in share.visits if (m, visit, FORWARD) in self._arrived)
        shown = self._admissions.to_show(sender, doubles)
        place = share.lineage, share.view, share.step, share.attempt
        return [Send(sender, WasGiven(*place, (word,)), None) for word in shown]

    def _look_at_paths(self, words: Iterable[SealedTensor]) -> list[Effect]:
        """Others have a microbatch by these words."""
        proof = self._admissions.two_paths(words)
        return self._convict(proof, f"it has admitted microbatch {proof[0].microbatch} on two paths") if proof else []

    def _has_read(self, key: TensorKey) -> list[Effect]:
        """No task reads it any more."""
        return _release(self.holds.let_go(READ, [key]))

    # -- boundary tensors

    def _keep(self, microbatch: int, visit: int, direction: Direction, handle: Handle, now: float) -> list[Effect]:
        """Keep a tensor that we made and send it to the next peer of the path, which may be ourselves."""
        path, begin, number = self._paths[microbatch], self.begin, self.view.number
        place = begin.lineage, number, begin.step, begin.attempt, microbatch, visit, direction
        boundary = Boundary(*place, path, None, self._admissions.word_of(microbatch))
        kept = self.outbox.put(boundary, handle, now)
        self._line.made(self.route(microbatch)[maker_of(visit, direction)], direction, not kept.stored)
        if self.is_validation(microbatch):
            self._passed_on[microbatch, visit] = now
        if kept.stored:
            self._hand_over(kept)
            return []
        return [Send(kept.to, boundary, handle)]

    def _hand_over(self, kept: OwedTensor) -> None:
        """From one stage of ours to another: the outbox keeps what the other reads."""
        key = kept.key
        handle = self.holds.handle(RESEND, key)
        if handle is not None and not self._has(key):
            self._store(key, handle)

    def on_boundary(self, sender: Peer, boundary: Boundary, handle: Handle, relay: str = "") -> list[Effect]:
        """Rule 21: accept a tensor of this attempt from its neighbour on the path, once; acknowledge it every time.
        `relay`: who carried it; what is not of the step itself, or comes again, is not counted."""
        if self.me not in boundary.path[boundary.visit : boundary.visit + 1]:
            return self._on_shown(sender, boundary, handle)
        here = fits(self.me, sender, boundary, self.view, self.begin, self.settings)
        if not here or not self._admissions.allows(boundary):
            return [Release((handle,))]
        if self._paths.get(boundary.microbatch, boundary.path) != boundary.path:
            word = path_word(boundary)
            return [Release((handle,)), *self._look_at_paths(() if word is None else (word,))]
        effects: list[Effect] = []
        key = key_of(boundary)
        if self._has(key) and self._errands.wants(sender, boundary):  # it was ours, and its maker shows it again
            effects += self._errands.came(sender, boundary, handle)
        elif self._has(key):
            effects.append(Release((handle,)))
        elif self.settings.checks and boundary.seal is None:
            return self._refuse(sender, boundary, handle)
        else:
            self._paths.setdefault(boundary.microbatch, boundary.path)
            self._admissions.came(boundary)
            if self.settings.checks and not self.is_validation(boundary.microbatch):
                effects += self.showing.came(boundary, handle)
                if self._check is not None and self._check.wants(sender, boundary):
                    effects += self._do_again(self._check.show(boundary, handle))
            self._store(key, handle)
            if relay and not self.is_validation(boundary.microbatch):
                forward = boundary.direction is FORWARD
                self._relayed[relay] += self.settings.forward_bytes if forward else self.settings.backward_bytes
        begin = self.begin
        effects.append(Send(sender, Stored(begin.lineage, begin.step, begin.attempt, *key), None))
        return effects

    def _refuse(self, sender: Peer, boundary: Boundary, handle: Handle) -> list[Effect]:
        """It is for us, and its maker has not signed it."""
        if self.poison is not None:
            return [Release((handle,))]
        stage = self.route(boundary.microbatch)[boundary.visit]
        self.give_up("a tensor that its maker has not signed", stage, boundary.microbatch, sender)
        assert self.poison is not None
        return [Release((handle,)), Send(self.view.leader, self.poison, None)]

    def _has(self, key: TensorKey) -> bool:
        return key in self._arrived

    def _has_come(self, key: TensorKey) -> None:
        microbatch, visit, direction = key
        self._arrived.add(key)
        if direction is FORWARD and not self.is_validation(microbatch):
            self._unfinished.add((microbatch, visit))

    def _store(self, key: TensorKey, handle: Handle) -> None:
        microbatch, visit, direction = key
        self._has_come(key)
        self.holds.hold(READ, key, handle)
        if direction is FORWARD:
            self._add_forward(microbatch, visit)
        elif (microbatch, visit) in self._forwarded:
            self._add_backward(microbatch, visit)

    def on_stored(self, sender: Peer, stored: Stored, now: float) -> list[Effect]:
        """An acknowledgement. A validation activation is needed no longer; the step's own are kept for repairs."""
        kept = self.outbox.stored(sender, stored, now) if stored.attempt == self.begin.attempt else None
        if kept is None:
            return []
        self._line.acknowledged(sender, kept.made, kept.sent > kept.made, now)
        if not self.is_validation(stored.microbatch):
            return []
        key = stored.microbatch, stored.visit
        return _release(self.outbox.drop(lambda one: (one.boundary.microbatch, one.boundary.visit) == key))

    def beat(self, now: float, linked: Collection[Peer] = ()) -> list[Effect]:
        """Every heartbeat: say again what may have been lost. `linked`: to whom we have a link."""
        effects = [*self.outbox.resend_late(now), *self.groups.tell_again(), *self._errands.beat(now, linked)]
        if self._check is not None and not self._check.over:
            effects += self._not_shown(self._check, now)
            effects += self._late(self._check) if self._check.late(now) else self._check.ask_again()
        if self._to_judge and self.may_check:
            effects += self.judge(self._to_judge.pop(0), now)
        return effects

    def _late(self, check: Check) -> list[Effect]:
        if check.finding is not None:  # it had the time to show that it was given something else
            return self._found(check, check.finding)
        stage = check.unshown
        hidden = [] if stage is None else self._hides(check.of, stage, "nothing came in time")
        return [*self._stop_checking("it takes too long"), *hidden]

    def waits(self, before: float, still: bool) -> tuple[Wait, ...]:
        """What others have from us since before then, and we wait for what they make of it: of each microbatch what is
        furthest on its path. `still`: nothing has moved here since then, so that our groups may be waited for, too."""
        found = furthest((*self._waits_of_step(before), *self._waits_of_validation(before)), self.last)
        groups = [wait for stage in self.stages if still for wait in self._waits_of_group(stage)]
        return (*found.values(), *groups[:WAITS_ON_GROUPS_MAX])

    def _waits_of_step(self, before: float) -> Iterator[Wait]:
        for kept in self.outbox.given(before):
            microbatch, visit, direction = kept.key
            forward = direction is FORWARD and (microbatch, visit - 1, BACKWARD) not in self._arrived
            if not self.is_validation(microbatch) and (forward or not kept.stored):
                yield Wait(microbatch, visit, direction, kept.to, kept.stored)

    def _waits_of_validation(self, before: float) -> Iterator[Wait]:
        """Nothing comes back to those on the way; who admits it has its last visit, too."""
        for (microbatch, visit), made in self._passed_on.items():
            path, key = self._paths.get(microbatch, ()), (microbatch, visit, FORWARD)
            back = path and path[self.last] == self.me and (microbatch, self.last, FORWARD) in self._arrived
            if made < before and path and path[visit] != self.me and not back:
                yield Wait(*key, path[visit], not self.outbox.owes(key))

    def _waits_of_group(self, stage: int) -> list[Wait]:
        if self.groups.alone(stage) or not self._may_reduce(stage):
            return []
        return [] if self._has_more(stage) else self.groups.waits(stage)

    def resend_to(self, peer: Peer, now: float) -> list[Effect]:
        """A new link to the peer: what was on the old one may be lost."""
        return self.outbox.resend(now, lambda kept: kept.to == peer)

    def continue_in(self, view: View, begin: Begin, now: float) -> list[Effect]:
        """The same attempt goes on in a new view (rules 18 iii, 22).

        Visits of the dead belong to others now. A group of several adds up anew, since what the dead accumulated is
        done again; one that was alone and stays alone has what it had.
        """
        before, self.groups = self.groups, Groups(self.me, view, begin, self.settings)
        dropped = [] if self.may_check else self._stop_checking("others hold the stages now")
        self._to_judge.clear()
        self._check, self.view, self.begin = None, view, begin
        self.showing.continue_in(view, begin, self.groups)
        dropped += self._errands.continue_in(view, begin, self.groups)
        self._admissions.continue_in(view, begin)
        mine = frozenset(self.stages)
        self._required = mine & {*view.stages_of(self.me)} if self.me in view.members() else mine
        if self.poison is not None:
            self.poison = replace(self.poison, view=view.number)
        for stage in self.stages:
            if not (before.alone(stage) and self.groups.alone(stage)):
                self.results.pop(stage, None)
                self._reducing.discard(stage)
        effects = dropped + (self._drop_validation() if not begin.evaluate else [])
        self._paths.update(begin.paths)
        self._inflight = {m: self._paths[m] for m in self._inflight}
        if any(self._paths[m][visit] != self.me for m, visit in self._joined if m in self._paths):
            self.give_up("a stage here is another's now, and what its neighbours here made for it was not kept")
        ours = self.outbox.reroute(view.number, self._paths, now)
        for microbatch, path in begin.paths:
            if path[0] == self.me and not self._has((microbatch, 0, FORWARD)):
                self._start(microbatch, path)
        self._to_admit = self._share()
        for kept in ours:
            self._hand_over(kept)
        effects += self.outbox.resend(now, lambda kept: True)
        for stage in self.stages:
            effects += self._reduce_if_complete(stage, now) if self._may_reduce(stage) else []
        return effects

    def _may_reduce(self, stage: int) -> bool:
        return self.begin.training and not self.begin.skip and stage not in self.results

    def _drop_validation(self) -> list[Effect]:
        """It is made up for at another step."""
        mine = {m for m in self._paths if self.is_validation(m)}
        if not mine:
            return []
        running = {(task.microbatch, task.visit, FORWARD) for task in self._running if isinstance(task, Forward)}
        dropped = sorted(key for key in self._arrived if key[0] in mine)
        self._queue.drop(lambda task: isinstance(task, Forward) and task.validation)
        for stage, tasks in self._waiting.items():
            self._waiting[stage] = [task for task in tasks if not (isinstance(task, Forward) and task.validation)]
        self._passed_on.clear()
        for m in mine:
            del self._paths[m]
            self._inflight.pop(m, None)
        self._arrived.difference_update(dropped)
        self._scores.clear()
        unread = self.holds.let_go(READ, [key for key in dropped if key not in running])
        return _release(unread + self.outbox.drop(lambda kept: kept.boundary.microbatch in mine))


def _signed_two(one: SealedTensor) -> str:
    return f"it has signed two different tensors of microbatch {one.microbatch} for visit {one.visit}"


def _release(handles: tuple[Handle, ...]) -> list[Effect]:
    return [Release(handles)] if handles else []
