"""Weights of a stage that are not trained: those that the run began with, from its first step to its last.

They have no gradient and no moments, and nobody hands them on: everybody reads them from the model that the run goes on
from (first_weights.py). Matrices are kept as products read them, once.
"""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from ftnode.models.low_copy import low_names
from ftnode.models.parameters import EMBEDDING, Entries, Shape, places
from ftnode.models.tensors import Layout


class FrozenWeights:
    """Of one stage; zeros before they are read."""

    def __init__(
        self, entries: Entries, dtype: torch.dtype, low: torch.dtype | None, head: bool, device: torch.device
    ) -> None:
        """`dtype`: the model's; `low`: what products are computed in, where that is another."""
        narrow = low_names(entries, head) - _read_twice(entries, head) if low is not None else set()
        self._kinds: list[tuple[Layout, Tensor]] = []
        for kind, names in ((dtype, entries.keys() - narrow), (low or dtype, narrow)):
            layout = Layout(*places({name: shape for name, (_, shape) in entries.items() if name in names}, {}))
            self._kinds.append((layout, torch.zeros(layout.size, dtype=kind, device=device)))

    def view(self, name: str) -> Tensor:
        """The named tensor. Raises KeyError for one that is trained, or none."""
        layout, flat = self._kind(name)
        return layout.view(flat, name)

    def joined(self, first: str, shape: Shape) -> Tensor:
        """Neighbours as one, from `first` on; KeyError as above."""
        layout, flat = self._kind(first)
        return layout.joined(flat, first, shape)

    @property
    def bytes(self) -> int:
        return sum(flat.nbytes for _, flat in self._kinds)

    @property
    def storages(self) -> set[int]:
        """Where these are."""
        return {flat.untyped_storage().data_ptr() for _, flat in self._kinds if len(flat)}

    def _kind(self, name: str) -> tuple[Layout, Tensor]:
        for layout, flat in self._kinds:
            if name in layout.entries:
                return layout, flat
        raise KeyError(name)


def frozen_bytes(entries: Entries, head: bool, number_bytes: int, low_bytes: int) -> int:
    """What they take, with what is copied of them. `low_bytes`: of a number as products read it; 0: as all others."""
    low = low_names(entries, head) if low_bytes else set()
    whole = (entries.keys() - low) | _read_twice(entries, head)
    numbers = {name: prod(shape) for name, (_, shape) in entries.items()}
    return number_bytes * sum(numbers[name] for name in whole) + low_bytes * sum(numbers[name] for name in low)


def _read_twice(entries: Entries, head: bool) -> set[str]:
    """A tied embedding is looked up in the model's precision, and multiplied with in few bits."""
    return low_names(entries, head) & {EMBEDDING}
