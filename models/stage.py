"""One stage of the model: its weights, its optimiser, and the step in progress.

Its memory is one flat tensor: weights, the optimiser's moments, gradient. Every named weight, its moments and its
gradient are views of it. Gradients of microbatches add up there: the gradient of a step is the sum over its M
microbatches of the gradient of their mean loss, divided by M.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from ftnode.models import llama
from ftnode.models.config import ModelConfig
from ftnode.models.faults import Misuse, StageFault
from ftnode.models.initial import Layer, initialise, take_layers
from ftnode.models.ledger import AttemptId, Ledger
from ftnode.models.llama import BlockWeights, HeadWeights
from ftnode.models.optimiser import OptimiserConfig, Parameter, Turn, learning_rate_at
from ftnode.models.state_plan import MOMENTS, PARTS, StatePlan, rule_of
from ftnode.models.tensors import Layout, is_finite
from ftnode.models.update import update
from ftnode.models.whole_gradient import Staged, stage_gradient

EXPORTED: Final = ("weights", "all")
"""Parts of a state that are read: weights, or weights and moments."""

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
    """`norm_squared` before clipping; `gradient`: hash after it; `covered`: sorted [microbatch, visit]."""

    norm_squared: float
    gradient: str
    covered: list[list[int]]


@dataclass(frozen=True, slots=True)
class Lesson:
    """Of a backward pass: the gradient for the visit before (None at visit 0), and at the last visit the loss."""

    gradient: Tensor | None
    loss: float


class Stage:
    """Stage `index` of `stages` block stages (0 is the head). Not usable before it has a version.

    Raises StageFault for numbers that are not finite and Misuse for commands out of place.
    """

    def __init__(
        self, config: ModelConfig, stages: int, index: int, optimiser: OptimiserConfig, microbatches: int, device: str
    ) -> None:
        self.config, self.stages, self.index = config, stages, index
        self.optimiser, self.microbatches, self.device = optimiser, microbatches, torch.device(device)
        self.dtype = llama.dtype_of(config)
        plan = StatePlan(config, stages, optimiser.kind)
        self.layout, moments = (Layout(plan.entries(index, part), plan.numbers(index, part)) for part in PARTS)
        sizes = [self.layout.size, moments.size, self.layout.size]
        self.memory = torch.zeros(sum(sizes), dtype=self.dtype, device=self.device)
        self.weights, self.moments, self.gradient = torch.split(self.memory, sizes)
        self.version: StageVersion | None = None
        self.updates = 0
        """Of the moments, which start again when a stage is rebuilt."""
        self.rate_factor = 1.0
        self.norm_squared = 0.0
        """Of the last committed gradient, before clipping: ω when a neighbour is rebuilt."""
        self.ledger = Ledger(index)
        self._staged: Staged | None = None
        self._saved: dict[SavedKey, tuple[Tensor, Tensor]] = {}
        self._head: HeadWeights | None = None
        self._blocks: tuple[BlockWeights, ...] = ()
        self._rope = llama.rotary(config, self.device)
        self._parameters = self._named(moments)
        self._fixed_vy = llama.fixed_on(config, self.device) if config.subspace else None
        self._bind()

    @property
    def saved(self) -> int:
        return len(self._saved)

    def state(self, parts: str) -> Tensor:
        """What `parts` names, one of EXPORTED, as one flat view."""
        return self.weights if parts == "weights" else self.memory[: -self.gradient.numel()]

    def initialise(self, seed: int, commit: str) -> None:
        flat = torch.empty(self.layout.size, dtype=self.dtype)
        initialise(flat, self.layout, self.config, seed, self.index)
        self.weights.copy_(flat)
        self.moments.zero_()
        self.become(StageVersion(0, commit, (-1, 0)), updates=0, rate_factor=1.0, norm_squared=0.0)

    def begin_with(self, layers: Iterable[Layer], commit: str) -> None:
        """The weights of a model that exists. Raises Misuse when a layer is not what its hash says."""
        flat = torch.empty(self.layout.size, dtype=self.dtype)
        take_layers(flat, self.layout, layers, self.index)
        self.weights.copy_(flat)
        self.moments.zero_()
        self.become(StageVersion(0, commit, (-1, 0)), updates=0, rate_factor=1.0, norm_squared=0.0)

    def become(self, version: StageVersion, updates: int, rate_factor: float, norm_squared: float) -> None:
        """The buffers now hold the weights of `version`."""
        self.version, self.updates = version, updates
        self.rate_factor, self.norm_squared = rate_factor, norm_squared
        self._drop_step()

    def forward(self, key: SavedKey, x: Tensor, save: bool, tokens_bt: Tensor | None = None) -> Tensor:
        """Tokens [B, T] (visit 0) or activation [B, T, S] → activation [B, T, S]. `tokens_bt`: those of an activation,
        in a model with a subspace.

        `save` keeps the graph under `key` for `backward`, and a copy of `x`, whose memory may be used again.
        """
        fixed = self._fixed(tokens_bt)
        if not self.index or not save:
            with torch.no_grad():
                return self._checked(self._run(self._input(x), fixed), "activation")
        if key in self._saved:
            raise Misuse(f"microbatch {key[1]} at visit {key[2]} is already saved", self.index)
        leaf = self._input(x, leaf=True)
        output = self._run(leaf, fixed)
        self._checked(output, "activation")
        self._saved[key] = (leaf, output)
        return output.detach()

    def evaluate(self, x_bts: Tensor, targets_bt: Tensor, tokens_bt: Tensor | None = None) -> float:
        """The last visit without a backward pass: mean loss in nats per token."""
        with torch.no_grad():
            return self._checked_loss(self._loss(self._input(x_bts), targets_bt, self._fixed(tokens_bt)))

    def backward(
        self, key: SavedKey, gradient_bts: Tensor, x: Tensor | None, tokens_bt: Tensor | None = None
    ) -> Lesson:
        """Accumulate the gradient of one visit. `x`: run its forward pass again; None: use what was saved.

        x is tokens [B, T] at visit 0, which saves nothing. Raises Misuse when the visit is accumulated already.
        """
        attempt, visit = key[0], key[1:]
        self.ledger.admit(attempt, visit)
        gradient_bts = self._checked(gradient_bts.to(self.device, self.dtype), "gradient from the next stage")
        if x is None:
            if key not in self._saved:
                raise Misuse(f"nothing saved of microbatch {key[1]} at visit {key[2]}", self.index)
            leaf, output = self._saved.pop(key)
        else:
            self._saved.pop(key, None)
            leaf = self._input(x, leaf=bool(self.index))
            output = self._checked(self._run(leaf, self._fixed(tokens_bt)), "activation")
        return Lesson(self._accumulate(attempt, visit, leaf, output, gradient_bts), 0.0)

    def learn(self, key: SavedKey, x_bts: Tensor, targets_bt: Tensor, tokens_bt: Tensor | None = None) -> Lesson:
        """The last visit: loss and backward in one."""
        attempt, visit = key[0], key[1:]
        self.ledger.admit(attempt, visit)
        leaf = self._input(x_bts, leaf=True)
        loss = self._loss(leaf, targets_bt, self._fixed(tokens_bt))
        value = self._checked_loss(loss)
        share = torch.full_like(loss, 1 / self.microbatches)
        return Lesson(self._accumulate(attempt, visit, leaf, loss, share), value)

    def reduce(self, attempt: AttemptId) -> Reduction:
        """Stage the accumulated gradient: norm, clip, hash. Asked again, it answers the same."""
        gradient = self.accumulated(attempt)
        if self._staged is None:
            try:
                self._staged = stage_gradient(gradient, self.optimiser, self.index)
            except StageFault as fault:
                self.ledger.spoiled = str(fault)
                raise
            self.ledger.reduced = True
        return Reduction(self._staged.norm_squared, self._staged.gradient, self.ledger.covered())

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
            update(self._parameters, self.optimiser, Turn(version.step, self.updates, self.rate_factor))
        self.become(version, self.updates, self.rate_factor, norm_squared)
        return learning_rate_at(self.optimiser, version.step) * self.rate_factor

    def discard(self, keep: AttemptId | None) -> None:
        """Forget saved activations and accumulated gradients of every attempt but `keep`."""
        for key in [key for key in self._saved if key[0] != keep]:
            del self._saved[key]
        if self.ledger.attempt is not None and self.ledger.attempt != keep:
            self._drop_gradient()

    def _named(self, moments: Layout) -> list[Parameter]:
        """Each parameter with what its rule changes and reads."""
        found = []
        for name, (_, shape) in self.layout.entries.items():
            rule = rule_of(self.optimiser.kind, name, shape)
            own = tuple(moments.view(self.moments, f"{name}.{moment}") for moment in MOMENTS[rule])
            weights, gradient = self.layout.view(self.weights, name), self.layout.view(self.gradient, name)
            found.append(Parameter(rule, weights, gradient, own))
        return found

    def _bind(self) -> None:
        """Make every weight a leaf whose gradient is a view of the gradient row, so that autograd adds in place."""
        # `.data`, because views of one tensor share a version counter: a gradient that is added to would look like
        # a change of the weights that some other microbatch's graph has saved.
        weights, gradient = self.weights.data, self.gradient.data
        leaves: list[HeadWeights | BlockWeights]
        gradients: list[HeadWeights | BlockWeights]
        if not self.index:
            self._head = llama.head_weights(self.layout, weights)
            leaves, gradients = [self._head], [llama.head_weights(self.layout, gradient)]
        else:
            per_stage = self.config.layers_per_stage(self.stages)
            layers = range((self.index - 1) * per_stage, self.index * per_stage)
            self._blocks = tuple(llama.block_weights(self.config, self.layout, weights, layer) for layer in layers)
            leaves = list(self._blocks)
            gradients = [llama.block_weights(self.config, self.layout, gradient, layer) for layer in layers]
        for group, group_gradients in zip(leaves, gradients):
            for name in group.__slots__:
                if (leaf := getattr(group, name)) is not None:
                    leaf.requires_grad_().grad = getattr(group_gradients, name)

    def _input(self, x: Tensor, leaf: bool = False) -> Tensor:
        if not x.is_floating_point():
            return x.to(self.device, torch.long)
        x = x.to(self.device, self.dtype, copy=leaf)
        return self._checked(x, "activation from the stage before").requires_grad_(leaf)

    def _fixed(self, tokens_bt: Tensor | None) -> Tensor | None:
        """What no block writes to, [B, T, D - S]. Raises StageFault for a token that is none."""
        if self._fixed_vy is None or tokens_bt is None:
            return None
        tokens_bt = tokens_bt.to(self.device, torch.long)
        if not 0 <= int(tokens_bt.min()) <= int(tokens_bt.max()) < self.config.vocabulary:
            raise StageFault("a token from the stage before is none of the vocabulary", self.index)
        return torch.nn.functional.embedding(tokens_bt, self._fixed_vy)

    def _run(self, x: Tensor, fixed_bty: Tensor | None) -> Tensor:
        with self._precision():
            if self._head is not None:
                return llama.embed(x, self._head)
            for weights in self._blocks:
                x = llama.block(x, weights, self._rope, self.config, fixed_bty)
        return x

    def _loss(self, x_bts: Tensor, targets_bt: Tensor, fixed_bty: Tensor | None) -> Tensor:
        if self._head is None:
            raise Misuse("only the head has a loss", self.index)
        with self._precision():
            logits_btv = llama.logits(x_bts, self._head, self.config, fixed_bty)
        return llama.mean_loss(logits_btv, targets_bt.to(self.device, torch.long))

    def _precision(self) -> torch.autocast:
        fast = self.device.type == "cuda" and self.dtype == torch.float32
        return torch.autocast(self.device.type, torch.bfloat16, enabled=fast)

    def _checked(self, x: Tensor, what: str) -> Tensor:
        if not is_finite(x):
            raise StageFault(f"the {what} holds a number that is not finite", self.index)
        return x

    def _checked_loss(self, loss: Tensor) -> float:
        self._checked(loss, "loss")
        return float(loss.detach())

    def _accumulate(
        self, attempt: AttemptId, visit: tuple[int, int], leaf: Tensor, output: Tensor, gradient: Tensor
    ) -> Tensor | None:
        """Add up the gradients of the weights, give that of `leaf`. Whatever breaks on the way spoils the attempt."""
        self.ledger.attempt = attempt
        spoiled, self.ledger.spoiled = self.ledger.spoiled, "a backward pass broke off"
        torch.autograd.backward(output, gradient)
        if leaf.grad is not None and not is_finite(leaf.grad):
            self.ledger.spoiled = f"the gradient of microbatch {visit[0]} at visit {visit[1]} is not finite"
            raise StageFault(self.ledger.spoiled, self.index)
        self.ledger.spoiled = spoiled
        self.ledger.record(attempt, visit)
        return leaf.grad

    def _drop_gradient(self) -> None:
        self.gradient.zero_()
        self._staged = None
        self.ledger.clear()

    def _drop_step(self) -> None:
        self._saved.clear()
        self._drop_gradient()
