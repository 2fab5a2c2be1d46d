"""The most memory that the compute process takes: of a graphics card by torch's allocator, of the host by the kernel.

On a card torch counts what it allocates, and CUDA's context comes on top, which is left out of what torch may have. On
the host RLIMIT_DATA bounds what the process may map for itself (Linux counts anonymous mappings since 4.7): that and
the pages of libraries are never more than the limit. What it shares with the node (room machine) is the node's. Beyond
the limit an allocation fails, as it does when a card is full, and is answered as `oom`; nothing is
swapped out.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

import torch

from ftnode.node.compute.config import ComputeConfig
from ftnode.node.machine import host_memory
from ftnode.node.machine.device_choice import CONTEXT_BYTES
from ftnode.node.owner.limits import Memory

LIBRARY_BYTES: Final = 32 << 20
"""More pages of libraries than are resident at the start."""
MEBIBYTE: Final = 1 << 20
GRAIN: Final = 1 << 20
"""Numbers of a tensor that all threads of torch take part in."""
OUT_OF_MEMORY: Final = ("can't allocate memory", "bad_alloc", "could not create a memory")
"""What torch, C++ and oneDNN say on the host."""


def out_of_memory(error: Exception) -> bool:
    """Whether an allocation failed, on the device or on the host."""
    known = isinstance(error, torch.OutOfMemoryError | MemoryError)
    return known or any(words in str(error) for words in OUT_OF_MEMORY)


class MemoryCap:
    """Set once, before anything large is allocated. Raises ValueError when torch itself takes more."""

    def __init__(self, config: ComputeConfig) -> None:
        self._device = torch.device(config.device)
        self.limit = 0
        """Of what this process allocates by itself; 0: none."""
        wanted = Memory(config.memory_share, config.memory_bytes)
        if wanted == Memory():
            return
        if self._device.type == "cuda":
            number = self._device.index or 0  # torch wants one here
            total = torch.cuda.get_device_properties(number).total_memory
            self.limit = wanted.bytes_of(total) - CONTEXT_BYTES
            if self.limit <= 0:
                raise ValueError(
                    f"--vram leaves no room: CUDA alone takes {CONTEXT_BYTES / MEBIBYTE:.0f} MiB of a card"
                )
            torch.cuda.set_per_process_memory_fraction(self.limit / total, number)
            return
        torch.ones(GRAIN).add_(1)  # the threads of torch begin now, since one that cannot ends the process
        others = _status("RssFile") + LIBRARY_BYTES
        cap = wanted.bytes_of(host_memory.whole())
        self.limit = cap - others
        if self.limit <= _status("VmData"):
            needed = others + _status("VmData")
            raise ValueError(f"--vram leaves no room: torch alone takes {needed / MEBIBYTE:.0f} MiB")
        resource.setrlimit(resource.RLIMIT_DATA, (self.limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))

    def free(self, on_device: int) -> int:
        """Bytes that may still be allocated, of `on_device` that are free."""
        if not self.limit:
            return on_device
        if self._device.type == "cuda":
            return max(0, min(on_device, self.limit - torch.cuda.memory_allocated(self._device)))
        return max(0, min(on_device, self.limit - _status("VmData")))


def _status(name: str) -> int:
    """Of /proc/self/status, in bytes; 0 where there is none."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)
