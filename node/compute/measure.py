"""What one dry microbatch costs on this device, so that a person and a node know before a stage is claimed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ftnode.models.stage import Stage


@dataclass(frozen=True, slots=True)
class Figures:
    """Of one block stage and one microbatch; bytes and seconds."""

    memory_free: int
    """Before the stage existed; 0 where the system does not say."""
    activation_bytes: int
    """What a saved forward pass keeps until its backward."""
    forward_seconds: float
    backward_seconds: float


def measure(stage: Stage, shape: tuple[int, int, int]) -> Figures:
    """Run [B, T, S] forward and backward twice and time the second: the first pays for warming up."""
    free = memory_free(stage.device)
    x_bts = torch.ones(shape, dtype=stage.dtype)
    tokens_bt = torch.zeros(shape[:2], dtype=torch.long)
    bytes_of: dict[int, int] = {}

    def keep(saved: Tensor) -> Tensor:
        bytes_of[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    forward_seconds = backward_seconds = 0.0
    for microbatch in range(2):
        key = ((0, 0), microbatch, 1)
        bytes_of.clear()
        started = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
            output = stage.forward(key, x_bts, save=True, tokens_bt=tokens_bt).cpu()
        middle = time.perf_counter()
        stage.backward(key, output, None)
        if stage.device.type == "cuda":
            torch.cuda.synchronize(stage.device)
        forward_seconds, backward_seconds = middle - started, time.perf_counter() - middle
    weights = stage.memory.untyped_storage().data_ptr()
    activation_bytes = sum(size for pointer, size in bytes_of.items() if pointer != weights)
    return Figures(free, activation_bytes, forward_seconds, backward_seconds)


def memory_free(device: torch.device) -> int:
    """Of the device; on the host, what Linux calls available."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    return next((int(line.split()[1]) * 1024 for line in _lines("/proc/meminfo", "MemAvailable:")), 0)


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
