"""Cross-entropy of a large vocabulary without all logits at once: some positions at a time.

N positions, V vocabulary, D dim. A chunk's logits are made, turned into their gradient in place, multiplied with what
both products need, and forgotten, so that the loss and the backward pass through the language-model head take three
products in all and the memory of one chunk (as in Liger Kernel's fused linear cross-entropy, Hsu et al. 2024).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_NUMBERS: Final = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Logits at once. A card needs thousands of positions to be busy, and has the memory."""
SLICE_NUMBERS: Final = {"cpu": 1 << 20, "cuda": 1 << 24}
"""Of the head's gradient at once, where it has to be turned into the model's precision first. A processor makes a
second copy for that."""


def chunk_positions(vocabulary: int, device: torch.device) -> int:
    """How many positions a chunk has."""
    return max(1, _at_once(CHUNK_NUMBERS, device) // vocabulary)


def vocabulary_at_once(positions: int, device: torch.device) -> int:
    """Of how large a vocabulary so many positions are one chunk."""
    return max(1, _at_once(CHUNK_NUMBERS, device) // positions)


def _at_once(numbers: Mapping[str, int], device: torch.device) -> int:
    return numbers.get(device.type, numbers["cuda"])


def mean_loss(hidden_nd: Tensor, lm_head_vd: Tensor, targets_n: Tensor) -> Tensor:
    """Nats per token. Logits are of the precision of `lm_head_vd`, the rest of that of `hidden_nd`. No graph."""
    total = hidden_nd.new_zeros(())
    with torch.no_grad():
        for low_cd, targets_c, _ in _chunks(hidden_nd, lm_head_vd, targets_n):
            log_cv = F.linear(low_cd, lm_head_vd).log_softmax(1, dtype=hidden_nd.dtype)
            total -= log_cv.gather(1, targets_c[:, None]).sum()
    return total / len(targets_n)


def loss_and_gradients(
    hidden_nd: Tensor, lm_head_vd: Tensor, targets_n: Tensor, share: float, into_vd: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The mean loss, and the gradient of share · loss by `hidden_nd`; that by `lm_head_vd` is added to `into_vd`,
    unless it is not trained: None.

    `scale`: a power of two by which gradients are larger while they are of the precision of `lm_head_vd`.
    """
    total, gradient_nd = hidden_nd.new_zeros(()), torch.empty_like(hidden_nd)
    with torch.no_grad():
        for low_cd, targets_c, part in _chunks(hidden_nd, lm_head_vd, targets_n):
            log_cv = F.linear(low_cd, lm_head_vd).log_softmax(1, dtype=hidden_nd.dtype)
            total -= log_cv.gather(1, targets_c[:, None]).sum()
            d_cv = log_cv.exp_()
            d_cv.scatter_add_(1, targets_c[:, None], d_cv.new_full((len(targets_c), 1), -1.0))
            d_cv = d_cv.mul_(share / len(targets_n) * scale).to(lm_head_vd.dtype)
            gradient_nd[part] = (d_cv @ lm_head_vd).to(hidden_nd.dtype).mul_(1 / scale)
            if into_vd is not None:
                _add_product(into_vd, d_cv, low_cd, scale)
    return total / len(targets_n), gradient_nd


def _chunks(hidden_nd: Tensor, lm_head_vd: Tensor, targets_n: Tensor) -> Iterator[tuple[Tensor, Tensor, slice]]:
    positions = chunk_positions(len(lm_head_vd), hidden_nd.device)
    for start in range(0, len(targets_n), positions):
        part = slice(start, start + positions)
        yield hidden_nd[part].to(lm_head_vd.dtype), targets_n[part], part


def _add_product(into_vd: Tensor, d_cv: Tensor, low_cd: Tensor, scale: float) -> None:
    """into += dᵀ · hidden / scale."""
    if into_vd.dtype == d_cv.dtype:
        into_vd.addmm_(d_cv.T, low_cd)
        return
    rows = max(1, _at_once(SLICE_NUMBERS, into_vd.device) // into_vd.shape[1])
    for start in range(0, len(into_vd), rows):
        part = slice(start, start + rows)
        into_vd[part].add_(d_cv[:, part].T @ low_cd, alpha=1 / scale)
