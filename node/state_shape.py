"""How large a stage's state is, by the manifest: what a stranger sends is held against it before there is room for it.

State travels in chunks of `chunk_bytes` of the model's numbers, each encoded by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ftnode.models.config import ModelConfig
from ftnode.models.encoded_size import encoded_bytes
from ftnode.node.compute_config import ComputeConfig

ROWS: Final = {"weights": 1, "all": 3}
"""Weights, and both moments of Adam behind them."""


@dataclass(frozen=True, slots=True)
class StateShape:
    """`numbers(stage)`: how many weights a stage has, of `number_bytes` each."""

    numbers: Callable[[int], int]
    chunk_bytes: int
    number_bytes: int = 4

    def size(self, stage: int, parts: str) -> int:
        """Bytes before they are encoded."""
        return self.number_bytes * ROWS[parts] * self.numbers(stage)

    def lengths(self, stage: int, parts: str, encoding: str) -> tuple[int, ...]:
        """Encoded bytes of every chunk."""
        size = self.size(stage, parts)
        sizes = [min(self.chunk_bytes, size - start) for start in range(0, size, self.chunk_bytes)]
        return tuple(encoded_bytes(chunk // self.number_bytes, encoding, self.number_bytes) for chunk in sizes)


def shape_of(config: ComputeConfig) -> StateShape:
    model = ModelConfig(config.dim, config.heads, config.layers, config.context, config.hidden, config.vocabulary)
    return StateShape(
        lambda stage: model.stage_parameters(config.stages, stage), config.chunk_bytes, config.number_bytes
    )


def gradient_numbers(config: ComputeConfig) -> tuple[int, ...]:
    """How many numbers the gradient of each stage has, the head's first."""
    shape = shape_of(config)
    return tuple(shape.numbers(stage) for stage in range(config.stages + 1))
