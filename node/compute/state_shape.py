"""How large a stage's state is, by the manifest: what a stranger sends is held against it before there is room for it.

State travels in chunks of `chunk_bytes` of the model's numbers, each encoded by itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ftnode.models.encoded_size import encoded_bytes
from ftnode.models.state_plan import PARTS, StatePlan
from ftnode.models.state_sample import key_of, pieces, sample_numbers
from ftnode.node.compute.config import ComputeConfig
from ftnode.node.snapshots.format import part_header
from ftnode.node.snapshots.state_digest import WholeHash


@dataclass(frozen=True, slots=True)
class StateShape:
    """`numbers(stage, parts)`: how many numbers of `number_bytes` a stage's weights are, or its optimiser's, or all, or
    a sample of these."""

    numbers: Callable[[int, str], int]
    chunk_bytes: int
    number_bytes: int = 4
    header: Callable[[int, str], bytes] = lambda stage, part: b""
    """Of the file that a part of a stage's snapshot is."""

    def size(self, stage: int, parts: str) -> int:
        """Bytes before they are encoded."""
        return self.number_bytes * self.numbers(stage, parts)

    def whole_hash(self, stage: int) -> WholeHash:
        """To find what holders tell each other of a snapshot from its bytes."""
        return WholeHash([(part, self.header(stage, part), self.size(stage, part)) for part in PARTS])

    def lengths(self, stage: int, parts: str, encoding: str) -> tuple[int, ...]:
        """Encoded bytes of every chunk."""
        size = self.size(stage, parts)
        sizes = [min(self.chunk_bytes, size - start) for start in range(0, size, self.chunk_bytes)]
        return tuple(encoded_bytes(chunk // self.number_bytes, encoding, self.number_bytes) for chunk in sizes)


def shape_of(config: ComputeConfig) -> StateShape:
    plan = config.state_plan
    return StateShape(
        lambda stage, parts: _numbers(plan, stage, parts), config.chunk_bytes, config.number_bytes,
        lambda stage, part: part_header(plan, stage, part),
    )  # fmt: skip


def _numbers(plan: StatePlan, stage: int, parts: str) -> int:
    key = key_of(parts)
    return plan.numbers(stage, parts) if key is None else sample_numbers(pieces(plan, stage, key))


def gradient_numbers(config: ComputeConfig) -> tuple[int, ...]:
    """How many numbers the gradient of each stage has, the head's first."""
    return tuple(config.state_plan.numbers(stage, "weights") for stage in range(config.stages + 1))


def state_numbers(config: ComputeConfig) -> tuple[int, ...]:
    """How many numbers the whole state of each stage has, the head's first."""
    return tuple(config.state_plan.numbers(stage, "all") for stage in range(config.stages + 1))
