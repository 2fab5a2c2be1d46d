"""Weights as matrix products read them, where a device multiplies faster in fewer bits.

The copy stays from one update to the next, so that nothing is cast anew for each microbatch, and all that saved
activations share it. Weights themselves, the sum of gradients and moments keep the model's precision; norms, softmax
and loss are computed in it, as torch.autocast does. A backward pass leaves the gradient of a copied weight in few bits
for a moment; it is added to the sum at once, and its memory is free again before the pass goes on.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Final

import torch
from torch import Tensor

from ftnode.models.loss_scale import LossScale
from ftnode.models.parameters import EMBEDDING, LM_HEAD, Entries

PRODUCTS: Final = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""By the name that device_precision.py gives: what products are computed in; None: in the model's precision."""


def low_names(entries: Entries, head: bool) -> set[str]:
    """Which tensors of a stage products read: of the head the language-model head, which may be the embedding itself;
    of others all but norms."""
    table = LM_HEAD if LM_HEAD in entries else EMBEDDING
    return {name for name in entries if (name == table if head else "norm" not in name)}


def copied_numbers(entries: Entries, head: bool) -> int:
    """How many numbers of what is trained are copied."""
    return sum(prod(entries[name][1]) for name in low_names(entries, head))


class LowCopy:
    """Of one stage's weights, in `dtype`; what was copied is right only after `refresh`."""

    def __init__(self, dtype: torch.dtype, scale: LossScale) -> None:
        self._dtype, self._scale = dtype, scale
        self._copies: list[tuple[Tensor, Tensor]] = []

    def copy(self, weights: Tensor) -> Tensor:
        """A place for a copy of `weights`, any shape."""
        low = torch.zeros_like(weights, dtype=self._dtype, requires_grad=False)
        self._copies.append((low, weights))
        return low

    def leaf(self, weights: Tensor, gradient: Tensor, low: bool) -> Tensor:
        """What a graph reads instead of `weights`: a copy (`low`) or the same memory. Its gradient of each backward
        pass, without the scale, is added to `gradient` once."""
        leaf = (self.copy(weights) if low else weights.detach()).requires_grad_()
        leaf.register_post_accumulate_grad_hook(partial(_add_up, gradient, self._scale))  # type: ignore[no-untyped-call]
        return leaf

    def refresh(self) -> None:
        """The weights have changed."""
        with torch.no_grad():
            for low, weights in self._copies:
                low.copy_(weights)

    @property
    def bytes(self) -> int:
        return sum(low.nbytes for low, _ in self._copies)

    @property
    def storages(self) -> set[int]:
        """Addresses of the copies."""
        return {low.untyped_storage().data_ptr() for low, _ in self._copies}


def _add_up(into: Tensor, scale: LossScale, leaf: Tensor) -> None:
    assert leaf.grad is not None
    # The scale is a power of two, so that taking it away rounds nothing.
    into.add_(leaf.grad, alpha=1 / scale.value)
    leaf.grad = None
