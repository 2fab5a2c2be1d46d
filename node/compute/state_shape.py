"""How large a stage's state is, by the manifest: what a stranger sends is held against it before there is room for it.

State travels in chunks of `chunk_bytes` of the model's numbers, each encoded by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ftnode.models.config import ModelConfig
from ftnode.models.encoded_size import encoded_bytes
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.snapshots.format import part_header
from ftnode.node.snapshots.state_digest import WholeHash

ROWS: Final = {"weights": 1, "all": 3}
"""Weights, and both moments of Adam behind them."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """`numbers(stage)`: how many weights a stage has, of `number_bytes` each."""

    numbers: Callable[[int], int]
    chunk_bytes: int
    number_bytes: int = 4
    header: Callable[[int, str], bytes] = lambda stage, part: b""
    """Of the file that a part of a stage's snapshot is, "weights" or "optimiser"."""

    def size(self, stage: int, parts: str) -> int:
        """Bytes before they are encoded."""
        return self.number_bytes * ROWS[parts] * self.numbers(stage)

    def whole_hash(self, stage: int) -> WholeHash:
        """To find what holders tell each other of a snapshot from its bytes."""
        weights = self.size(stage, "weights")
        sizes = {"weights": weights, "optimiser": self.size(stage, "all") - weights}
        return WholeHash([(part, self.header(stage, part), size) for part, size in sizes.items()])

    def lengths(self, stage: int, parts: str, encoding: str) -> tuple[int, ...]:
        """Encoded bytes of every chunk."""
        size = self.size(stage, parts)
        sizes = [min(self.chunk_bytes, size - start) for start in range(0, size, self.chunk_bytes)]
        return tuple(encoded_bytes(chunk // self.number_bytes, encoding, self.number_bytes) for chunk in sizes)


def shape_of(config: ComputeConfig) -> StateShape:
    model = ModelConfig.of(config)
    return StateShape(
        lambda stage: model.stage_parameters(config.stages, stage), config.chunk_bytes, config.number_bytes,
        lambda stage, part: part_header(model, config.stages, stage, part),
    )  # fmt: skip


def gradient_numbers(config: ComputeConfig) -> tuple[int, ...]:
    """How many numbers the gradient of each stage has, the head's first."""
    shape = shape_of(config)
    return tuple(shape.numbers(stage) for stage in range(config.stages + 1))


def state_numbers(config: ComputeConfig) -> tuple[int, ...]:
    """How many numbers the whole state of each stage has, the head's first."""
    return tuple(ROWS["all"] * numbers for numbers in gradient_numbers(config))
