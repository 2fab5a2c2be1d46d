"""One training run under one failure schedule and one policy: what experiments 2, 3, 4 and 6 of the recovery lab count.

An iteration is one step on one batch of data, whether or not its result survives. A rollback goes back in weights,
optimiser and step, not in time: the next iteration has the next batch and meets the next failure.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from ftnode.lab.recovery.failures import Schedule
from ftnode.lab.recovery.rebuilding import WAYS, rebuild
from ftnode.lab.recovery.residual import residual_of, works
from ftnode.lab.recovery.texts import Text
from ftnode.lab.recovery.whole_model import EXPORTED, Kept, Size, WholeModel, version_of
from ftnode.lab.results.cut_off_work import Slice
from ftnode.models.data import Corpus
from ftnode.models.encoding import decode, encode
from ftnode.models.stage import Stage
from ftnode.protocol.words.settings import Settings

LOSSES_KEPT = 10


@dataclass(frozen=True, slots=True)
class Policy:
    """What a run does about a loss. With `way` empty and nothing else set, nothing is ever lost.

    `swap_every`: iterations from one with swapped routes to the next.
    `shadow_every`, `checkpoint_every`: commits between two copies, 0 for none. `shadow_part`: "weights", or "all" with
    both moments. `redundant`: every stage's successor has an exact copy, for half-sized microbatches and a second
    forward pass. `settle_steps`: for so long after a loss the survivors learn at `settle_factor` of their rate.
    `hold_above`: they do so only while the training loss is more than this above what it was (nats; 0: all the time).
    `boost_steps`: for so long the rebuilt stage learns at `boost_factor` times `rate_factor`.
    `head_every`: commits between two copies of the head, with its moments; 0: none. `omit_steps`: for so many steps
    routes leave out a middle stage that is lost, where the manifest's rule allows it; only then it is rebuilt.
    """

    name: str
    way: str = ""
    swap: bool = False
    swap_every: int = 1
    optimiser: str = "fresh"
    rate_factor: float = 1.1
    shadow_every: int = 0
    shadow_encoding: str = "bfloat16"
    shadow_part: str = "weights"
    checkpoint_every: int = 0
    redundant: bool = False
    settle_steps: int = 0
    settle_factor: float = 1.0
    hold_above: float = 0.0
    boost_steps: int = 0
    boost_factor: float = 1.0
    clip: float = 0.0
    """Gradients are clipped to this norm instead of the size's own; 0: to that."""
    head_every: int = 0
    omit_steps: int = 0

    @property
    def loses(self) -> bool:
        return bool(self.way or self.checkpoint_every or self.redundant)


@dataclass(slots=True)
class Counted:
    """Bytes and seconds of one run; seconds are of this process's own time, so that a busy machine does not count."""

    failures: int = 0
    rolled_back_steps: int = 0
    moved_bytes: int = 0
    """Received by newcomers."""
    kept_bytes: int = 0
    """Held anywhere only to be able to recover, at most at one time."""
    sent_bytes: int = 0
    """Travelled only to be able to recover."""
    copies: int = 0
    copy_seconds: float = 0.0
    recovery_seconds: float = 0.0
    train_seconds: float = 0.0
    by: dict[str, int] = field(default_factory=dict)
    """How often each way of coming back was taken."""


class Run:
    """A model in training under a policy."""

    def __init__(
        self, size: Size, corpus: Corpus, policy: Policy, schedule: Schedule, seed: int, device: str, folder: Path,
        residuals: bool = False,
    ) -> None:  # fmt: skip
        """`residuals`: of every block stage that is lost, CheckFree's residual is measured, too."""
        size = replace(size, clip=policy.clip or size.clip)
        self.size, self.policy, self.schedule = size, policy, schedule
        self.model = WholeModel(size, corpus, seed, device, policy.swap, policy.redundant, policy.swap_every)
        self.counted = Counted()
        self.damages: list[tuple[int, tuple[int, ...], float]] = []
        """(iteration, stages lost, by how much the validation loss rose when they were rebuilt or left out)."""
        self.returns: list[tuple[int, tuple[int, ...], float]] = []
        """The same of stages that were left out, when they were rebuilt."""
        self.residuals: list[tuple[int, int, float, float, float]] | None = [] if residuals else None
        """(iteration, stage lost, own, averaged, rebuilt): see residual.py."""
        self._checkpoint = folder / f"checkpoint-{policy.name}-{seed}.pt"
        self._shadows: dict[int, tuple[bytes, int]] = {}
        """By stage: encoded numbers, count of updates."""
        self._head: tuple[Tensor, int] | None = None
        """The newest copy of the head's weights and moments, and its count of updates."""
        self._out_until: dict[int, int] = {}
        """Stages that routes leave out, and the iteration before which they are rebuilt."""
        self._rates: dict[int, float] = {}
        self._lost_at = 0
        """The last iteration that met a loss; 0: none has."""
        self._rebuilt_at: dict[int, int] = {}
        self._losses: deque[float] = deque(maxlen=LOSSES_KEPT)
        """Training losses of the last steps."""
        self._before = 0.0
        """Their mean when the last stage was lost, unless the one before was still being held for."""
        self.iteration = 0
        self.curve: list[tuple[int, float]] = []

    def go(
        self, iterations: int, validate_every: int, look: Callable[[int], None] = lambda iteration: None
    ) -> list[tuple[int, float]]:
        """(iteration, validation loss) from 0 on; `look` is called after every iteration, and what it raises ends the
        run there."""
        if not self.curve:
            self.curve = [(0, self.model.validate())]
            if self.policy.checkpoint_every:
                self._save()
        for iteration in range(self.iteration + 1, iterations + 1):
            self.advance(iteration)
            self.iteration = iteration
            if iteration % validate_every == 0:
                self.curve.append((iteration, self.model.validate()))
            look(iteration)
        self._checkpoint.unlink(missing_ok=True)
        return self.curve

    def state(self) -> dict[str, Any]:
        """All that `resume` needs, as plain values and tensors."""
        return {
            "checkpoint": torch.load(self._checkpoint, weights_only=True) if self.policy.checkpoint_every else None,
            "kept": self.model.keep().as_plain(), "iteration": self.iteration, "curve": self.curve,
            "counted": asdict(self.counted), "damages": self.damages, "lost_at": self._lost_at, "before": self._before,
            "shadows": [
                (stage, torch.frombuffer(bytearray(content), dtype=torch.uint8), updates)
                for stage, (content, updates) in self._shadows.items()
            ],
            "rates": self._rates, "rebuilt_at": self._rebuilt_at, "losses": list(self._losses), "head": self._head,
            "out_until": self._out_until, "returns": self.returns, "residuals": self.residuals,
        }  # fmt: skip

    def resume(self, state: dict[str, Any]) -> None:
        """Go on where a run like this one was when its `state` was taken. The checkpoint's file may be of later, or of
        another run of this policy."""
        if state.get("checkpoint") is not None:
            torch.save(state["checkpoint"], self._checkpoint)
        self.model.restore(Kept.from_plain(state["kept"]))
        self.iteration, self.curve, self.damages = state["iteration"], state["curve"], state["damages"]
        self.counted = Counted(**state["counted"])
        self._lost_at, self._before = state["lost_at"], state["before"]
        self._shadows = {stage: (bytes(content.numpy()), updates) for stage, content, updates in state["shadows"]}
        self._rates, self._rebuilt_at = state["rates"], state["rebuilt_at"]
        self._losses.extend(state["losses"])
        self._head, self._out_until = state["head"], state["out_until"]
        self.returns, self.residuals = state["returns"], state["residuals"]
        self.model.omitted = tuple(sorted(self._out_until))

    def advance(self, iteration: int) -> None:
        """What is lost before `iteration`, its step, and what is copied after it."""
        if self.policy.loses:
            self._return(iteration)
            self._lose(iteration)
        self._set_rates(iteration)
        self.counted.train_seconds += _timed(partial(self._step, iteration))
        self._copy()

    def _step(self, iteration: int) -> None:
        self._losses.append(self.model.train(iteration))
        if self.policy.redundant:
            self.model.forward_again(iteration)

    def _lose(self, iteration: int) -> None:
        # Of a stage that is left out there is nothing to lose.
        lost = tuple(stage for stage in self.schedule.lost_before(iteration) if stage not in self._out_until)
        if not lost:
            return
        self.counted.failures += len(lost)
        before = self.model.validate() if self.policy.way else 0.0
        seen = works(self.model, lost) if self.residuals is not None else {}
        self.counted.recovery_seconds += _timed(lambda: self._recover(iteration, lost))
        if self.policy.way:
            self.damages.append((iteration, lost, self.model.validate() - before))
        if self.residuals is not None:
            gone = frozenset({*lost, *self.model.omitted})
            for stage, work in seen.items():
                found = residual_of(self.model, stage, work, gone)
                self.residuals.append((iteration, stage, found.own, found.averaged, found.rebuilt))

    def _return(self, iteration: int) -> None:
        """Stages that were left out for their time are rebuilt."""
        back = tuple(stage for stage, until in self._out_until.items() if until <= iteration)
        if not back:
            return
        before = self.model.validate()
        for stage in back:
            del self._out_until[stage]
        self.model.omitted = tuple(sorted(self._out_until))
        for stage in back:
            self._rebuild(iteration, stage, back)
        self.returns.append((iteration, back, self.model.validate() - before))

    def _recover(self, iteration: int, lost: tuple[int, ...]) -> None:
        if self.policy.checkpoint_every:
            self._roll_back(len(lost))
            return
        for stage in lost:
            if self.policy.redundant:
                self._came_back("redundant", 3 * _bytes(self.model.stages[stage]))
            elif stage == 0:
                self._head_from_copy()
            elif stage in self._shadows:
                self._from_shadow(stage)
            elif self._may_leave_out(stage):
                self._out_until[stage] = iteration + self.policy.omit_steps
                self.model.omitted = tuple(sorted(self._out_until))
                self._came_back("omit", 0)
            else:
                self._rebuild(iteration, stage, lost)
        if not self.policy.redundant:
            holding = self._lost_at and iteration < self._lost_at + self.policy.settle_steps
            if not holding and self._losses:
                self._before = mean(self._losses)
            self._lost_at = iteration
            self._rebuilt_at.update(dict.fromkeys(lost, iteration))

    def _rebuild(self, iteration: int, stage: int, lost: tuple[int, ...]) -> None:
        rebuilt = rebuild(
            self.model, stage, WAYS[self.policy.way], optimiser=self.policy.optimiser,
            rate_factor=self.policy.rate_factor, lost=frozenset({*lost, *self.model.omitted}),
            draw=iteration * 1000 + stage,
        )  # fmt: skip
        self._came_back(self.policy.way, rebuilt.moved_bytes)
        self._rates[stage] = self.policy.rate_factor

    def _may_leave_out(self, stage: int) -> bool:
        """By the rule of the swarm (Settings.may_leave_out)."""
        stages = self.size.stages
        settings = Settings("lab", stages, steps=0, microbatches=1, window=1, swap=self.policy.swap, omit=True)
        return bool(self.policy.omit_steps) and settings.may_leave_out({*self._out_until, stage})

    def _came_back(self, how: str, moved_bytes: int) -> None:
        self.counted.by[how] = self.counted.by.get(how, 0) + 1
        self.counted.moved_bytes += moved_bytes

    def _from_shadow(self, stage: int) -> None:
        held, (content, updates) = self.model.stages[stage], self._shadows[stage]
        state = held.state(self.policy.shadow_part)
        held.moments.zero_()
        state.copy_(decode(content, self.policy.shadow_encoding, state.numel()))
        with_moments = self.policy.shadow_part == EXPORTED
        held.become(version_of(self.model.step), updates if with_moments else 0, held.rate_factor, 0.0)
        self._came_back("shadow", len(content))

    def _head_from_copy(self) -> None:
        """Rung `head`: weights and moments as they were at the newest copy. Without one the run would halt."""
        assert self._head is not None, "the head is lost before its first copy; let losses begin later"
        held, (content, updates) = self.model.stages[0], self._head
        held.state(EXPORTED).copy_(content)
        held.become(version_of(self.model.step), updates, held.rate_factor, held.norm_squared)
        self._came_back("head", content.nbytes)

    def _roll_back(self, lost: int) -> None:
        before = self.model.step
        kept = Kept.from_plain(torch.load(self._checkpoint, weights_only=True))
        self.model.restore(kept)
        self.counted.rolled_back_steps += before - kept.step
        self.counted.by["checkpoint"] = self.counted.by.get("checkpoint", 0) + lost
        self.counted.moved_bytes += kept.size_bytes

    def _copy(self) -> None:
        """What the policy does in fault-free time so that a loss can be answered."""
        policy, model = self.policy, self.model
        if policy.checkpoint_every and model.step % policy.checkpoint_every == 0:
            self._save()
        if policy.shadow_every and model.step % policy.shadow_every == 0:
            self.counted.copy_seconds += _timed(self._shadow)
            size = sum(len(content) for content, _ in self._shadows.values())
            self._kept(size, size)
        if policy.head_every and model.step % policy.head_every == 0:
            head = model.stages[0]
            self._head = (head.state(EXPORTED).clone(), head.updates)
            self._kept(self._head[0].nbytes, self._head[0].nbytes)
        if policy.swap and policy.way:
            # CheckFree+ sends embedding and LM head to the stages before and after them (section 4.3).
            self._kept(2 * _bytes(model.stages[0]), 2 * _bytes(model.stages[0]))
        if policy.redundant:
            # The successor's exact copy: its gradient travels every step, weights and moments are held twice.
            held = sum(_bytes(stage) for stage in model.blocks)
            self._kept(held, 3 * held)

    def _shadow(self) -> None:
        for stage in self.model.blocks:
            content = encode(stage.state(self.policy.shadow_part), self.policy.shadow_encoding)
            self._shadows[stage.index] = (content, stage.updates)

    def _save(self) -> None:
        kept = self.model.keep()
        self.counted.copy_seconds += _timed(lambda: torch.save(kept.as_plain(), self._checkpoint))
        self._kept(kept.size_bytes, kept.size_bytes)

    def _kept(self, sent: int, kept: int) -> None:
        self.counted.copies += 1
        self.counted.sent_bytes += sent
        self.counted.kept_bytes = max(self.counted.kept_bytes, kept)

    def _set_rates(self, iteration: int) -> None:
        policy = self.policy
        if not (policy.settle_steps or policy.boost_steps) or not self._lost_at:
            return
        holding = iteration < self._lost_at + policy.settle_steps
        # The first step after a loss has shown nothing yet.
        if policy.hold_above and iteration > self._lost_at:
            holding = holding and self._losses[-1] > self._before + policy.hold_above
        for stage in self.model.stages:
            rate = self._rates.get(stage.index, 1.0)
            age = iteration - self._rebuilt_at.get(stage.index, -policy.settle_steps - policy.boost_steps)
            if age < policy.boost_steps:
                rate *= policy.boost_factor
            if holding and age >= policy.settle_steps:
                rate *= policy.settle_factor
            stage.rate_factor = rate


def run(
    size: Size, corpus: Corpus, texts: tuple[Text, ...], policy: Policy, schedule: Schedule, seed: int, device: str,
    folder: Path, validate_every: int, texts_at: int = 0, slice_: Slice | None = None, residuals: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Train `schedule.iterations` iterations; the result as JSON has it. Losses in nats per token, or per byte where
    the corpus is a text.

    `texts` are read after iteration `texts_at`, so that a longer run can be compared too; 0: after the last. With a
    `slice_` it goes on where its file says, and raises CutOff, with the file written, when the time is up.
    """
    folder.mkdir(parents=True, exist_ok=True)
    one = Run(size, corpus, policy, schedule, seed, device, folder, residuals)
    afterwards: dict[str, float] = {}
    cut = slice_ or Slice()
    before = cut.load(f"{one.size} {policy} {schedule}, seed {seed}, text {corpus.sha256}, {validate_every}")
    if before is not None:
        one.resume(before["run"])
        afterwards |= before["texts"]

    def look(iteration: int) -> None:
        if iteration == (texts_at or schedule.iterations):
            for text in texts:
                afterwards[text.kind] = sum(map(one.model.loss_of, text.windows)) / len(text.windows)
        if iteration < schedule.iterations:
            cut.check(
                f"iteration {iteration} of {schedule.iterations}", lambda: {"run": one.state(), "texts": afterwards}
            )

    curve = one.go(schedule.iterations, validate_every, look)
    watched = {"returns": one.returns, "residuals": one.residuals} if residuals else {}
    return watched | {
        "size": size.name, "seed": seed, "policy": asdict(policy), "probability": schedule.probability,
        "iterations": schedule.iterations, "curve": curve, "texts": afterwards, "counted": asdict(one.counted),
        "damages": one.damages, "parameters": size.config.total_parameters(), "final_step": one.model.step,
    }  # fmt: skip


def is_of(policy: Policy, validate_every: int, found: Mapping[str, Any]) -> bool:
    """Whether a result is of this policy, and was looked at as often. What a policy had not yet when it was made is as
    usual."""
    wanted = asdict(policy)
    return wanted | found["policy"] == wanted and all(at % validate_every == 0 for at, _ in found["curve"])


def is_by_formula(policy: Mapping[str, Any]) -> bool:
    """Whether the bytes that a run under this policy (a result's) keeps and sends are computed and no copies made."""
    return bool(policy["redundant"] or (policy["swap"] and policy["way"]))


def _timed(do: Callable[[], object]) -> float:
    started = time.process_time()
    do()
    return time.process_time() - started


def _bytes(stage: Stage) -> int:
    return 4 * stage.layout.size
