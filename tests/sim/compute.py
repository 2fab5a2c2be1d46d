"""A compute process whose tensors are only their own history.

Weights are a version and a number that mixes in everything that ever went into them; a boundary tensor knows which
attempt, microbatch, visit and weights made it. So the world sees at once when a gradient counts twice, when a stage
computes on other weights than its step's base, or when two lineages mix.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

from ftnode.protocol.words.effects import (
    NOT_DONE,
    Apply,
    Backward,
    Course,
    Forward,
    Recount,
    Reduce,
    Retrace,
    Sample,
    Task,
)
from ftnode.protocol.words.settings import Settings
from ftnode.protocol.words.types import Attempt, Handle, Peer, Version
from tests.sim.checks import Ledger, Violation


class Tensor(NamedTuple):
    """A boundary tensor: what it is, which weights version its maker had, and a number for everything before it."""

    gradient: bool
    step: int
    attempt: Attempt
    microbatch: int
    visit: int
    commit: str
    chain: int
    scale: float = 1.0
    """Of its norm; a liar's may be another."""
    turned: bool = False
    """An activation that points elsewhere, as a liar's may."""


class Weights(NamedTuple):
    version: Version
    history: int


class Reduction(NamedTuple):
    attempt: Attempt
    step: int
    chain: int
    commit: str
    finite: bool
    parts: dict[tuple[int, int], int]


Gradients = dict[tuple[int, int], int]
"""(microbatch, visit) to what was accumulated for it."""


class Result(NamedTuple):
    output: Tensor | None
    value: float
    tokens: int
    gradient: str
    fault: str
    faulty: int = -1
    """The stage of a fault, where a task has several."""
    received: float = -1.0
    """The norm of what it was given."""
    way: tuple[int, ...] = ()
    """Which way that points, where it is an activation."""
    hidden: str = ""
    """Why it is not seen what a peer made its piece of a sum of."""


@dataclass(slots=True)
class Poison:
    """The task of (step, microbatch, visit) yields a non-finite number, `tries` times."""

    step: int
    microbatch: int
    visit: int
    backward: bool
    tries: int


NOTHING = Result(None, 0.0, 0, "", "")
TOKENS = 64


WITHIN: Handle = -1
"""Of what one visit of a task makes for the next one."""


@cache
def stages_on(stages: int, swapped: bool, omitted: tuple[int, ...]) -> tuple[int, ...]:
    """0, 1 .. S, 0; on a swapped route 1 and 2 change places, and S-1 and S. Without those that are left out."""
    places = {1: 2, 2: 1, stages - 1: stages, stages: stages - 1} if swapped else {}
    whole = (places.get(visit, visit) for visit in range(stages + 1))
    return (*(stage for stage in whole if stage not in omitted), 0)


def norm_of(tensor: Tensor) -> float:
    """It grows a little with each step, and has a heavy tail: one in ten thousand is five times as large as most."""
    draw = (tensor.chain % 65_521 + 1) / 65_521
    return float(tensor.scale * 2.0 ** (0.02 * tensor.step) / draw**0.25)


def norm_received(task: Forward | Backward, tensors: dict[Handle, Tensor]) -> float:
    gradient = task.gradient if isinstance(task, Backward) else None
    handle = task.input if gradient is None else gradient
    return -1.0 if handle is None else norm_of(tensors[handle])


def way_received(task: Forward | Backward, tensors: dict[Handle, Tensor]) -> tuple[int, ...]:
    """Much the same for all activations of a stage, and a twentieth of them a right angle away."""
    if task.input is None or (isinstance(task, Backward) and task.gradient is not None):
        return ()
    tensor = tensors[task.input]
    sign, odd = -1 if tensor.turned else 1, tensor.chain % 20 == 0
    return (40 * sign, tensor.chain % 31 - 15, 40 if odd else 0)


def as_made(made: Tensor) -> Tensor:
    """What an honest process passes on."""
    return made


def as_accumulated(gradients: dict[tuple[int, int], int]) -> dict[tuple[int, int], int]:
    """What an honest process trains with."""
    return gradients


COURSES = 64
"""Steps of which a holder knows what it trained with."""


def usual_score() -> float:
    """Nats per token."""
    return 3.0


class Compute:
    """One compute process. Raises Violation when the core asks for what no compute process may be asked for."""

    __slots__ = ("accumulated", "begun_in", "ledger", "lent", "lent_falsely", "lies", "lineage", "made_of_lies",
                 "microbatches", "on_copies", "owner", "poisons", "recounted", "reduced", "saved", "score", "stages",
                 "swap", "trained_in", "trained_with", "trains", "tried", "watched", "weights")  # fmt: skip

    def __init__(self, owner: str, settings: Settings, ledger: Ledger, poisons: list[Poison]) -> None:
        self.owner = owner
        self.stages = settings.stages
        self.microbatches = settings.microbatches
        self.swap = settings.swap
        self.watched = settings.checks > 0
        self.ledger = ledger
        self.poisons = poisons
        self.lies: Callable[[Tensor], Tensor] = as_made
        """What it passes on instead of what its visits give."""
        self.trains: Callable[[Gradients], Gradients] = as_accumulated
        """What it trains a stage with that it holds alone, instead of what its visits gave."""
        self.score: Callable[[], float] = usual_score
        """Of a validation."""
        self.lineage = ""
        """Of the view that the owner is in; the world keeps it up to date."""
        self.begun_in = ""
        """The lineage of the attempt that the owner works on; the world keeps it up to date."""
        self.clear()

    def clear(self) -> None:
        """The process died: everything in it is gone."""
        self.weights: dict[int, Weights] = {}
        self.lent_falsely: set[int] = set()
        """Stages that the owner learns, with weights that their lender does not work with."""
        self.lent: dict[int, dict[int, Weights]] = {}
        """By stage that was made of others' weights, what was lent of which, until a step is made with it."""
        self.made_of_lies: set[int] = set()
        """Stages that were made of weights that their lender does not work with."""
        self.accumulated: dict[tuple[int, Attempt], Gradients] = {}
        self.saved: dict[tuple[Attempt, int, int], int] = {}
        self.reduced: dict[int, Reduction] = {}
        self.recounted: dict[tuple[Peer, int, Attempt], Gradients] = {}
        """What others did of a stage in an attempt, done again."""
        self.tried: dict[tuple[int, Version], Gradients] = {}
        """What visits gave that were done again on a copy of a stage, of that version; of one copy at a time."""
        self.on_copies: dict[int, dict[Version, tuple[int, Gradients]]] = {}
        """The same of each stage, of the last two copies, with the step of these visits: of a late trial, if any."""
        self.trained_in: dict[int, dict[int, Gradients]] = {}
        """By stage and step, what its sum was made of, of the last COURSES steps."""
        self.trained_with: dict[int, Gradients] = {}
        """What the last sum of a stage was made of that it was trained with."""

    def full_set(self, stage: int, attempt: Attempt) -> set[tuple[int, int]]:
        """M x visits of a stage: exactly what its reduced gradient must cover."""
        return {
            (microbatch, visit)
            for microbatch in range(self.microbatches)
            for visit, visited in enumerate(self._route(microbatch, attempt))
            if visited == stage
        }

    def _route(self, microbatch: int, attempt: Attempt) -> tuple[int, ...]:
        """Which stages an attempt leaves out is settled by the view that began it."""
        return stages_on(self.stages, self._swapped(microbatch), self.ledger.left_out(self.begun_in, attempt))

    def _swapped(self, microbatch: int) -> bool:
        """Every other microbatch of the step's own; those of a validation never."""
        return self.swap and microbatch < self.microbatches and microbatch % 2 == 1

    def try_copy(self, task: Recount, tensors: dict[Handle, Tensor], copy: Weights | None) -> Result:
        """On a copy that the owner keeps; None: it has none of that version."""
        return NOTHING._replace(value=NOT_DONE) if copy is None else self._recount(task, tensors, copy)

    def perform(self, task: Task, tensors: dict[Handle, Tensor]) -> Result:
        if type(task) is Reduce:
            parts, commit = self.contribution(task, -1)
            return self.reduce(task, self.trains(parts), commit)
        if type(task) is Recount:
            return self._recount(task, tensors)
        assert isinstance(task, Forward | Backward)
        made = self._visit(replace(task, onward=()) if task.onward else task, tensors)
        for stage, visit in zip(task.onward, task.visits[1:]):
            if made.fault:
                break
            assert made.output is not None
            one = replace(task, stage=stage, visit=visit, input=WITHIN, onward=())
            if type(one) is Backward:  # from what was saved, with the gradient that the visit before made
                one = replace(one, gradient=WITHIN, input=None, recompute=False)
            made = self._visit(one, {WITHIN: made.output})
            if made.fault:
                made = made._replace(faulty=stage)
        if self.watched and not made.fault:
            made = made._replace(received=norm_received(task, tensors), way=way_received(task, tensors))
        return made if made.output is None else made._replace(output=self.lies(made.output))

    def _visit(self, task: Forward | Backward, tensors: dict[Handle, Tensor]) -> Result:
        return self._forward(task, tensors) if type(task) is Forward else self._backward(task, tensors)

    def _working_weights(
        self, stage: int, step: int, attempt: Attempt, microbatch: int, visit: int, rebuilt: int = -1,
        copy: Weights | None = None,
    ) -> Weights:  # fmt: skip
        weights = copy or (self.weights.get(stage) if rebuilt < 0 else self.lent.get(rebuilt, {}).get(stage))
        if weights is None:
            raise Violation("I1", f"{self.owner} computes stage {stage}, of which it has no weights")
        if weights.version.step != step - 1:
            raise Violation("I1", f"{self.owner} computes step {step} of stage {stage} on {weights.version}")
        route = self._route(microbatch, attempt)
        if visit >= len(route) or route[visit] != stage:
            raise Violation("I1", f"{self.owner} runs stage {stage} for visit {visit} of microbatch {microbatch}")
        self.ledger.check_base(self.lineage, attempt, step, weights.version)
        return weights

    def _input(self, handle: Handle, tensors: dict[Handle, Tensor], task: Task, want: Tensor) -> Tensor:
        tensor = tensors.get(handle)
        if tensor is None:
            raise Violation("I6", f"{self.owner} uses released handle {handle} for {task}")
        if tensor[:6] != want[:6]:
            raise Violation("I1", f"{self.owner} feeds {tensor} to {task}")
        return tensor

    def _forward(self, task: Forward, tensors: dict[Handle, Tensor]) -> Result:
        stage, step, attempt, microbatch, visit, handle, save, validation = (
            task.stage, task.step, task.attempt, task.microbatch, task.visit, task.input, task.save, task.validation
        )  # fmt: skip
        version, history = self._working_weights(stage, step, attempt, microbatch, visit)
        if (handle is None) != (visit == 0):
            raise Violation("I1", f"{self.owner} runs forward with the wrong input: {task}")
        chain = zlib.crc32(f"{step}/{microbatch}".encode())
        if handle is not None:
            want = Tensor(False, step, attempt, microbatch, visit - 1, version.commit, 0)
            chain = self._input(handle, tensors, task, want).chain
        if self.poisons and self._poisoned(step, microbatch, visit, False):
            return Result(None, 0.0, 0, "", "the activation is not finite")
        if save:
            self.saved[attempt, microbatch, visit] = chain
        if stage == 0 and visit:
            if not validation:
                raise Violation("I1", f"{self.owner} runs the last visit forward alone: {task}")
            return Result(None, self.score(), TOKENS, "", "")
        return Result(
            Tensor(False, step, attempt, microbatch, visit, version.commit, hash((chain, history, visit))),
            0.0,
            0,
            "",
            "",
        )

    def _backward(self, task: Backward, tensors: dict[Handle, Tensor]) -> Result:
        stage, step, attempt, microbatch, visit = task.stage, task.step, task.attempt, task.microbatch, task.visit
        version, history = self._working_weights(stage, step, attempt, microbatch, visit)
        last = stage == 0 and visit > 0
        if (task.gradient is None) != last:
            raise Violation("I1", f"{self.owner} runs backward with the wrong gradient: {task}")
        commit = version.commit
        saved = self.saved.pop((attempt, microbatch, visit), None)
        if last or task.recompute:
            if task.input is not None:
                want = Tensor(False, step, attempt, microbatch, visit - 1, commit, 0)
                saved = self._input(task.input, tensors, task, want).chain
            elif visit == 0:
                saved = zlib.crc32(f"{step}/{microbatch}".encode())
        if saved is None:
            raise Violation("I1", f"{self.owner} runs backward without a forward: {task}")
        upstream = 1
        if task.gradient is not None:
            want = Tensor(True, step, attempt, microbatch, visit + 1, commit, 0)
            upstream = self._input(task.gradient, tensors, task, want).chain
        if self.poisons and self._poisoned(step, microbatch, visit, True):
            return Result(None, 0.0, 0, "", "the gradient is not finite")
        chain = hash((upstream, saved, history, visit))
        parts = self.accumulated.setdefault((stage, attempt), {})
        if (microbatch, visit) in parts:
            raise Violation(
                "I1", f"{self.owner} accumulates ({microbatch}, {visit}) of stage {stage} twice in {attempt}"
            )
        parts[microbatch, visit] = chain
        output = Tensor(True, step, attempt, microbatch, visit, commit, chain) if visit else None
        return Result(output, 3.0 if last else 0.0, TOKENS if last else 0, "", "")

    def _recount(self, task: Recount, tensors: dict[Handle, Tensor], copy: Weights | None = None) -> Result:
        """All visits forward, and backward from the gradient that came back to the last of them. Is what the peer
        passed on what comes out?"""
        step, attempt, microbatch = task.step, task.attempt, task.microbatch
        weights = [self._working_weights(stage, step, attempt, microbatch, visit, task.rebuilt, copy)
                   for stage, visit in zip(task.stages, task.visits)]  # fmt: skip
        commit, inputs, last = weights[0].version.commit, list[int](), task.visits[-1]
        chain = zlib.crc32(f"{step}/{microbatch}".encode())
        ends = task.visit == 0, last == len(self._route(microbatch, attempt)) - 1
        compared = task.handed_back is None, task.passed_on is None
        if ends != (task.input is None, task.gradient is None) or compared not in (ends, (True, True)):
            raise Violation("I1", f"{self.owner} does {task} again without what it begins and ends with")
        if task.input is not None:
            want = Tensor(False, step, attempt, microbatch, task.visit - 1, commit, 0)
            chain = self._input(task.input, tensors, task, want).chain
        for (_, history), visit in zip(weights, task.visits):
            inputs.append(chain)
            chain = hash((chain, history, visit))
        upstream = 1
        if task.gradient is not None:
            want = Tensor(True, step, attempt, microbatch, last + 1, commit, 0)
            upstream = self._input(task.gradient, tensors, task, want).chain
        for stage, (_, history), visit, made_of in reversed([*zip(task.stages, weights, task.visits, inputs)]):
            upstream = hash((upstream, made_of, history, visit))
            self._note_recount(task, stage, visit, upstream)
        away = 0.0
        for handle, gradient, visit, right in (
            (task.passed_on, False, last, chain), (task.handed_back, True, task.visit, upstream),
        ):  # fmt: skip
            if handle is not None:
                want = Tensor(gradient, step, attempt, microbatch, visit, commit, 0)
                away = max(away, float(self._input(handle, tensors, task, want).chain != right))
        return NOTHING._replace(value=away)

    def _note_recount(self, task: Recount, stage: int, visit: int, chain: int) -> None:
        if task.copy is None:
            self.recounted.setdefault((task.of, stage, task.attempt), {})[task.microbatch, visit] = chain
            return
        name = stage, task.copy
        self.tried = {name: self.tried.get(name, {}) | {(task.microbatch, visit): chain}}
        copies = self.on_copies.setdefault(stage, {})
        of_step, given = copies.get(task.copy, (task.step, {}))
        given = given if of_step == task.step else {}
        copies[task.copy] = task.step, given | {(task.microbatch, visit): chain}
        self.on_copies[stage] = dict([*copies.items()][-2:])

    def contribution(self, task: Reduce, count: int) -> tuple[Gradients, str]:
        """What was accumulated here for a reduction, `count` visits (-1: any), and on which commit."""
        weights = self.weights.get(task.stage)
        parts = self.accumulated.get((task.stage, task.attempt), {})
        if count >= 0 and len(parts) != count:
            raise Violation("I1", f"{self.owner} brings {sorted(parts)} to {task}")
        if count == 0:
            return {}, ""
        if weights is None or weights.version.step != task.step - 1:
            raise Violation("I1", f"{self.owner} reduces {task} on {weights}")
        return dict(parts), weights.version.commit

    def reduce(self, task: Reduce, parts: Gradients, commit: str) -> Result:
        """Stage the sum of a step's gradients, made on the weights of `commit`."""
        missing = self.full_set(task.stage, task.attempt) ^ set(parts)
        if missing:
            raise Violation(
                "I1", f"{self.owner} reduces stage {task.stage} of {task.attempt} without {sorted(missing)}"
            )
        chain = hash(tuple(sorted(parts.items())))
        finite = not (self.poisons and self._poisoned(task.step, -1, task.stage, True))
        self.reduced[task.stage] = Reduction(task.attempt, task.step, chain, commit, finite, parts)
        if not finite:
            return Result(None, 0.0, 0, "", "the gradient norm is not finite")
        order = zlib.crc32(repr(task.group).encode())  # real sums differ in their last bits when a group adds otherwise
        return Result(None, (chain % 997 + 1) / 100, 0, f"{(chain ^ order) & 0xFFFFFFFFFFFF:x}", "")

    def _poisoned(self, step: int, microbatch: int, visit: int, backward: bool) -> bool:
        for poison in self.poisons:
            where = (poison.step, poison.microbatch, poison.visit, poison.backward)
            if poison.tries and where == (step, microbatch, visit, backward):
                poison.tries -= 1
                return True
        return False

    def apply(self, effect: Apply, reduction: Reduction | None = None) -> None:
        """With the staged gradient, or one that was set aside while the stage's weights were on their way."""
        stage, version, attempt = effect.stage, effect.version, effect.attempt
        weights = self.weights.get(stage)
        if weights is None or version.step != weights.version.step + 1 or version.attempt != attempt:
            raise Violation("I3", f"{self.owner} applies {effect} to {weights}")
        history = weights.history
        if not effect.skipped:
            reduction = reduction or self.reduced.get(stage)
            if reduction is None or reduction[:2] != (attempt, version.step):
                raise Violation("I1", f"{self.owner} applies {effect}, but the reduced gradient is {reduction}")
            if reduction.commit != weights.version.commit:
                raise Violation("I1", f"{self.owner} applies a gradient of {reduction.commit} to {weights.version}")
            if not reduction.finite:
                raise Violation("I7", f"{self.owner} applies a gradient that is not finite: {effect}")
            history = hash((history, reduction.chain))
            self.trained_with[stage] = reduction.parts
            steps = self.trained_in.setdefault(stage, {})
            steps[version.step] = reduction.parts
            steps.pop(version.step - COURSES, None)
        if stage in self.made_of_lies and not effect.skipped:
            raise Violation("I4", f"{self.owner} goes on with stage {stage}, which is made of what nobody works with")
        for lent, had in self.lent.get(stage, {}).items():
            self.lent[stage][lent] = had._replace(version=version)
        if not effect.skipped:
            self.lent.pop(stage, None)
        if stage not in self.lent_falsely:
            self.ledger.applied(self.owner, stage, weights.version, version, effect.skipped, weights.history, history)
        self.weights[stage] = Weights(version, history)

    def drop(self, stage: int) -> None:
        """Its weights, and what it was made of."""
        self.weights.pop(stage, None)
        self.lent.pop(stage, None)
        self.made_of_lies.discard(stage)

    def lose(self, stage: int) -> None:
        """Its gradients; its weights go by themselves."""
        self.accumulated = {key: parts for key, parts in self.accumulated.items() if key[0] != stage}
        self.reduced.pop(stage, None)

    def discard(self, keep: Attempt | None) -> None:
        self.accumulated = {key: parts for key, parts in self.accumulated.items() if key[1] == keep}
        self.saved = {key: chain for key, chain in self.saved.items() if key[0] == keep}
        self.reduced = {stage: item for stage, item in self.reduced.items() if item.attempt == keep}
        self.recounted = {key: parts for key, parts in self.recounted.items() if key[2] == keep}


def needed(task: Task) -> tuple[int, ...]:
    """The stages of ours without which nothing comes of it."""
    if type(task) in (Sample, Retrace, Course) or (type(task) is Recount and task.copy is not None):
        return ()
    return (task.rebuilt,) if type(task) is Recount and task.rebuilt >= 0 else task.stages


def initial_history(version: Version, stage: int) -> int:
    """Initial weights are a function of (seed, stage); a lineage begins with them."""
    return zlib.crc32(f"{version.commit}/{stage}".encode())
