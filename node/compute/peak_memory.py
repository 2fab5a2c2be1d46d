"""The most memory that a piece of work takes at once, besides what was there before."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

CARD_GRAIN: Final = 2 << 20
"""torch's allocator takes memory of a card in pieces of this."""

HOST_SLACK_BYTES: Final = 96 << 20
"""What the C library keeps of freed memory, and operations use within themselves; measured as 11 to 89 MiB, another
number each time. Told to keep nothing, it makes a step of large activations 11 % slower."""


def peak_of(device: torch.device, work: Callable[[], object]) -> int:
    """Bytes. On a card its allocator counts; on the host the tensors are counted that operations give back, and the
    rest is estimated."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = int(torch.cuda.memory_allocated(device))
        work()
        torch.cuda.synchronize(device)
        peak = int(torch.cuda.max_memory_allocated(device)) - before
        return -(-peak // CARD_GRAIN) * CARD_GRAIN
    counted = _CountedBesideCompiler() if "torch._dynamo" in sys.modules else _Counted()
    with counted:
        work()
    return counted.peak + HOST_SLACK_BYTES


class _Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Of storages that are born while it is entered. torch would load its compiler (0.5 s, 38 MB) to tell it that it
    should leave us alone, also where there is none: nothing is compiled."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = self._live = 0
        self._known: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = {_address(x) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor) and _address(tensor) not in given:
                self._count(tensor.untyped_storage())
        return made

    def _count(self, storage: torch.UntypedStorage) -> None:
        address, size = storage.data_ptr(), storage.nbytes()
        if address in self._known or not size:
            return
        self._known[address] = size
        self._live += size
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._gone, address)

    def _gone(self, address: int) -> None:
        self._live -= self._known.pop(address, 0)


class _CountedBesideCompiler(_Counted):  # type: ignore[no-untyped-call]
    """The same, which the compiler leaves alone: torch sees to that where a class itself has the method."""

    __torch_dispatch__ = _Counted.__torch_dispatch__

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return True


def _address(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
