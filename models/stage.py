"""One stage of the model: its weights, its optimiser, and the step in progress.

Its weights, the optimiser's moments and the gradient are flat tensors (stage_tensors.py). Gradients of microbatches add
up: the gradient of a step is the sum over its M microbatches of the gradient of their mean loss, divided by M.

    forward, backward, learn  of each microbatch → the gradient, and in the ledger which visits are in it (ledger.py)
    reduce                    → its norm and how much is clipped; in a group the sum of all holders takes its place
    apply                     → the weights of the next version

A task is begun and read. Nothing of the first waits for the device, so that a task can be begun while the one before it
is computed; reading waits, and finds out whether the numbers are sound (number_check.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ftnode.models import llama
from ftnode.models.chunked_loss import loss_and_gradients, mean_loss
from ftnode.models.compiled import block_of
from ftnode.models.config import ModelConfig
from ftnode.models.credible_moments import require_credible
from ftnode.models.device_precision import precision_of
from ftnode.models.faults import Misuse, StageFault
from ftnode.models.initial import Layer, initialise, take_layers
from ftnode.models.ledger import AttemptId, Ledger
from ftnode.models.loss_scale import LossScale
from ftnode.models.low_copy import PRODUCTS
from ftnode.models.number_check import OWN, NumberCheck
from ftnode.models.optimiser import OptimiserConfig, Turn, learning_rate_at
from ftnode.models.parameters import EMBEDDING, LM_HEAD
from ftnode.models.stage_tensors import StageTensors
from ftnode.models.state_plan import StatePlan
from ftnode.models.tensors import swap
from ftnode.models.update import update
from ftnode.models.whole_gradient import Staged, stage_gradient

EXPORTED: Final = ("weights", "all")
"""Parts of a state that are read: weights, or weights and moments."""

BEFORE: Final = (-1, 0)
"""Of first weights: no attempt."""
SavedKey = tuple[AttemptId, int, int]
"""(attempt, microbatch, visit)."""


@dataclass(frozen=True, slots=True)
class StageVersion:
    """As ftnode.protocol's Version: these weights are those after committed `step`."""

    step: int
    commit: str
    attempt: AttemptId


@dataclass(frozen=True, slots=True)
class Reduction:
    """`norm_squared` before clipping; `covered`: sorted [microbatch, visit]."""

    norm_squared: float
    covered: list[list[int]]


@dataclass(frozen=True, slots=True)
class Lesson:
    """Of a backward pass: the gradient for the visit before (None at visit 0), and at the last visit the loss."""

    gradient: Tensor | None
    loss: float


@dataclass(frozen=True, slots=True)
class Unread:
    """A task that was begun. `tensor`: what it makes, which may be still on its way, and may be broken."""

    tensor: Tensor | None
    check: NumberCheck
    broken: Callable[[str], None]
    """What follows when it is."""

    def read(self) -> float:
        """Wait for it: its loss, or 0. Raises StageFault."""
        try:
            return self.check.read()
        except StageFault as fault:
            self.broken(str(fault))
            raise

    def read_tensor(self) -> Tensor:
        """Wait for it. Raises StageFault."""
        self.read()
        assert self.tensor is not None
        return self.tensor

    def read_lesson(self) -> Lesson:
        """Wait for a backward pass. Raises StageFault."""
        loss = self.read()
        return Lesson(self.tensor, loss)


class Apart:
    """What other visits than our own give to a stage's gradient in one attempt."""

    def __init__(self, stage: Stage) -> None:
        self.gradient = torch.zeros_like(stage.gradient)
        self.ledger = Ledger(stage.index)


class Stage:
    """Stage `index` of `stages` block stages (0 is the head). Not usable before it has a version.

    Raises StageFault for numbers that cannot be computed with and Misuse for commands out of place.
    """

    def __init__(
        self, config: ModelConfig, stages: int, index: int, optimiser: OptimiserConfig, microbatches: int, device: str,
        products: str = "", compiled: bool = False,
    ) -> None:  # fmt: skip
        """`products`: what matrices are multiplied in, of PRODUCTS; empty: what the device does best. `compiled`: its
        blocks, by torch.compile."""
        self.config, self.stages, self.index = config, stages, index
        self.optimiser, self.microbatches, self.device = optimiser, microbatches, torch.device(device)
        self.dtype, self.plan = llama.dtype_of(config), StatePlan(config, stages, optimiser.kind)
        low = PRODUCTS[products or precision_of(self.device)] if self.dtype == torch.float32 else None
        self.scale = LossScale(low)
        self.tensors = tensors = StageTensors(self.plan, index, low, self.scale, self.device)
        self.layout, self.frozen, self.memory = tensors.layout, tensors.frozen, tensors.memory
        self.weights, self.moments, self.gradient = tensors.weights, tensors.moments, tensors.gradient
        self.version: StageVersion | None = None
        self.updates = 0
        """Of the moments, which start again when a stage is rebuilt."""
        self.rate_factor = 1.0
        self.norm_squared = 0.0
        """Of the last committed gradient, before clipping: ω when a neighbour is rebuilt."""
        self.ledger = Ledger(index)
        self._staged: Staged | None = None
        self._saved: dict[SavedKey, tuple[Tensor, Tensor]] = {}
        self.compiled = compiled
        self._rope = llama.rotary(config, self.device)
        self._fixed_vy = llama.fixed_on(config, self.device) if config.subspace else None

    @property
    def saved(self) -> int:
        return len(self._saved)

    @property
    def bytes(self) -> int:
        """Of what the stage has whether or not it computes."""
        return self.tensors.bytes

    @property
    def storages(self) -> set[int]:
        """Where these are."""
        return self.tensors.storages

    def state(self, parts: str) -> Tensor:
        """What `parts` names, one of EXPORTED, as one flat view."""
        return self.tensors.state(parts)

    def initialise(self, seed: int, commit: str) -> None:
        """What is trained, at random."""
        self._draw(seed)
        self._begin(StageVersion(0, commit, BEFORE))

    def begin_with(self, layers: Iterable[Layer], version: StageVersion, seed: int = 0) -> None:
        """The weights of a model that exists; its adapters are drawn. Raises WrongLayer."""
        if self.config.lora:
            self._draw(seed)
        take_layers(self.tensors.place, layers, self.index)
        self._begin(version)

    def take_frozen(self, layers: Iterable[Layer]) -> None:
        """Only what is not trained, of a model that exists. Raises WrongLayer."""
        place, trained = self.tensors.place, self.layout.entries
        take_layers(lambda name: None if name in trained else place(name), layers, self.index)

    def require_credible(self, updates: int) -> None:
        """Of moments that others lent, before they count; zeros always are. Raises StageFault."""
        require_credible(self.tensors.parameters, self.optimiser, updates, self.index)

    def become(self, version: StageVersion, updates: int, rate_factor: float, norm_squared: float) -> None:
        """The buffers now hold the weights of `version`."""
        self.version, self.updates = version, updates
        self.rate_factor, self.norm_squared = rate_factor, norm_squared
        self.tensors.changed()
        self._drop_step()

    def require_next(self, step: int) -> None:
        """Raises Misuse unless these are the weights that `step` begins with."""
        if self.version is None or step != self.version.step + 1:
            raise Misuse(f"step {step} on weights of step {self.version and self.version.step}", self.index)

    def forward(self, key: SavedKey, x: Tensor, save: bool, tokens_bt: Tensor | None = None) -> Tensor:
        """`begin_forward`, and wait for it."""
        return self.begin_forward(key, x, save, tokens_bt).read_tensor()

    def begin_forward(self, key: SavedKey, x: Tensor, save: bool, tokens_bt: Tensor | None = None) -> Unread:
        """Tokens [B, T] (visit 0) or activation [B, T, S] → activation [B, T, S]. `tokens_bt`: those of an activation,
        in a model with a subspace.

        `save` keeps the graph under `key` for `backward`, and a copy of `x`, whose memory may be used again.
        """
        check = NumberCheck(self.index)
        fixed = self._fixed(tokens_bt, check)
        if not self.index or not save:
            with torch.no_grad():
                output = self._run(self._input(x, check), fixed)
            return Unread(check.activation("activation", output, OWN), check, lambda reason: None)
        if key in self._saved:
            raise Misuse(f"microbatch {key[1]} at visit {key[2]} is already saved", self.index)
        leaf = self._input(x, check, leaf=True)
        output = check.activation("activation", self._run(leaf, fixed), OWN)
        self._saved[key] = (leaf, output)
        return Unread(output.detach(), check, lambda reason: self.forget_saved(key))

    def evaluate(self, x_bts: Tensor, targets_bt: Tensor, tokens_bt: Tensor | None = None) -> float:
        """The last visit without a backward pass: mean loss in nats per token."""
        return self.begin_evaluate(x_bts, targets_bt, tokens_bt).read()

    def begin_evaluate(self, x_bts: Tensor, targets_bt: Tensor, tokens_bt: Tensor | None = None) -> Unread:
        check = NumberCheck(self.index)
        with torch.no_grad():
            hidden_nd = self._hidden(self._input(x_bts, check), self._fixed(tokens_bt, check)).flatten(0, 1)
            check.loss(mean_loss(hidden_nd, self.tensors.lm_head_vd, self._targets(targets_bt)))
        return Unread(None, check, lambda reason: None)

    def backward(
        self, key: SavedKey, gradient_bts: Tensor, x: Tensor | None, tokens_bt: Tensor | None = None
    ) -> Lesson:
        """`begin_backward`, and wait for it."""
        return self.begin_backward(key, gradient_bts, x, tokens_bt).read_lesson()

    def begin_backward(
        self, key: SavedKey, gradient_bts: Tensor, x: Tensor | None, tokens_bt: Tensor | None = None
    ) -> Unread:
        """Accumulate the gradient of one visit. `x`: run its forward pass again; None: use what was saved.

        x is tokens [B, T] at visit 0, which saves nothing. Raises Misuse when the visit is accumulated already.
        Broken numbers spoil the attempt.
        """
        attempt, visit = key[0], key[1:]
        self.ledger.admit(attempt, visit)
        check = NumberCheck(self.index)
        gradient_bts = check.received("gradient from the next stage", gradient_bts.to(self.device, self.dtype), True)
        if not self.index:
            assert x is not None
            into_vs = self.tensors.gradient_of(EMBEDDING)
            with self.ledger.accumulating(attempt, visit):
                if into_vs is not None:
                    llama.add_embedding_gradient(into_vs, self._input(x, check), gradient_bts)
            return self._learning(attempt, None, check)
        if x is None:
            if key not in self._saved:
                raise Misuse(f"nothing saved of microbatch {key[1]} at visit {key[2]}", self.index)
            leaf, output = self._saved.pop(key)
        else:
            self._saved.pop(key, None)
            leaf = self._input(x, check, leaf=True)
            output = check.activation("activation", self._run(leaf, self._fixed(tokens_bt, check)), OWN)
        with self.ledger.accumulating(attempt, visit):
            torch.autograd.backward(output, self._scaled(gradient_bts, self.scale.value))
            assert leaf.grad is not None
            back = self._scaled(leaf.grad, 1 / self.scale.value)
        return self._learning(attempt, check.gradient(_spoken(visit), back, OWN), check)

    def learn(self, key: SavedKey, x_bts: Tensor, targets_bt: Tensor, tokens_bt: Tensor | None = None) -> Lesson:
        """`begin_learn`, and wait for it."""
        return self.begin_learn(key, x_bts, targets_bt, tokens_bt).read_lesson()

    def begin_learn(self, key: SavedKey, x_bts: Tensor, targets_bt: Tensor, tokens_bt: Tensor | None = None) -> Unread:
        """The last visit: loss and backward in one. Broken numbers spoil the attempt."""
        attempt, visit = key[0], key[1:]
        self.ledger.admit(attempt, visit)
        check = NumberCheck(self.index)
        leaf = self._input(x_bts, check, leaf=True)
        hidden_btd = self._hidden(leaf, self._fixed(tokens_bt, check))
        with self.ledger.accumulating(attempt, visit):
            loss, gradient_nd = loss_and_gradients(
                hidden_btd.detach().flatten(0, 1), self.tensors.lm_head_vd, self._targets(targets_bt),
                1 / self.microbatches, self.tensors.gradient_of(EMBEDDING if self.config.tied else LM_HEAD),
                self.scale.value,
            )  # fmt: skip
            torch.autograd.backward(hidden_btd, gradient_nd.view(hidden_btd.shape))
        check.loss(loss)
        assert leaf.grad is not None
        return self._learning(attempt, check.gradient(_spoken(visit), leaf.grad, OWN), check)

    def reduce(self, attempt: AttemptId) -> Reduction:
        """Stage the accumulated gradient, of which nobody else has a part: norm, clip. Asked again, it answers the
        same."""
        gradient = self.accumulated(attempt)
        if self._staged is None:
            try:
                self._staged = stage_gradient(gradient, self.optimiser, self.index, compared=False)
            except StageFault as fault:
                self.ledger.spoiled = str(fault)
                raise
            self.ledger.reduced = True
        return Reduction(self._staged.norm_squared, self.ledger.covered())

    def accumulated(self, attempt: AttemptId) -> Tensor:
        """The sum of the gradients so far, as a view. Raises StageFault when it is unusable."""
        self.ledger.require_accumulated(attempt)
        if self.ledger.spoiled:
            raise StageFault(self.ledger.spoiled, self.index)
        return self.gradient

    def apply(self, version: StageVersion, skipped: bool, staged: Staged | None = None) -> float:
        """Update the weights with the gradient that version.attempt reduced, and become `version`; Adam's rate.

        `staged`: the gradient that a group reduced; None: our own. Skipped: only the version changes.
        """
        if self.version is None or self.version.step != version.step - 1:
            raise Misuse(f"step {version.step} does not follow {self.version and self.version.step}", self.index)
        norm_squared = self.norm_squared
        if not skipped:
            if staged is None:
                self.ledger.require_reduced(version.attempt)
                assert self._staged is not None
                staged = self._staged
            staged.into(self.gradient)
            self.updates += 1
            norm_squared = staged.norm_squared
            update(self.tensors.parameters, self.optimiser, Turn(version.step, self.updates, self.rate_factor))
        self.scale.committed(skipped)
        self.become(version, self.updates, self.rate_factor, norm_squared)
        return learning_rate_at(self.optimiser, version.step) * self.rate_factor

    def forget_saved(self, key: SavedKey) -> None:
        """What a forward pass kept for its backward pass."""
        self._saved.pop(key, None)

    @contextmanager
    def counting_apart(self, apart: Apart) -> Iterator[None]:
        """What is accumulated within counts there, and not for the step. Every backward pass within must be read."""
        swap(self.gradient.data, apart.gradient)
        self.ledger, apart.ledger = apart.ledger, self.ledger
        try:
            yield
        finally:
            self.ledger, apart.ledger = apart.ledger, self.ledger
            swap(self.gradient.data, apart.gradient)

    def discard(self, keep: AttemptId | None) -> None:
        """Forget saved activations and accumulated gradients of every attempt but `keep`."""
        for key in [key for key in self._saved if key[0] != keep]:
            del self._saved[key]
        if self.ledger.attempt is not None and self.ledger.attempt != keep:
            self._drop_gradient()

    def _begin(self, version: StageVersion) -> None:
        """The weights are first weights."""
        self.moments.zero_()
        self.become(version, updates=0, rate_factor=1.0, norm_squared=0.0)

    def _draw(self, seed: int) -> None:
        """What is trained, at random, on the host whatever the device."""
        on_host = self.device.type == "cpu"
        flat = self.weights if on_host else torch.empty(self.layout.size, dtype=self.dtype)
        initialise(flat, self.layout, self.config, seed, self.index)
        if not on_host:
            self.weights.copy_(flat)

    def _input(self, x: Tensor, check: NumberCheck, leaf: bool = False) -> Tensor:
        if not x.is_floating_point():
            return x.to(self.device, torch.long)
        x = x.to(self.device, self.dtype, copy=leaf)
        return check.received("activation from the stage before", x).requires_grad_(leaf)

    def _fixed(self, tokens_bt: Tensor | None, check: NumberCheck) -> Tensor | None:
        """What no block writes to, [B, T, D - S]. A token that is none is a fault."""
        if self._fixed_vy is None or tokens_bt is None:
            return None
        tokens_bt = tokens_bt.to(self.device, torch.long)
        possible_bt = tokens_bt.clamp(0, self.config.vocabulary - 1)
        check.forbid("a token from the stage before is none of the vocabulary", (possible_bt != tokens_bt).any())
        return torch.nn.functional.embedding(possible_bt, self._fixed_vy)

    def _run(self, x: Tensor, fixed_bty: Tensor | None) -> Tensor:
        if self.tensors.head is not None:
            return llama.embed(x, self.tensors.head)
        block = block_of(self.compiled)
        for weights in self.tensors.blocks:
            x = block(x, weights, self._rope, self.config, fixed_bty)
        return x

    def _hidden(self, x_bts: Tensor, fixed_bty: Tensor | None) -> Tensor:
        if self.tensors.head is None:
            raise Misuse("only the head has a loss", self.index)
        return llama.hidden(x_bts, self.tensors.head, self.config, fixed_bty)

    def _targets(self, targets_bt: Tensor) -> Tensor:
        return targets_bt.to(self.device, torch.long).flatten()

    def _scaled(self, x: Tensor, factor: float) -> Tensor:
        return x if self.scale.value == 1 else x * factor

    def _learning(self, attempt: AttemptId, tensor: Tensor | None, check: NumberCheck) -> Unread:
        return Unread(tensor, check, lambda reason: self.ledger.spoil(attempt, reason))

    def _drop_gradient(self) -> None:
        self.gradient.zero_()
        self._staged = None
        self.ledger.clear()

    def _drop_step(self) -> None:
        self._saved.clear()
        self._drop_gradient()


def _spoken(visit: tuple[int, int]) -> str:
    return f"gradient of microbatch {visit[0]} at visit {visit[1]}"
