"""Where the numbers of a stage lie, and how a graph of autograd reads its weights.

    memory   | weights | moments | gradient |      one flat tensor, of all that is trained
    frozen   what is not trained (frozen.py)
    low      matrices once more in few bits, where the device multiplies faster in these (low_copy.py)

Every named weight, its moments and its gradient are views of `memory`, so that others can read, send and install a
stage as a few flat tensors. What a graph reads of a weight, and how the weight's gradient gets into `gradient`:

- *trained:* a leaf in the place of the weight. Its `grad` is a view of `gradient`, and autograd adds there.
- *trained, of a block, products in few bits:* a leaf of its own, for a matrix its copy. When a backward pass has made
  its gradient, a hook adds it to `gradient` and takes it away again.
- *tables of the head* (embedding, LM head): the weight itself, no leaf. Who computes with them adds to `gradient_of`.
- *not trained:* what is kept in `frozen`. It has no gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ftnode.models import llama
from ftnode.models.frozen import FrozenWeights
from ftnode.models.llama import BlockWeights, HeadWeights
from ftnode.models.loss_scale import LossScale
from ftnode.models.low_copy import LowCopy
from ftnode.models.optimiser import Parameter, joined
from ftnode.models.parameters import FINAL_NORM, Shape, stage_layers
from ftnode.models.state_plan import MOMENTS, PARTS, StatePlan, rule_of
from ftnode.models.tensors import Layout


class StageTensors:
    """Of one stage, on its device; zeros at first. `changed` after each change of the weights."""

    def __init__(
        self, plan: StatePlan, index: int, low: torch.dtype | None, scale: LossScale, device: torch.device
    ) -> None:
        """`low`: what products are computed in, where it is not the model's precision. `scale`: the factor of the
        gradients that leaves in few bits have."""
        self._plan, self.dtype = plan, llama.dtype_of(plan.model)
        self.layout, moments = (Layout(plan.entries(index, part), plan.numbers(index, part)) for part in PARTS)
        sizes = [self.layout.size, moments.size, self.layout.size]
        self.memory = torch.zeros(sum(sizes), dtype=self.dtype, device=device)
        self.weights, self.moments, self.gradient = torch.split(self.memory, sizes)
        self.frozen = FrozenWeights(plan.frozen(index), self.dtype, low, not index, device)
        self.low = LowCopy(low, scale) if low is not None else None
        self.parameters = joined(self._parameters(moments))
        """What an update changes."""
        self.blocks: tuple[BlockWeights, ...] = ()
        """Of a block stage, for graphs."""
        self.head: HeadWeights | None = None
        """Of the head, likewise."""
        self.lm_head_vd = torch.empty(0)
        """As products with it read it."""
        if index:
            layers = stage_layers(plan.model, plan.stages, index)
            self.blocks = tuple(llama.block_weights(plan.model, layer, self._read_by_blocks) for layer in layers)
        else:
            self.head = llama.head_weights(plan.model, self._read_by_head)
            table = self.head.lm_head_vd
            self.lm_head_vd = self.low.copy(table) if self.low is not None and table.dtype == self.dtype else table

    @property
    def bytes(self) -> int:
        """Of all three."""
        return self.memory.nbytes + self.frozen.bytes + (self.low.bytes if self.low is not None else 0)

    @property
    def storages(self) -> set[int]:
        """Where these are."""
        copied = self.low.storages if self.low is not None else set()
        return {self.memory.untyped_storage().data_ptr()} | self.frozen.storages | copied

    def state(self, parts: str) -> Tensor:
        """Weights, or with "all" weights and moments, as one flat view."""
        return self.weights if parts == "weights" else self.memory[: -self.gradient.numel()]

    def place(self, name: str) -> Tensor:
        """Where the named tensor lies, trained or not. Raises KeyError for one that is not of this stage."""
        if name in self.layout.entries:
            return self.layout.view(self.weights.data, name)
        return self.frozen.view(name)

    def gradient_of(self, name: str) -> Tensor | None:
        """Where the gradient of a tensor adds up; None where it is not trained."""
        return self.layout.view(self.gradient.data, name) if name in self.layout.entries else None

    def changed(self) -> None:
        """The weights are others now."""
        if self.low is not None:
            self.low.refresh()

    def _parameters(self, moments: Layout) -> list[Parameter]:
        """Each parameter with what its rule changes and reads."""
        found = []
        for name, (_, shape) in self.layout.entries.items():
            rule = rule_of(self._plan.optimiser, name, shape)
            own = tuple(moments.view(self.moments, f"{name}.{moment}") for moment in MOMENTS[rule])
            weights, gradient = self.layout.view(self.weights, name), self.layout.view(self.gradient, name)
            found.append(Parameter(rule, weights, gradient, own))
        return found

    def _read_by_head(self, name: str, shape: Shape) -> Tensor:
        return self._leaf(name, shape) if name == FINAL_NORM else self.place(name)

    def _read_by_blocks(self, name: str, shape: Shape) -> Tensor:
        """One tensor, or neighbours in the memory from it on, in one shape."""
        if self.low is None or name not in self.layout.entries:
            return self._leaf(name, shape)
        own, sums = self._rows(name, shape)
        return self.low.leaf(own, sums, low="norm" not in name)

    def _leaf(self, name: str, shape: Shape) -> Tensor:
        if name not in self.layout.entries:
            return self.frozen.joined(name, shape)
        own, sums = self._rows(name, shape)
        own.requires_grad_().grad = sums
        return own

    def _rows(self, name: str, shape: Shape) -> tuple[Tensor, Tensor]:
        """Weights, and where their gradient adds up."""
        # `.data`, because views of one tensor share a version counter: a gradient that is added to would look like
        # a change of the weights that some other microbatch's graph has saved.
        own, sums = (self.layout.joined(row.data, name, shape) for row in (self.weights, self.gradient))
        return own, sums
