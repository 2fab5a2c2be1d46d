"""The same blocks without ftnode around them, in a plain torch loop as one would write it; and a stage by itself."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ftnode.lab.parts.gpu_sizes import MICROBATCHES, Size
from ftnode.models import llama
from ftnode.models.initial import DEVIATION
from ftnode.models.llama import BlockWeights
from ftnode.models.low_copy import PRODUCTS
from ftnode.models.optimiser import OptimiserConfig
from ftnode.models.stage import BEFORE, Stage, StageVersion
from ftnode.node.compute.measure import SavedBytes

ATTEMPT = (0, 1)


def drawn(size: Size, seed: int) -> Tensor:
    """Numbers of a microbatch, on the host."""
    shape = (size.sequences, size.context, size.dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.1


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds, from an idle device to an idle device."""
    wait_for(device)
    started = time.perf_counter()
    work()
    wait_for(device)
    return time.perf_counter() - started


def made_stage(size: Size, device: str, products: str) -> Stage:
    """With weights that are drawn where they lie, since a card would wait a minute for those of the host."""
    stage = Stage(size.model, 1, 1, OptimiserConfig(1e-4, 1000), MICROBATCHES, device, products)
    stage.weights.data.normal_(std=DEVIATION)
    stage.become(StageVersion(0, "lab", BEFORE), 0, 1.0, 0.0)
    return stage


def plain_tokens_per_second(size: Size, device: str, products: str) -> float:
    """Inputs and gradients lie on the device; autocast, in which cast weights are kept for a step's forward pass, and
    torch's own fused AdamW. Nothing is checked, hashed or copied."""
    where, low = torch.device(device), PRODUCTS[products]
    weights = _blocks(size, where)
    rope = llama.rotary(size.model, where)
    named = (getattr(block, name) for block in weights for name in block.__slots__)
    leaves = [leaf for leaf in named if isinstance(leaf, Tensor)]
    adam = torch.optim.AdamW(leaves, lr=1e-4, fused=True)
    x, gradient = (drawn(size, seed).to(where) for seed in (1, 2))

    def step() -> None:
        for _ in range(MICROBATCHES):
            leaf = x.clone().requires_grad_()
            with torch.autocast(where.type, low or torch.bfloat16, enabled=low is not None):
                y = leaf
                for block in weights:
                    y = llama.block(y, block, rope, size.model)
            torch.autograd.backward(y, gradient / MICROBATCHES)
        torch.nn.utils.clip_grad_norm_(leaves, 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)

    step()

    def steps() -> None:
        for _ in range(size.steps):
            step()

    return size.steps * MICROBATCHES * size.tokens / timed(where, steps)


def stage_task_seconds(size: Size, device: str, products: str) -> float:
    """Of one task of a stage, forward or backward, back to back and with nothing read in between."""
    where, stage = torch.device(device), made_stage(size, device, products)
    x, gradient = (drawn(size, seed).to(where) for seed in (1, 2))

    def tasks(attempt: tuple[int, int], microbatches: int) -> None:
        for microbatch in range(microbatches):
            key = (attempt, microbatch, 1)
            stage.begin_forward(key, x, save=True)
            stage.begin_backward(key, gradient, None)

    tasks((0, 1), 2)
    stage.discard(None)
    count = MICROBATCHES * max(1, size.steps // 2)
    return timed(where, lambda: tasks((0, 2), count)) / (2 * count)


def copies_seconds(size: Size, device: str) -> float:
    """Of one task: what comes in to the device, and what goes out to the host, whose memory is pinned as slots are."""
    where, host = torch.device(device), drawn(size, 1)
    if where.type == "cuda":
        host = host.pin_memory()
    there, rounds = host.to(where), 10

    def copies() -> None:
        for _ in range(rounds):
            host.to(where, copy=True)
            host.copy_(there)

    copies()
    return timed(where, copies) / rounds


def saved_bytes(size: Size, device: str, low: str) -> tuple[int, int]:
    """What a forward pass keeps for its backward: under autocast, and with a copy of the weights in `low`."""
    found = []
    for products in ("float32", low):
        stage = made_stage(size, device, products)
        x = drawn(size, 1)
        with torch.autocast(stage.device.type, PRODUCTS[low], enabled=products == "float32"), SavedBytes(stage) as kept:
            stage.forward((ATTEMPT, 0, 1), x, save=True)
        found.append(kept.bytes)
        del stage
    return found[0], found[1]


def _blocks(size: Size, where: torch.device) -> list[BlockWeights]:
    layout = llama.block_layout(size.model, 0, size.layers)
    take = layout.of(torch.empty(layout.size, device=where).normal_(std=DEVIATION))
    rows = [llama.block_weights(size.model, layer, take) for layer in range(size.layers)]
    return [BlockWeights(**{name: _leaf(getattr(row, name)) for name in row.__slots__}) for row in rows]


def _leaf(weights: Any) -> Any:
    """What this model does not have stays as it is."""
    return weights.clone().requires_grad_() if isinstance(weights, Tensor) else weights
