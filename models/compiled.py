"""Transformer blocks by torch.compile, where the owner of a device asks for it.

What a block does between its matrix products (norms, rotations, SwiGLU, casts) reads and writes device memory for
each operation. Compiled, several of them are one kernel. Only blocks are compiled, and every block of a run has one
shape. What replicas must have equal to the bit (update, norm, hash) stays as it is (decision 0037).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
from torch import Tensor

from ftnode.models import llama

Block = Callable[..., Tensor]
"""As `llama.block`."""


def block_of(compiled: bool) -> Block:
    return _compiled_block() if compiled else llama.block


@lru_cache(maxsize=1)
def _compiled_block() -> Block:
    """One for all stages of a process, so that each shape is compiled once: in the first pass with gradients, and in
    the first without."""
    return torch.compile(llama.block, dynamic=False)
