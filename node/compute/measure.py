"""What one dry microbatch costs on this device, so that a person and a node know before a stage is claimed."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from ftnode.models.chunked_loss import vocabulary_at_once
from ftnode.models.config import ModelConfig
from ftnode.models.stage import Stage
from ftnode.node.compute.peak_memory import peak_of
from ftnode.node.machine import host_memory

HOST_SCATTER: Final = 1.25
"""Memory of the host for a byte of an activation that is kept: the C library finds no use for what lies between tensors
that stay. 1.0 was measured with 8 activations of 46 MiB, 1.21 to 1.28 with 16 (lab/planner/memory.py)."""


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one block stage and one microbatch; bytes and seconds."""

    activation_bytes: int
    """What a saved forward pass keeps until its backward."""
    working_bytes: int
    """What both take at once besides that and the stage, however many stages there are: one computes at a time."""
    forward_seconds: float
    backward_seconds: float


class SavedBytes:
    """Counts what the forward passes within it keep for their backward, besides what the stage has anyway."""

    def __init__(self, stage: Stage) -> None:
        self._storages = stage.storages
        self._sizes: dict[int, int] = {}
        self._hooks = torch.autograd.graph.saved_tensors_hooks(self._keep, lambda saved: saved)

    def __enter__(self) -> SavedBytes:
        self._hooks.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._hooks.__exit__(*error)

    @property
    def bytes(self) -> int:
        return sum(size for address, size in self._sizes.items() if address not in self._storages)

    def _keep(self, saved: Tensor) -> Tensor:
        storage = saved.untyped_storage()
        self._sizes[storage.data_ptr()] = storage.nbytes()
        return saved


def measure(stage: Stage, shape: tuple[int, int, int]) -> Figures:
    """Run [B, T, S] forward and backward twice and time the second: the first pays for warming up, and is looked at.
    What is compiled is compiled before."""
    x_bts = torch.ones(shape, dtype=stage.dtype, device=stage.device)
    tokens_bt = torch.zeros(shape[:2], dtype=torch.long)
    saved = SavedBytes(stage)

    def once(microbatch: int) -> tuple[float, float]:
        key = ((0, 0), microbatch, 1)
        started = time.perf_counter()
        with saved if not microbatch else nullcontext():
            output = stage.forward(key, x_bts, save=True, tokens_bt=tokens_bt)
        middle = time.perf_counter()
        stage.backward(key, output, None)
        return middle - started, time.perf_counter() - middle

    if stage.compiled:
        once(2)
        stage.forward(((0, 0), 3, 1), x_bts, save=False, tokens_bt=tokens_bt)
    peak = peak_of(stage.device, lambda: once(0))
    forward_seconds, backward_seconds = once(1)
    kept = saved.bytes if stage.device.type == "cuda" else int(HOST_SCATTER * saved.bytes)
    return Figures(kept, max(0, peak - saved.bytes), forward_seconds, backward_seconds)


def head_working_bytes(head: Stage, shape: tuple[int, int, int]) -> int:
    """What the head takes to compute with, besides what it has: loss and backward, and a backward pass at visit 0."""
    x_bts = torch.ones(shape, dtype=head.dtype)
    tokens_bt = torch.zeros(shape[:2], dtype=torch.long)
    learnt = peak_of(head.device, lambda: head.learn(((0, 0), 0, 2), x_bts, tokens_bt, tokens_bt))
    return max(learnt, peak_of(head.device, lambda: head.backward(((0, 0), 0, 0), x_bts, tokens_bt)))


def head_to_measure(model: ModelConfig, positions: int, device: torch.device) -> ModelConfig:
    """The same model with a vocabulary that all its positions have room for in one chunk of logits: what the head
    takes to compute with grows no further beyond."""
    return replace(model, vocabulary=min(model.vocabulary, vocabulary_at_once(positions, device)))


def give_back(device: torch.device) -> None:
    """What torch keeps of a card's memory for tensors to come: after a measurement, whatever that took."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def memory_free(device: torch.device) -> int:
    """Of the device."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return host_memory.available() or 0


def device_name(device: str) -> str:
    """As its maker calls it."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_name(device)
    return next((f"cpu ({line.split(':', 1)[1].strip()})" for line in _lines("/proc/cpuinfo", "model name")), "cpu")


def _lines(path: str, start: str) -> list[str]:
    try:
        return [line for line in Path(path).read_text().splitlines() if line.startswith(start)]
    except OSError:
        return []
