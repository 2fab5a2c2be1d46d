"""Visits of another holder, done again to see whether it lies (rules 42, 48, 50 and 53).

    recount  its visits of one microbatch, forward and backward → how far what it showed is from what we make
    …        and what they give to the gradient adds up apart from our own
    weigh    sketches of that sum, for the parts of the gradient that the other one gave

On which weights:

- `again`: of stages that we hold.
- `on_lent`: that somebody lent for a stage that we made of them. They are kept in the host's memory until a step is
  made with that stage.
- `on_copy`: of a copy of a stage that is not here (rule 53). It comes by chunks, and is dropped when it has been tried.
  What its visits give to a sample of the gradient is kept, to be compared with what went into the step (`retrace`),
  and what they give to some tiles until the next copy, to be compared with the way of its weights (`course`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from random import SystemRandom
from typing import Final

import torch
from torch import Tensor

from ftnode.models.course import Tile, course, tells, tiles
from ftnode.models.ledger import AttemptId
from ftnode.models.number_check import NumberCheck
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.retrace import Sampled, gathered, retrace
from ftnode.models.stage import Apart, SavedKey, Stage, StageVersion
from ftnode.models.state_plan import StatePlan
from ftnode.models.state_sample import pieces
from ftnode.node.compute.exports import state_of
from ftnode.node.compute.memory_cap import out_of_memory
from ftnode.node.compute.visit_tensors import Activation, VisitTensors
from ftnode.node.reduction.sketch import BLOCK, DISTANCE_MAX, Sketch, relative
from ftnode.protocol.words.effects import NOT_DONE


@dataclass(frozen=True, slots=True)
class Visits:
    """Visits of one microbatch by another peer, `of`: the first one, and those that follow it. The rest are slots: what
    it was given, `input` and `gradient`, and what it made of that, as far as we were shown it."""

    step: int
    attempt: AttemptId
    microbatch: int
    first: int
    of: str
    input: int | None
    gradient: int | None
    passed_on: int | None = None
    handed_back: int | None = None

    def key(self, number: int) -> SavedKey:
        """Of the visit so many behind the first."""
        return self.attempt, self.microbatch, self.first + number


@dataclass(frozen=True, slots=True)
class _Given:
    """By visits that were done again on a copy: a sample [k] of its weights, and of their gradient."""

    stage: int
    version: StageVersion
    key: int
    weights: Tensor
    gradient: Tensor


LATE_AWAY_MAX: Final = 0.8
"""Visits on a copy of some steps before give about what the holder passed on, unless somebody shows what it was not
given: what has nothing to do with it is 1 away and more. Weights that changed too much say nothing."""


@dataclass(frozen=True, slots=True)
class _Tried:
    """A copy of a stage of one peer, `of`, on which visits were done again: its weights and what these gave, as tiles.
    The peer does not know which."""

    version: StageVersion
    of: str
    step: int
    """Whose visits these are: that which the copy is of, or a later one."""
    places: list[Tile]
    weights: list[Tensor]
    gradients: list[Tensor]


class Recounting:
    """Of one compute process. Nothing of it counts for the step."""

    def __init__(
        self, tensors: VisitTensors, new_stage: Callable[[int], Stage], plan: StatePlan, optimiser: OptimiserConfig,
        dtype: torch.dtype, room: Callable[[], int | None],
    ) -> None:  # fmt: skip
        """`new_stage`: for as long as a visit takes; `dtype`: of weights; `room`: bytes that such a stage may take,
        None where what does not fit fails, and ends nothing."""
        self._tensors, self._new_stage = tensors, new_stage
        self._plan, self._optimiser, self._dtype, self._room = plan, optimiser, dtype, room
        self.apart: dict[int, tuple[tuple[AttemptId, str], Apart]] = {}
        """By stage: of which attempt and peer, and what its visits give to the gradient. One at a time."""
        self.lent: dict[int, Mapping[int, Tensor]] = {}
        """By stage that was made of others, the weights [n] of each of these, in the host's memory."""
        self.copies: dict[int, Tensor] = {}
        """The weights [n] of the copy that is to be tried next, by its stage, likewise."""
        self._given: _Given | None = None
        self._tried: dict[int, _Tried] = {}
        """By stage, the newest one."""
        self._courses: dict[int, tuple[StageVersion, StageVersion, float | None]] = {}
        """By stage, from the last copy before that one to it, and what course() found; None: it says nothing."""
        self._draws = SystemRandom()

    def again(self, several: Sequence[Stage], visits: Visits) -> float:
        """How far what they passed on and handed back is from what these stages make, at most, as a share of its norm;
        0 where neither is here. Raises StageFault for numbers that cannot be computed with, Misuse."""
        with ExitStack() as apart:
            for held in {each.index: each for each in several}.values():
                held.require_next(visits.step)
                apart.enter_context(held.counting_apart(self._apart_of(held, visits)))
            try:
                return self._compared(several, visits)
            finally:
                for number, held in enumerate(several):
                    held.forget_saved(visits.key(number))

    def on_lent(self, beside: Stage, lent: int, visits: Visits) -> float:
        """As `again`, on the weights that were lent of stage `lent` when `beside` was made; 0 where these do not fit in
        memory any more."""
        assert beside.version is not None
        return self._beside(lent, self.lent[beside.index][lent], beside.version, visits)

    def on_copy(self, stage: int, version: StageVersion, visits: Visits, key: int) -> float:
        """As `on_lent`, on the copy of a stage of that version; NOT_DONE where none is here, or it does not fit. `key`:
        of the sample of the gradient that is kept."""
        copy = self.copies.pop(stage, None)
        if copy is None:
            return NOT_DONE

        def keep(gradient: Tensor, away: float) -> None:
            if key >= 0:
                self._keep_sample(stage, copy, version, key, gradient)
            if stage and away <= LATE_AWAY_MAX:
                self._keep_tiles(stage, copy, version, visits, gradient)

        return self._beside(stage, copy, replace(version, step=visits.step - 1), visits, keep, NOT_DONE)

    def course(self, stage: int, before: StageVersion, after: StageVersion) -> float | None:
        """Which way the weights went from the copy of `before` to that of `after` (models/course.py). None: they are
        not the last two that were tried, or too little happened between them."""
        first, last, found = self._courses.get(stage, (None, None, None))
        return found if (first, last) == (before, after) else None

    def retrace(self, stage: int, version: StageVersion, key: int, samples: Sequence[Sampled]) -> float:
        """How far what went into the step on the weights of `version` is from what the visits give that were done again
        on their copy (models/retrace.py); 0 where none was. `samples`: before the step, and after it."""
        given, self._given = self._given, None
        if given is None or (given.stage, given.version, given.key) != (stage, version, key):
            return 0.0
        before, after = samples
        drawn = pieces(self._plan, stage, key)
        return retrace(drawn, self._optimiser, version.step + 1, before, after, given.weights, given.gradient)

    def has_lent(self, stage: int, lent: int) -> bool:
        return lent in self.lent.get(stage, {})

    def begin_copy(self, stage: int) -> None:
        """Its weights come from now on; what came of another, and was not tried, goes."""
        self.copies.clear()
        self.copies[stage] = torch.zeros(self._plan.numbers(stage, "weights"), dtype=self._dtype)

    def drop_copy(self) -> None:
        """It did not come whole, or is not tried."""
        self.copies.clear()

    def weigh(
        self, stage: int, attempt: AttemptId, of: str, key: int, parts: Iterable[Iterable[Sequence[int]]]
    ) -> list[Sketch] | None:
        """For each list of ranges [begin, end) of the gradient its sketch; None where nothing of that peer was done
        again. The sum is done with."""
        name, apart = self.apart.pop(stage, (None, None))
        if name != (attempt, of) or apart is None:
            return None
        found = []
        for ranges in parts:
            found.append(Sketch(key))
            for begin, end in ranges:
                for start in range(begin, end, BLOCK):
                    found[-1].add(start, apart.gradient[start : min(start + BLOCK, end)].cpu().numpy())
        return found

    def discard(self) -> None:
        """The attempt is over."""
        self.apart.clear()

    def applied(self, stage: int) -> None:
        """A step was made with it."""
        self.lent.pop(stage, None)

    def drop(self, stage: int) -> None:
        """Its weights are gone."""
        self.lent.pop(stage, None)
        self.apart.pop(stage, None)

    def _compared(self, several: Sequence[Stage], visits: Visits) -> float:
        tensors, stage = self._tensors, several[0].index
        begins, out, back = self._forward_again(several, visits)
        if visits.gradient is not None:
            back = tensors.gradient(visits.gradient, stage)
        handed = self._backward_again(several, visits, back, begins)
        away = 0.0
        if visits.passed_on is not None and out is not None:
            away = _away(tensors.activation(visits.passed_on, stage), out)
        if visits.handed_back is not None and handed is not None:
            away = max(away, _away((tensors.gradient(visits.handed_back, stage), None), (handed, None)))
        return away

    def _forward_again(
        self, several: Sequence[Stage], visits: Visits
    ) -> tuple[Tensor, Activation | None, Tensor | None]:
        """What the first one began with, what the last one passes on, and, instead of that where the last visit is
        among them, the gradient of the loss."""
        tensors, stage = self._tensors, several[0].index
        if not stage and visits.first:
            x, tokens = tensors.activation(visits.input, stage)
        else:
            x, tokens = tensors.read(stage, visits.first, visits.step, visits.microbatch, False, visits.input)
        begins = x
        for number, held in enumerate(several):
            if not held.index and visits.first + number:
                targets_bt = tensors.targets(visits.step, visits.microbatch, False)
                return begins, None, held.learn(visits.key(number), x, targets_bt, tokens).gradient
            task = held.begin_forward(visits.key(number), x, True, tokens if held.index else None)
            made = tensors.within(tensors.activations)
            tensors.activations.encode(task.read_tensor(), tokens, made, task.check)
            x, tokens = tensors.activations.decode(made)
        return begins, (x, tokens), None

    def _backward_again(
        self, several: Sequence[Stage], visits: Visits, back: Tensor | None, begins: Tensor
    ) -> Tensor | None:
        """`back`: as it travels to the last of them, or within the visit of the loss. Answers what the first one hands
        back, as it travels; None at visit 0."""
        tensors = self._tensors
        for number, held in reversed([*enumerate(several)]):
            at = visits.first + number
            if held.index or not at:
                assert back is not None
                back = held.backward(visits.key(number), back, begins if not held.index else None).gradient
            if at:
                assert back is not None
                made, check = tensors.within(tensors.gradients), NumberCheck(held.index)
                tensors.encode_gradient(back, made, visits.step, visits.microbatch, at, check)
                check.read()
                back = tensors.gradients.decode(made)
        return back if visits.first else None

    def _beside(
        self, stage: int, weights: Tensor, version: StageVersion, visits: Visits,
        keep: Callable[[Tensor, float], None] | None = None, lacking: float = 0.0,
    ) -> float:  # fmt: skip
        """On a stage that is there for as long as it takes; `lacking` where there is no memory for it, which costs our
        stages nothing. `keep` gets the gradient [n] of the visits, and what is answered."""
        room = self._room()
        if room is not None and room < self._plan.held_size(stage) + self._plan.size(stage, "weights"):
            return lacking  # its state, its gradient, and that apart
        try:
            away = self.again([self._stage_of(stage, weights, version)], visits)
            if keep is not None:
                keep(self.apart[stage][1].gradient, away)
            return away
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            return lacking
        finally:
            self.apart.pop(stage, None)

    def _keep_sample(self, stage: int, weights: Tensor, version: StageVersion, key: int, given: Tensor) -> None:
        """Of what the visit has given to the gradient. Another of the same copy adds to it."""
        drawn = pieces(self._plan, stage, key)
        gradient = gathered(given, drawn, rows=False).cpu()
        last = self._given
        if last is not None and (last.stage, last.version, last.key) == (stage, version, key):
            gradient += last.gradient
        self._given = _Given(stage, version, key, gathered(weights, drawn, rows=False), gradient)

    def _keep_tiles(self, stage: int, weights: Tensor, version: StageVersion, visits: Visits, given: Tensor) -> None:
        """Of what the visit has given to the gradient, likewise. Visits of a later step take the place of others. With
        the first one of another copy it is known which way the weights went since the last."""
        last, of, step = self._tried.get(stage), visits.of, visits.step
        if last is not None and (last.version, last.of) == (version, of):
            gradients = [place.of(given) for place in last.places]
            if last.step == step:
                gradients = [one + other for one, other in zip(last.gradients, gradients)]
            self._tried[stage] = replace(last, step=step, gradients=gradients)
            return
        if step != version.step + 1:
            return
        self._courses.pop(stage, None)
        if last is not None and last.of == of:
            self._courses[stage] = last.version, version, self._course(last, version, weights)
        places = tiles(self._plan.entries(stage, "weights"), self._draws)
        self._tried[stage] = _Tried(
            version, of, step, places, [place.of(weights) for place in places], [place.of(given) for place in places]
        )

    def _course(self, last: _Tried, version: StageVersion, weights: Tensor) -> float | None:
        after = [place.of(weights) for place in last.places]
        if not tells(self._optimiser, last.version.step, version.step, after):
            return None
        return course(last.weights, after, last.gradients)

    def _apart_of(self, held: Stage, visits: Visits) -> Apart:
        """Of one peer in one attempt; what is there of another one is done with."""
        name = visits.attempt, visits.of
        if self.apart.get(held.index, (None, None))[0] != name:
            self.apart[held.index] = name, Apart(held)
        return self.apart[held.index][1]

    def _stage_of(self, stage: int, weights: Tensor, version: StageVersion) -> Stage:
        """With the weights [n] that were lent."""
        made = self._new_stage(stage)
        state_of(made, "weights").copy_(weights)
        made.become(version, 0, 1.0, 0.0)
        return made


def _away(said: Activation, right: Activation) -> float:
    """‖said - right‖ / ‖right‖, as `sketch.distance`; DISTANCE_MAX where the tokens are others."""
    tokens, ours = said[1], right[1]
    if tokens is not None and ours is not None and not torch.equal(tokens, ours):
        return DISTANCE_MAX
    x, y = said[0].float().flatten(), right[0].float().flatten()
    return relative(float(torch.linalg.vector_norm(x - y)), float(torch.linalg.vector_norm(y)))
